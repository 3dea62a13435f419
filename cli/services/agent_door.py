"""Talks with the agent of this machine, by the socket in its state directory."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.unix import connected

SOCKET = "agent.sock"
SECONDS = 10.0


class NoAgent(GridError):
    """Nobody answers there."""


class AgentDoor:
    """A connection to the agent of this state directory. Raises NoAgent where none runs."""

    def __init__(self, state_dir: Path) -> None:
        try:
            self._socket = connected(state_dir / SOCKET, SECONDS)
        except PermissionError:
            raise GridError(
                f"only root and who runs the agent may ask it, and {state_dir} is not yours",
                hint="the same with sudo; what the grid knows of a node, everybody sees by: grid nodes",
            ) from None
        except OSError as error:
            raise NoAgent(
                f"no agent runs on {state_dir}", why=error.strerror or str(error), hint="grid agent run, or install"
            ) from None

    def ask(self, **what: Any) -> Iterator[dict[str, Any]]:
        """The answers to a question, as they come. Raises GridError where it is refused."""
        with contextlib.suppress(BrokenPipeError):  # refused before it was asked: that is to be read
            self._socket.sendall(json.dumps(what).encode() + b"\n")
        with self._socket.makefile("rb") as answers:
            first = True
            while True:
                try:
                    line = answers.readline()
                except TimeoutError:
                    raise GridError("the agent does not answer", why="it hangs, or the machine is very busy") from None
                if not line:
                    return
                said = json.loads(line)
                if "error" in said:
                    raise GridError(f"the agent refuses: {said['error']}")
                if first:
                    self._socket.settimeout(None)  # the rest takes as long as jobs do
                    first = False
                yield said

    def close(self) -> None:
        """Hang up: what was asked and is not done is taken back."""
        self._socket.close()


def status_of(state_dir: Path) -> dict[str, Any] | None:
    """How the agent there is; None: none runs, or it hangs."""
    try:
        door = AgentDoor(state_dir)
    except NoAgent:
        return None
    try:
        return next(door.ask(op="status"), None)
    finally:
        door.close()
