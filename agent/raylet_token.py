"""The token with which a raylet joins a cluster that wants one: tried before, and given in a file of its own."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from distributed_grid.agent.run_as import Account
from distributed_grid.protocol.errors import GridError

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
