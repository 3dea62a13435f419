"""Queries and stops the running agent of this machine, over the socket in its state directory and by systemd."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.termui import prompt

from distributed_grid import __version__
from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.dev import processes
from distributed_grid.cli.services import service, systemd
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.text import counted, format_duration
from distributed_grid.runtime.unix import connected

SOCKET = "agent.sock"
SECONDS = 10.0


class NoAgent(GridError):
    """No agent answers there."""


class AgentSocket:
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
    """Return the status of the agent in this directory; None: none runs, or it hangs."""
    try:
        connection = AgentSocket(state_dir)
    except NoAgent:
        return None
    try:
        return next(connection.ask(op="status"), None)
    finally:
        connection.close()


NOT_RUNNING = 3


def show(invocation: Invocation, at: systemd.Installed | None, state_dir: Path) -> None:
    """Print it. The exit code is 3 where no agent runs."""
    unit = service.about(at) if at is not None else None
    hidden = ""
    try:
        agent = status_of(state_dir)
    except GridError as error:
        agent, hidden = None, error.what
    if unit is None and agent is None:
        raise GridError(
            hidden or "no agent runs here, and none is installed as a service",
            why="" if hidden else f"none is on {state_dir}",
            hint="the same with sudo" if hidden else "grid agent install, or name another by --name or --state-dir",
        )
    lines = service.lines(unit) if unit is not None else ["service    none"]
    if agent is not None:
        lines += _lines(agent)
    else:
        lines.append(f"agent      {hidden or 'does not answer'}")
    about = {"service": unit, "agent": agent, "installed": __version__, "state_dir": str(state_dir)}
    formatting.show(invocation, about, formatting.lines(lines), f"{unit['state'] if unit else 'active'}\n")
    if unit is not None and unit["state"] != "active":
        raise SystemExit(NOT_RUNNING)


def accept_loss(invocation: Invocation, state_dir: Path) -> None:
    """Tell the agent that nothing lives of what it does not know. Raises GridError if it knows everything, or none
    runs."""
    connection = AgentSocket(state_dir)
    try:
        for _ in connection.ask(op="accept-loss"):
            invocation.say("the agent takes jobs again; the grid ends what it held here, and may run it again")
    finally:
        connection.close()


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
    """Describe the parts that do not have the agent's own version."""
    said = ""
    if agent["software"] != __version__:
        said += f"; {__version__} is installed, and runs after a restart"
    if (its := agent["supervisor"]["software"]) != agent["software"]:
        said += f"; the supervisor of its jobs is of {its}, and stays until they have ended"
    return said


STOP_SECONDS = 30.0


def jobs_option(command: Any) -> Any:
    """Add the option for what happens to the jobs, for commands that end the agent."""
    choice = click.Choice(["keep", "drain", "kill"])
    late = click.option(
        "--deadline", metavar="TIME", help="With drain: stop jobs that still run after this time, such as 30m."
    )
    what = click.option("--jobs", type=choice, help="Let them run on (keep), wait for them (drain), end them (kill).")
    return what(late(command))


def seconds(jobs: str | None, deadline: str | None) -> float:
    """Return the deadline in seconds; 0: there is none."""
    from distributed_grid.protocol.text import parse_duration

    if deadline is None:
        return 0.0
    if jobs != "drain":
        raise click.UsageError("--deadline goes with --jobs drain")
    return parse_duration(deadline)


def chosen(jobs: str | None, state_dir: Path) -> str:
    """Return what is to happen to the jobs: as given by option, or as answered at the prompt if some run; else they go
    on."""
    if jobs is not None:
        return jobs
    running = 0
    with contextlib.suppress(GridError):
        running = len((status_of(state_dir) or {}).get("jobs", ()))
    if not running or not sys.stdin.isatty():
        return "keep"
    runs = "1 job runs" if running == 1 else f"{running} jobs run"
    choice = click.Choice(["keep", "drain", "kill"])
    return str(prompt(f"{runs} here: keep, drain or kill?", type=choice, default="keep", err=True))


def stop(invocation: Invocation, state_dir: Path, at: systemd.Installed | None, jobs: str, deadline: float) -> int:
    """End the agent, by systemd where it is its service. How many jobs it left running. Raises GridError."""
    try:
        connection = AgentSocket(state_dir)
    except NoAgent as none:
        if at is None and not state_dir.exists():
            raise NoAgent(none.what, hint="--name or --state-dir say which agent is meant") from None
        if jobs != "keep" and at is not None:
            raise NoAgent(none.what, why=none.why, hint=f"systemctl start {at.unit} first, or --jobs keep") from None
        if jobs != "keep":
            raise
        if at is not None:
            at.must("stop", at.unit)
        return 0
    try:
        left = _ready(invocation, connection, jobs, deadline)
        if at is not None and at.active():
            at.must("stop", at.unit)
        elif (agent := processes.read(state_dir / "agent.pid")) is not None:
            agent.send(signal.SIGTERM)
            if not agent.wait(STOP_SECONDS):
                raise GridError(
                    f"the agent (process {agent.pid}) does not end", why=f"SIGTERM was {STOP_SECONDS:g} s ago"
                )
        return left
    finally:
        connection.close()


def _ready(invocation: Invocation, connection: AgentSocket, jobs: str, deadline: float) -> int:
    for said in connection.ask(op="stop", jobs=jobs, deadline=deadline):
        if said.get("ready"):
            return int(said["left"])
        word = {"drain": "waiting for", "kill": "ending"}[jobs]
        invocation.say(f"{word} {counted(said['left'], 'job')}; ^C leaves the agent as it was")
    raise GridError("the agent ended before it was stopped", hint="grid agent status")


def show_stopped(invocation: Invocation, left: int, at: systemd.Installed | None) -> None:
    """The outcome of a stop."""
    running = {0: "no job runs here", 1: "1 job runs on"}.get(left, f"{left} jobs run on")
    said = [f"the agent is stopped; {running}"]
    said += [f"{at.unit} starts again with the machine; for good: grid agent uninstall"] if at is not None else []
    formatting.show(invocation, {"stopped": True, "jobs_left": left}, formatting.lines(said))
