"""How the agent of this machine is, said by itself (over the socket in its state directory) and by systemd."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed_grid import __version__
from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.services import systemd
from distributed_grid.cli.services import words as service_words
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.text import format_duration
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


NOT_RUNNING = 3


def show(invocation: Invocation, at: systemd.Installed | None, state_dir: Path) -> None:
    """Print it. The exit code is 3 where no agent runs."""
    service = service_words.about(at) if at is not None else None
    hidden = ""
    try:
        agent = status_of(state_dir)
    except GridError as error:
        agent, hidden = None, error.what
    if service is None and agent is None:
        raise GridError(
            hidden or "no agent runs here, and none is installed as a service",
            why="" if hidden else f"none is on {state_dir}",
            hint="the same with sudo" if hidden else "grid agent install, or name another by --name or --state-dir",
        )
    lines = service_words.lines(service) if service is not None else ["service    none"]
    if agent is not None:
        lines += _lines(agent)
    else:
        lines.append(f"agent      {hidden or 'does not answer'}")
    about = {"service": service, "agent": agent, "installed": __version__, "state_dir": str(state_dir)}
    service_words.tell(invocation, about, lines, short=service["state"] if service else "active")
    if service is not None and service["state"] != "active":
        raise SystemExit(NOT_RUNNING)


def accept_loss(invocation: Invocation, state_dir: Path) -> None:
    """Tell the agent that nothing lives of what it does not know. Raises GridError where it knows all, or none runs."""
    door = AgentDoor(state_dir)
    try:
        for _ in door.ask(op="accept-loss"):
            invocation.say("the agent takes jobs again; the grid ends what it held here, and may run it again")
    finally:
        door.close()


def _lines(agent: dict[str, Any]) -> list[str]:
    jobs, connected = agent["jobs"], agent["connected_for"]
    lines = [f"node       {agent['node']}"]
    lines.append(
        f"connected  for {format_duration(connected)} to grid {agent['grid']} at {agent['coordinator']}"
        if connected is not None
        else f"connected  not, to {agent['coordinator']}; why is in its log: grid agent logs"
    )
    lines.append(f"version    {agent['software']}" + _other(agent))
    lines.append(f"jobs       {len(jobs)}")
    lines += [f"           {one['allocation']}, for {format_duration(one['started_for'])}" for one in jobs]
    more = f"; no stronger ones: {agent['walls_why']}" if agent["walls_why"] else ""
    lines.append(f"walls      {agent['walls']}{more}")
    if why := agent["nameless"]:
        lines.append(f"           its jobs have no name, which ssh and whoami need: {why}")
    lines.append(f"runs       jobs of {formatting.whose_jobs(agent['walls'], agent['owners'], agent['trusts'])}")
    lines.append(f"offers     {agent['offers']}")
    return lines + [f"           not {one}" for one in agent["withheld"]]


def _other(agent: dict[str, Any]) -> str:
    """What is not of the agent's own version."""
    said = ""
    if agent["software"] != __version__:
        said += f"; {__version__} is installed, and runs after a restart"
    if (its := agent["supervisor"]["software"]) != agent["software"]:
        said += f"; the supervisor of its jobs is of {its}, and stays until they have ended"
    return said
