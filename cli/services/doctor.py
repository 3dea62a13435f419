"""`grid doctor`: look at all that has to be right here, on a node, on the master, or where one only submits."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, common, current, printable
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.health import Finding, Level, clock, failed

_COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}


@click.command()
@common
@click.option("--state-dir", metavar="DIR", help="Where the coordinator of this machine keeps its state.")
@click.option("--agent-state-dir", metavar="DIR", help="Where the agent of this machine keeps its state.")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
def doctor(state_dir: str | None, agent_state_dir: str | None, as_json: bool) -> None:
    """Look at all that has to be right here, and say what to do where it is not.

    Exits with 1 where there is an error. Works on the master, on a node, and where one only submits: what is not at
    home here is not looked at."""
    invocation = current()
    if as_json:
        invocation.output = "json"
    findings = list(examine(invocation, state_dir, agent_state_dir))
    levels = [one.level for one in findings]
    match invocation.output:
        case "json" | "jsonl":
            rows = [one._asdict() for one in findings]
            about = {"errors": levels.count(Level.ERROR), "warnings": levels.count(Level.WARNING), "findings": rows}
            formatting.emit_json(invocation, about, "findings")
        case "quiet":
            formatting.emit(f"{levels.count(Level.ERROR)}\n")
        case _:
            formatting.emit(text_of(findings, invocation.colored()))
    raise SystemExit(1 if Level.ERROR in levels else 0)


def text_of(findings: list[Finding], colored: bool = False) -> str:
    """The findings for people, each with its reason and remedy, and how many are bad."""
    width = max(len(one.check) for one in findings)
    lines = []
    for one in findings:
        level = formatting.paint(f"{one.level:<7}", _COLORS[one.level] if colored else "")
        lines.append(f"{level}  {printable(f'{one.check:<{width}}  {one.what}')}")
        if one.level is not Level.OK:
            lines += [printable(f"{'':{width + 11}}why: {one.why}")] * bool(one.why)
            lines += [printable(f"{'':{width + 11}}try: {one.remedy}")] * bool(one.remedy)
    errors, warnings = (sum(one.level is level for one in findings) for level in (Level.ERROR, Level.WARNING))
    counted = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    lines.append(counted if errors or warnings else "all is well")
    return "".join(line + "\n" for line in lines)


def examine(invocation: Invocation, state_dir: str | None, agent_state_dir: str | None) -> Iterator[Finding]:
    """All that can be found here. Nothing is changed."""
    from distributed_grid.cli.services import doctor_grid
    from distributed_grid.config.places import shown

    yield from _versions()
    yield clock()
    flags = {"coordinator.state_dir": state_dir, "agent.state_dir": agent_state_dir}
    try:
        config = invocation.whole_config({name: value for name, value in flags.items() if value is not None})
    except GridError as error:
        yield failed("configuration", error)
        return
    yield Finding(
        "configuration", Level.OK, f"read from {shown(config.path)}" if config.path else "none: all is as usual"
    )
    name = config.agent.name or platform.node().partition(".")[0] or "node"
    here = config.agent_state_dir(name)
    yield from _coordinator(config)
    yield from _agent(config, here)
    yield from _linger()
    yield from doctor_grid.node_side(here)
    yield from doctor_grid.client_side(invocation, name)


def _versions() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    from distributed_grid import __version__

    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield Finding("grid", Level.OK, __version__)
    try:
        yield Finding("ray", Level.OK, version("ray"))
    except PackageNotFoundError:
        yield Finding("ray", Level.OK, "not installed (needed for boosts and placement by Ray alone)")


def _coordinator(config: Any) -> Iterator[Finding]:
    from distributed_grid.coordinator.diagnostics import look

    yield from look(Path(config.coordinator_state_dir()), config.coordinator.host, config.coordinator.port)


def _agent(config: Any, state_dir: Path) -> Iterator[Finding]:
    from distributed_grid.agent.diagnostics import Asked, look

    own = config.agent
    asked = Asked(state_dir, own.run_as, str(own.walls), own.owners, str(own.trust))
    yield from look(asked, str(own.gpu_backend), own.cgroup)


def _linger() -> Iterator[Finding]:
    """Services of a person end with the last of their sessions, unless systemd was told otherwise."""
    from distributed_grid.cli.services.systemd import LINGER, Installed, me

    for kind in ("agent", "coordinator"):
        if Installed(kind, True).path.exists():
            if (LINGER / me()).exists():
                yield Finding("linger", Level.OK, f"the {kind}'s service goes on when you log out")
            else:
                remedy = f"sudo loginctl enable-linger {me()}"
                yield Finding("linger", Level.WARNING, f"the {kind}'s service ends when you log out", "", remedy)
