"""What a raylet finds on its node. Its folder, where it runs behind walls: made by its own user, with a short name in
its /tmp, since Ray keeps sockets there. The token with which it joins a cluster that wants one: tried before, and given
in a file of its own. Blocks: never on the loop.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch.run_as import Account
from distributed_grid.agent.walls.files import FILE, Entry
from distributed_grid.protocol.errors import GridError

TEMPORARY = Path("/tmp")  # noqa: S108 - made there by its user, under a name that nobody else has there
TOKEN = "ray-token"  # noqa: S105 - the name of a file


class WalledFolder:
    """Folders of raylets in one slot. `private`: its /tmp is a directory of the slot."""

    def __init__(self, files: JobFiles, state_dir: Path, slot: str, private: bool) -> None:
        self._files = files
        self._slot = slot
        base = state_dir / "jobs" / slot / ".tmp" if private else TEMPORARY
        self._base = os.fsencode(base)

    def make(self, allocation: str, token: Path | None) -> tuple[Path, str]:
        """Make it, with a copy of the cluster's token. Its path and the token's, as the raylet sees them. Raises
        GridError."""
        name = _name(allocation)
        entries: list[Entry] = []
        if token is not None:
            entries.append((FILE, TOKEN.encode(), 0o600, b"", token.stat().st_size, 0))
        try:
            self._files.make(self._slot, self._base, name, entries, lambda _: _open(token))
        except OSError as error:
            why = error.strerror or str(error)
            raise GridError(f"{TEMPORARY / os.fsdecode(name)} cannot be made", why=why) from None
        path = TEMPORARY / os.fsdecode(name)
        return path, str(path / TOKEN) if token is not None else ""

    def remove(self, allocation: str) -> None:
        """Nothing is left of its raylet. Raises GridError and OSError."""
        self._files.remove_at(self._slot, self._base, _name(allocation))


def left_by(allocation: str) -> bool:
    """Whether there is such a folder in the machine's /tmp."""
    return (TEMPORARY / os.fsdecode(_name(allocation))).exists()


def _name(allocation: str) -> bytes:
    return f"grid-r-{allocation}".encode()


def _open(token: Path | None) -> int:
    assert token is not None  # noqa: S101
    return os.open(token, os.O_RDONLY | os.O_CLOEXEC)


TRY_SECONDS = 20.0
TRY = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
REFUSED = "InvalidAuthToken"
NAME = "token"

_taken: set[tuple[str, str, int, int]] = set()
"""Tokens that a cluster has taken: its address, and by which file in which state. Trying one takes ray's import."""


def check(token: Path, address: str, python: str, said: Mapping[str, str]) -> None:
    """See that the cluster takes it, which takes a second; `ray start` would take 21 to say so. `said` is what a raylet
    has in its environment. Raises GridError where the cluster says no; any other trouble is `ray start`'s to tell."""
    seen = token.stat()
    key = (address, str(token), seen.st_mtime_ns, seen.st_ino)
    if key in _taken:
        return
    environment = {**said, "PATH": os.defpath, "RAY_AUTH_TOKEN_PATH": str(token)}
    try:
        tried = subprocess.run(
            [python, "-I", "-c", TRY, address], env=environment, capture_output=True, text=True, timeout=TRY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if REFUSED in tried.stderr:
        raise GridError(
            f"the Ray cluster at {address} does not take this node's token",
            why=f"it is another than that in {token}",
            hint="put the cluster's token there, or name its file with agent.ray_token",
        )
    if tried.returncode == 0:
        _taken.add(key)


def give(token: Path, folder: Path, account: Account | None) -> Path:
    """A copy in this folder, which is the raylet's own, for whom it runs as (None: us): it may not be let to ours.
    Raises OSError."""
    path = folder / NAME
    path.unlink(missing_ok=True)  # of a try that did not get as far as the supervisor
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, token.read_bytes())
        if account is not None:
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)
    return path
