"""Ends the agent of this machine, and its jobs as is asked."""

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import click
from click.termui import prompt

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.dev import processes
from distributed_grid.cli.services import systemd, words
from distributed_grid.cli.services.agent_status import AgentDoor, NoAgent, status_of
from distributed_grid.protocol.errors import GridError

SECONDS = 30.0


def jobs_option(command: Any) -> Any:
    """What is to become of the jobs, for commands that end the agent."""
    choice = click.Choice(["keep", "drain", "kill"])
    late = click.option("--deadline", metavar="TIME", help="With drain: take back what still runs then, such as 30m.")
    what = click.option("--jobs", type=choice, help="Let them run on (keep), wait for them (drain), end them (kill).")
    return what(late(command))


def seconds(jobs: str | None, deadline: str | None) -> float:
    """The deadline in seconds; 0: there is none."""
    from distributed_grid.protocol.text import parse_duration

    if deadline is None:
        return 0.0
    if jobs != "drain":
        raise click.UsageError("--deadline goes with --jobs drain")
    return parse_duration(deadline)


def chosen(jobs: str | None, state_dir: Path) -> str:
    """What is to become of the jobs: as was said, or as a person says who is asked where some run; else they go on."""
    if jobs is not None:
        return jobs
    running = 0
    with contextlib.suppress(GridError):
        running = len((status_of(state_dir) or {}).get("jobs", ()))
    if not running or not sys.stdin.isatty():
        return "keep"
    asked = prompt(
        f"{running} jobs run here: keep, drain or kill?",
        type=click.Choice(["keep", "drain", "kill"]),
        default="keep",
        err=True,
    )
    return str(asked)


def stop(invocation: Invocation, state_dir: Path, at: systemd.Installed | None, jobs: str, deadline: float) -> int:
    """End the agent, by systemd where it is its service. How many jobs it left running. Raises GridError."""
    try:
        door = AgentDoor(state_dir)
    except NoAgent as none:
        if at is None and not state_dir.exists():
            raise NoAgent(none.what, hint="--name or --state-dir say which agent is meant") from None
        if jobs != "keep":
            raise
        if at is not None:
            at.must("stop", at.unit)
        return 0
    try:
        left = _ready(invocation, door, jobs, deadline)
        if at is not None and at.active():
            at.must("stop", at.unit)
        elif (agent := processes.read(state_dir / "agent.pid")) is not None:
            agent.send(signal.SIGTERM)
            if not agent.wait(SECONDS):
                raise GridError(f"the agent (process {agent.pid}) does not end", why=f"SIGTERM was {SECONDS:g} s ago")
        return left
    finally:
        door.close()


def _ready(invocation: Invocation, door: AgentDoor, jobs: str, deadline: float) -> int:
    for said in door.ask(op="stop", jobs=jobs, deadline=deadline):
        if said.get("ready"):
            return int(said["left"])
        word = {"drain": "waiting for", "kill": "ending"}[jobs]
        invocation.say(f"{word} {said['left']} jobs; ^C leaves the agent as it was")
    raise GridError("the agent ended before it was stopped", hint="grid agent status")


def tell(invocation: Invocation, left: int, at: systemd.Installed | None) -> None:
    """What stopping came to."""
    words.tell(
        invocation,
        {"stopped": True, "jobs_left": left},
        [
            f"the agent is stopped; {left} jobs run on" if left else "the agent is stopped; no job runs here",
            *([f"{at.unit} starts again with the machine; for good: grid agent uninstall"] if at is not None else []),
        ],
    )
