"""Where nodes were pushed to, as who pushed them remembers it: so that `grid node remove` finds its way by the name."""

import os
from pathlib import Path

import msgspec

from distributed_grid.push.plan import Target


class Pushed(msgspec.Struct, frozen=True):
    """How a node was reached by ssh. No secrets: `identity` is a file's name."""

    host: str
    user: str = ""
    port: int = 0
    identity: str = ""
    python: str = ""

    @property
    def target(self) -> Target:
        return Target(self.host, self.user, self.port)


def _file(grid: str, node: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "grid" / "pushed" / grid / f"{node}.json"


def write(grid: str, node: str, pushed: Pushed) -> None:
    """Remember it."""
    path = _file(grid, node)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(pushed) + b"\n")


def read(grid: str, node: str) -> Pushed | None:
    """Where this node was pushed to; None: not from here."""
    try:
        return msgspec.json.decode(_file(grid, node).read_bytes(), type=Pushed)
    except (OSError, msgspec.DecodeError):
        return None


def forget(grid: str, node: str) -> None:
    """It is no more."""
    _file(grid, node).unlink(missing_ok=True)
