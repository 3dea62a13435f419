"""The folder of a raylet that runs behind walls: made by its own user, with a short name in its /tmp, since Ray keeps
sockets there. Blocks: never on the loop."""

import os
from pathlib import Path

from distributed_grid.agent.job_files import JobFiles
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
