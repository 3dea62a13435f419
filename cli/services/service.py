"""The output about a service that `grid agent` and `grid coordinator` share."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current
from distributed_grid.cli.services import systemd
from distributed_grid.cli.services.systemd import Unit
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.text import counted
from distributed_grid.runtime import xdg

if TYPE_CHECKING:
    from distributed_grid.config.settings import ClusterConfig


def config_options(invocation: Invocation) -> list[str]:
    """The configuration that holds here, for a process that is started elsewhere."""
    from distributed_grid.config.places import find

    file = find(invocation.config_path or None)
    return ["--config", str(file.absolute())] if file is not None else []


def _of_unit(kind: str, option: str) -> str:
    """Return the value that the unit of this machine's service (or of the user's own) gives this option; empty: none. A
    user who sets XDG_STATE_HOME works beside that service."""
    own = os.geteuid() != 0
    return "" if xdg.named("XDG_STATE_HOME") else systemd.option_of(systemd.Installed(kind, own), option)


def coordinator_place(config: "ClusterConfig") -> Path:
    """Return the state directory of this machine's coordinator: as configured, as its service was installed, or the
    default."""
    said = config.origins.get("coordinator.state_dir", "default") != "default"
    return Path((not said and _of_unit("coordinator", "--state-dir")) or config.coordinator_state_dir())


def agent_name(config: "ClusterConfig") -> str:
    """The name of this machine's node: as configured, as its service was installed, or the host's."""
    return config.node_name(config.agent.name or _of_unit("agent", "--name"))


def agent_place(config: "ClusterConfig") -> Path:
    """Return the state directory of this machine's agent: as configured, as its service was installed, or the
    default."""
    said = any(config.origins.get(f"agent.{name}", "default") != "default" for name in ("name", "state_dir"))
    return Path((not said and _of_unit("agent", "--state-dir")) or config.agent_state_dir(agent_name(config)))


def common_options(invocation: Invocation) -> list[str]:
    """Return the options for the configuration in use, and for the coordinator that was given here."""
    said = config_options(invocation)
    if url := invocation.coordinator or os.environ.get("GRID_COORDINATOR", ""):
        said += ["--coordinator", url]
    return said


def show_installed(unit: Unit, change: systemd.Change, more: dict[str, Any]) -> None:
    """Print the result of an installation."""
    at = systemd.Installed(unit.kind, not unit.runs_as)
    invocation = current()
    if at.own and not systemd.lingers():
        invocation.say("warning: your services end when you log out")
        invocation.say(f"  try: sudo loginctl enable-linger {systemd.me()}")
    about = {
        "unit": at.unit,
        "path": str(at.path),
        "user": unit.runs_as or systemd.me(),
        "state_dir": str(unit.state_dir),
        **more,
        "changed": change.written,
        "started": change.started,
    }
    what = "is as it was, and runs" if not change.started else "is installed" if change.written else "is started"
    said = [f"{at.unit} {what}, as {about['user']}, with its state in {unit.state_dir}"]
    said += [f"{name}: {value}" for name, value in more.items()]
    formatting.show(invocation, about, formatting.lines(said))


def uninstall(at: systemd.Installed, purge: bool = False) -> None:
    """Remove the service, with `purge` its state and the user that was made for it too, and say what is left."""
    if not at.own:
        systemd.require_root(at.kind, "uninstall")
    state_dir = systemd.state_dir_of(at)
    user = "" if at.own else systemd.user_of(at)
    systemd.remove(at)
    gone, kept = [at.unit], []
    if state_dir is not None and not purge:
        kept.append(f"its state is still in {state_dir}")
    elif state_dir is not None:
        if state_dir.exists():
            shutil.rmtree(state_dir)
        gone.append(str(state_dir))
    if purge and not at.own:
        with contextlib.suppress(OSError):  # the other service has its state there
            systemd.STATE.rmdir()
    if user and purge:
        if why := systemd.remove_user(user):
            kept.append(f"the user {user} is kept: {why}")
        else:
            gone.append(f"the user {user}")
    current().say("; ".join([f"removed: {', '.join(gone)}", *kept]))


def about(at: systemd.Installed) -> dict[str, Any]:
    """Return the state of the service according to systemd; for one that fails, which may be restarted again and again,
    also its last output."""
    found = at.shown(
        "ActiveState", "SubState", "MainPID", "NRestarts", "ActiveEnterTimestamp", "StatusText", "UnitFileState"
    )
    state, detail = found.get("ActiveState", "unknown"), found.get("SubState", "")
    fails = "failed" in (state, detail) or detail == "auto-restart"
    return {
        "unit": at.unit,
        "path": str(at.path),
        "state": state,
        "detail": detail,
        "since": found.get("ActiveEnterTimestamp", ""),
        "pid": int(found.get("MainPID") or 0),
        "restarts": int(found.get("NRestarts") or 0),
        "enabled": found.get("UnitFileState", "") == "enabled",
        "says": found.get("StatusText", ""),
        "why": systemd.last_words(at, "-n", "20") if fails else "",
    }


def lines(service: dict[str, Any]) -> list[str]:
    """The same for people."""
    again = f", restarted {counted(service['restarts'], 'time')} by itself" if service["restarts"] else ""
    said = [
        f"service    {service['state']} ({service['detail']}) since {service['since'] or 'never'}{again}",
        f"unit       {service['path']}{'' if service['enabled'] else ', not enabled: it does not start by itself'}",
    ]
    said += [f"process    {service['pid']}"] * bool(service["pid"])
    said += [f"why        {service['why']}"] * bool(service["why"])
    return said + [f"says       {service['says']}"] * bool(service["says"])


def show(at: systemd.Installed) -> None:
    """Print the state of the service; the exit code is 3 if it does not run."""
    service = about(at)
    formatting.show(current(), service, formatting.lines(lines(service)), f"{service['state']}\n")
    if service["state"] != "active":
        raise SystemExit(3)


def log_options(command: Any) -> Any:
    command = click.option("-n", "--lines", type=click.IntRange(0), default=50, help="Number of lines.")(command)
    return click.option("-f", "--follow", is_flag=True, help="Follow the log.")(command)


def logs(at: systemd.Installed, follow: bool, lines: int) -> None:
    """Become journalctl."""
    program = shutil.which("journalctl")
    if program is None:
        raise GridError("there is no journalctl here", hint=f"systemctl {' '.join(at.words)} status {at.unit}")
    argv = [program, *at.words, "--unit", at.unit, "--lines", str(lines), *["--follow"] * follow, "--no-pager"]
    os.execv(program, [*argv, "--output", "cat"])  # noqa: S606
