"""The text of a unit: what ships in `systemd/`, with the paths, the user and the options of one installation."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

UNDER_HOME = ("/home", "/root", "/run/user")
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - hidden by PrivateTmp
ALLOWED_TO_USERS = frozenset(
    "Type ExecStart Restart RestartSec RestartPreventExitStatus WatchdogSec WatchdogSignal TimeoutStopSec KillMode"
    " Delegate DelegateSubgroup Environment ExecStopPost CPUWeight LimitNOFILE UMask NoNewPrivileges"
    " LockPersonality RestrictRealtime RestrictSUIDSGID SystemCallArchitectures".split()
)
"""What a person's own systemd can do: the rest takes rights that it does not have."""
COPIED = ("group", "passwd")
"""The files of /etc of which an agent that is not root gets copies of its own, in this order."""
OF_ROOT = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
)


class Unit(NamedTuple):
    """One installation of a service. `runs_as`: the user of a unit of the whole machine; empty in a person's own.
    `state_dir` is absolute, and so is everything in `argv` that names a file."""

    kind: str
    argv: Sequence[str]
    state_dir: Path
    runs_as: str = ""

    @property
    def name(self) -> str:
        return f"grid-{self.kind}.service"


def render(unit: Unit) -> str:
    """The whole unit. Everything that changes how the service runs is in it, so the same text is the same service."""
    settings = {"ExecStart": [f"ExecStart={' '.join(map(quoted, unit.argv))}"]}
    if unit.runs_as:
        settings |= _of_the_machine(unit)
    lines = [f"# Written by `grid {unit.kind} install`, which is how to change it; your own additions: systemctl edit."]
    template = files("distributed_grid.systemd").joinpath(unit.name).read_text()
    return "\n".join([*lines, *_filled(template, settings, not unit.runs_as)]) + "\n"


def _of_the_machine(unit: Unit) -> dict[str, list[str]]:
    """What becomes of some of the template's settings, as lines."""
    state, user = str(unit.state_dir), unit.runs_as
    # Root may have made what is in there, by `grid init`, a restore or `grid agent join`.
    given = state if unit.kind == "coordinator" else f"{state}/identity"
    settings = {
        "ExecStartPre": [f"ExecStartPre=+-chown -hRf {user}: {quoted(given)}"],
        "User": [f"User={user}"],
    }
    if unit.kind == "agent" and user != "root":
        settings["ExecStartPre"] += [_copy(user, name) for name in COPIED]
    if unit.state_dir.parent == Path("/var/lib/grid"):
        settings["StateDirectory"] = [f"StateDirectory=grid/{unit.state_dir.name}"]
    else:
        settings |= {"StateDirectory": [f"ReadWritePaths={quoted(state)}"], "StateDirectoryMode": []}
    if user == "root":
        # Root's service may become other users, to run jobs as who submitted them.
        bounds = [f"CapabilityBoundingSet={' '.join(OF_ROOT)}"]
        settings |= {"User": [], "CapabilityBoundingSet": bounds, "AmbientCapabilities": [], "BindPaths": []}
    needed = [sys.prefix, sys.base_prefix, state, *unit.argv]
    if _any_below(needed, UNDER_HOME):
        settings["ProtectHome"] = ["ProtectHome=read-only"]
    if _any_below(needed, TEMPORARY):
        settings["PrivateTmp"] = []
    return settings


def _copy(user: str, name: str) -> str:
    return f"ExecStartPre=+-install -D -o {user} -m 644 /etc/{name} /run/grid-agent.accounts/{name}"


def _any_below(paths: Sequence[str], tops: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(top) for path in paths for top in tops)


def _filled(template: str, settings: Mapping[str, list[str]], own: bool) -> Iterator[str]:
    """The template's lines, with these in the place of some settings of its [Service], and without the comments, which
    explain the template. `own`: as a person's own systemd takes it, which knows no network target and no multi-user."""
    section = ""
    said: set[str] = set()
    for line in template.splitlines():
        key, _, value = line.partition("=")
        if line.startswith("["):
            section = line
        if line.startswith("#") or (own and (_needs_rights(section, key, value) or "network-online" in line)):
            continue
        if own and key == "WantedBy":
            yield "WantedBy=default.target"
        elif section == "[Service]" and key in settings:
            yield from settings[key] if key not in said else ()
            said.add(key)
        else:
            yield line


def _needs_rights(section: str, key: str, value: str) -> bool:
    return section == "[Service]" and value != "" and (key not in ALLOWED_TO_USERS or value.startswith("+"))


def quoted(word: str) -> str:
    """A word as systemd reads it back: `%` begins a specifier there and `$` a variable."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not set(plain) & set(" \t\"'\\;"):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquoted(line: str) -> list[str]:
    """The words of a line of ours."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def program() -> list[str]:
    """How this environment's `grid` is started."""
    script = Path(sys.prefix) / "bin" / "grid"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "distributed_grid.cli.main"]
