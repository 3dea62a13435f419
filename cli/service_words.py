"""What `grid agent` and `grid coordinator` say of their services, which is the same for both."""

import os
import shutil
from typing import Any

import click

from distributed_grid.cli import services, words
from distributed_grid.cli.invocation import Invocation, current, printable
from distributed_grid.cli.service_units import Unit
from distributed_grid.protocol.errors import GridError


def configured(invocation: Invocation) -> list[str]:
    """The configuration that holds here, for a process that is started elsewhere."""
    from distributed_grid.coordinator.config_places import find

    file = find(invocation.config_path or None)
    return ["--config", str(file.absolute())] if file is not None else []


def where_and_how(invocation: Invocation) -> list[str]:
    """That, and the coordinator that was named here."""
    said = configured(invocation)
    if url := invocation.coordinator or os.environ.get("GRID_COORDINATOR", ""):
        said += ["--coordinator", url]
    return said


def tell_installed(unit: Unit, change: services.Change, more: dict[str, Any]) -> None:
    """What an installation came to."""
    at = services.Installed(unit.kind, not unit.runs_as)
    invocation = current()
    if at.own and not services.lingers():
        invocation.say("warning: your services end when you log out")
        invocation.say(f"  try: sudo loginctl enable-linger {services.me()}")
    about = {
        "unit": at.unit,
        "path": str(at.path),
        "user": unit.runs_as or services.me(),
        "state_dir": str(unit.state_dir),
        **more,
        "changed": change.written,
        "started": change.started,
    }
    if invocation.output in ("json", "jsonl"):
        words.emit_json(invocation, about)
        return
    what = "is as it was, and runs" if not change.started else "is installed" if change.written else "is started"
    lines = [f"{at.unit} {what}, as {about['user']}, with its state in {unit.state_dir}"]
    lines += [f"{name}: {value}" for name, value in more.items()]
    words.emit("".join(printable(line) + "\n" for line in lines))


def uninstall(at: services.Installed) -> None:
    """Remove the service, and say what is left."""
    if not at.own:
        services.require_root(at.kind, "uninstall")
    state_dir = services.state_dir_of(at)
    services.remove(at)
    current().say(f"{at.unit} is removed" + (f"; its state is still in {state_dir}" if state_dir else ""))


def show(at: services.Installed) -> None:
    """How the service is."""
    invocation = current()
    found = at.shown(
        "ActiveState", "SubState", "MainPID", "NRestarts", "ActiveEnterTimestamp", "StatusText", "UnitFileState"
    )
    about: dict[str, Any] = {
        "unit": at.unit,
        "path": str(at.path),
        "state": found.get("ActiveState", "unknown"),
        "detail": found.get("SubState", ""),
        "since": found.get("ActiveEnterTimestamp", ""),
        "pid": int(found.get("MainPID") or 0),
        "restarts": int(found.get("NRestarts") or 0),
        "enabled": found.get("UnitFileState", "") == "enabled",
        "says": found.get("StatusText", ""),
    }
    if invocation.output in ("json", "jsonl"):
        words.emit_json(invocation, about)
    elif invocation.output == "quiet":
        words.emit(f"{about['state']}\n")
    else:
        again = f", restarted {about['restarts']} times by itself" if about["restarts"] else ""
        lines = [
            f"service    {about['state']} ({about['detail']}) since {about['since'] or 'never'}{again}",
            f"unit       {at.path}{'' if about['enabled'] else ', not enabled: it does not start with the machine'}",
        ]
        lines += [f"process    {about['pid']}"] * bool(about["pid"])
        lines += [f"says       {about['says']}"] * bool(about["says"])
        words.emit("".join(printable(line) + "\n" for line in lines))
    if about["state"] != "active":
        raise SystemExit(3)


def log_options(command: Any) -> Any:
    command = click.option("-n", "--lines", type=click.IntRange(0), default=50, help="How many of the last lines.")(
        command
    )
    return click.option("-f", "--follow", is_flag=True, help="Go on with what is logged from now on.")(command)


def logs(at: services.Installed, follow: bool, lines: int) -> None:
    """Become journalctl."""
    program = shutil.which("journalctl")
    if program is None:
        raise GridError("there is no journalctl here", hint=f"systemctl {' '.join(at.words)} status {at.unit}")
    argv = [program, *at.words, "--unit", at.unit, "--lines", str(lines), *["--follow"] * follow, "--no-pager"]
    os.execv(program, [*argv, "--output", "cat"])  # noqa: S606
