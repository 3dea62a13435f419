"""The folder of an allocation on the node: `spec`, `stdout`, `stderr`, and `workdir`, where the job runs."""

import os
import re
from pathlib import Path

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import Launch

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def folder(state_dir: Path, allocation: str) -> Path:
    """Where all of an allocation lies. Raises BadValue for what cannot be the id of one, since it becomes a path."""
    if not _ID.fullmatch(allocation):
        raise BadValue(f"{allocation!r} is not the id of an allocation")
    return state_dir / "allocs" / allocation


def create(state_dir: Path, allocation: str) -> Path:
    """A fresh working directory, which only this user can enter."""
    path = folder(state_dir, allocation) / "workdir"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def write_launch(state_dir: Path, launch: Launch) -> None:
    """Keep what was asked for, so that an agent that restarts knows what its running jobs hold."""
    path = folder(state_dir, launch.allocation) / "spec"
    if not path.exists():
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(launch))
        os.replace(fresh, path)


def read_launch(state_dir: Path, allocation: str) -> Launch | None:
    """What was asked for; None if that is not known any more."""
    try:
        return msgspec.json.decode((folder(state_dir, allocation) / "spec").read_bytes(), type=Launch)
    except (OSError, msgspec.DecodeError):
        return None
