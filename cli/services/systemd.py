"""The systemd units of both services: their text, and how they are installed, found, started, stopped and removed."""

import getpass
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.xdg import config_home

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
    """Return the lines that replace some of the template's settings."""
    state, user = str(unit.state_dir), unit.runs_as
    # Root may have made what is in there, by `grid init`, a restore or `grid agent join`.
    given = state if unit.kind == "coordinator" else f"{state}/identity"
    settings = {
        "ExecStartPre": [f"ExecStartPre=+-chown -hRf {user}: {quoted(given)}"],
        "User": [f"User={user}"],
    }
    if unit.kind == "agent" and user != "root":
        settings["ExecStartPre"] += [_copy(user, name) for name in COPIED]
    if unit.state_dir.parent == STATE:
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
    """The words of a line that `quoted` has made."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def program() -> list[str]:
    """Return the command that starts this environment's `grid`."""
    script = Path(sys.prefix) / "bin" / "grid"
    return [str(script)] if script.is_file() else [sys.executable, "-m", "distributed_grid.cli.main"]


UNAVAILABLE = 69
"""Exit code where there is no systemd to install into (EX_UNAVAILABLE of sysexits)."""
MACHINE, OWN = "/etc/systemd/system", "systemd/user"
SECONDS = 120.0
LEAVE_SECONDS = 15.0
USER_IN_USE = 8
"""Exit code of userdel while processes of the user run."""
STATE = Path("/var/lib/grid")
"""Below it are the state directories of the machine's services, unless options say otherwise."""
ACCOUNT = "Distributed Grid"
"""The comment of the users that are made here, by which they are known again."""
LINGER = Path("/var/lib/systemd/linger")
"""Has a file for each user whose own services run while they are not logged in."""


class Installed(NamedTuple):
    """A service's unit, by its name; `own` in the systemd of a person, else of the machine."""

    kind: str
    own: bool

    @property
    def unit(self) -> str:
        return f"grid-{self.kind}.service"

    @property
    def path(self) -> Path:
        if not self.own:
            return Path(MACHINE) / self.unit
        return config_home() / OWN / self.unit

    @property
    def words(self) -> list[str]:
        """`--user` where that is so, for commands."""
        return ["--user"] if self.own else []

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`systemctl …`, to its end."""
        return _run("systemctl", *self.words, "--no-pager", *words)

    def must(self, *words: str) -> None:
        """The same. Raises GridError where it fails."""
        if (done := self.run(*words)).returncode != 0:
            raise GridError(f"systemctl {' '.join(words)} failed", why=_last(done.stderr))

    def shown(self, *names: str) -> dict[str, str]:
        """Properties of the unit, as systemd tells them."""
        done = self.run("show", self.unit, *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def active(self) -> bool:
        return self.shown("ActiveState").get("ActiveState") in ("active", "reloading")


class Change(NamedTuple):
    """The result of an installation: the unit was `written` and the service `started`, or there was nothing to do."""

    written: bool
    started: bool


def installed(kind: str, own: bool) -> Installed | None:
    """Return the installed service, if any; without `own` the machine's comes before the user's."""
    for one in [Installed(kind, True)] if own else [Installed(kind, False), Installed(kind, True)]:
        if one.path.exists():
            require_systemd(one.own)
            return one
    return None


def find(kind: str, own: bool) -> Installed:
    """Return the installed service. Raises GridError if there is none."""
    if (found := installed(kind, own)) is not None:
        return found
    raise GridError(
        f"no {kind} is installed as a service" + (" of yours" if own else ""),
        why=f"there is no {Installed(kind, own).path}",
        hint=f"grid {kind} install" + (" --user" if own else ""),
    )


# --- before -----------------------------------------------------------------------------------------------------------


def require_systemd(own: bool) -> None:
    """Raise GridError where no systemd runs, or a person's own cannot be reached."""
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemctl") is None:
        raise GridError(
            "there is no service to install into: systemd does not run on this machine",
            why="/run/systemd/system is not there",
            hint="have what starts services here run `grid agent run` (or `grid coordinator run`) as one that it keeps"
            " alive; SIGTERM ends it and no job",
        )
    if not own:
        return
    runtime = Path(os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"))
    if not (runtime / "systemd").is_dir():
        raise GridError(
            "your own systemd does not run",
            why=f"there is no {runtime / 'systemd'}",
            hint=f"log in as {me()} (su and sudo make no session), or: sudo loginctl enable-linger {me()}",
        )


def require_root(kind: str, what: str) -> None:
    """Raise GridError where this user cannot change the machine's services."""
    if os.geteuid() != 0:
        raise GridError(
            f"only root can {what} a service of the machine",
            why=f"you are {me()}",
            hint=f"sudo {shutil.which('grid') or 'grid'} {kind} {what}, or with --user one of your own",
        )


def make_user(name: str, home: Path) -> None:
    """See to it that there is this system user, for a service to run as. Raises GridError."""
    try:
        pwd.getpwnam(name)
        return
    except KeyError:
        pass
    for argv in (
        ["systemd-sysusers", "--inline", f'u {name} - "{ACCOUNT}" {home}'],
        ["useradd", "--system", "--comment", ACCOUNT, "--home-dir", str(home), "--shell", "/usr/sbin/nologin", name],
    ):
        if shutil.which(argv[0]) is not None and _run(*argv).returncode == 0:
            return
    raise GridError(
        f"the user {name}, who the service is to run as, could not be made", hint=f"make it: useradd --system {name}"
    )


def made_here(name: str) -> bool:
    """Whether this user was made by `make_user`, for a service alone."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return False
    return found.pw_gecos.split(",")[0] == ACCOUNT and found.pw_uid != 0


def remove_user(name: str) -> str:
    """Remove a user that `install` made and that no service runs as any more. Returns why it is kept; empty: it is
    removed."""
    if not made_here(name):
        return "it was not made by the grid"
    others = (Installed(kind, False) for kind in ("agent", "coordinator"))
    if using := [at.unit for at in others if at.path.exists() and user_of(at) == name]:
        return f"{using[0]} runs as it"
    if shutil.which("userdel") is None:
        return "there is no userdel here"
    until = time.monotonic() + LEAVE_SECONDS  # what a service started may take a moment to end
    while (done := _run("userdel", name)).returncode == USER_IN_USE and time.monotonic() < until:
        time.sleep(0.2)
    return _last(done.stderr) or f"userdel exits with {done.returncode}" if done.returncode else ""


def check_runs(argv: Sequence[str], user: str) -> None:
    """Raise GridError where this user cannot run the program."""
    found = pwd.getpwnam(user)
    try:
        done = subprocess.run(
            [*argv, "--version"],
            user=found.pw_uid,
            group=found.pw_gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        why = _last(done.stderr) if done.returncode else ""
    except OSError as error:
        why = f"{argv[0]}: {error.strerror} (its Python is {os.path.realpath(sys.executable)})"
    if why:
        raise GridError(
            f"the user {user}, who the service runs as, cannot run this grid",
            why=why,
            hint="install it where all can read it, such as /usr/local/lib/grid; or --user for one of your own",
        )


def give(user: str, path: Path) -> None:
    """Make the directory, and this user the owner of it and what is in it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = pwd.getpwnam(user)
    if path.stat().st_uid != found.pw_uid:
        for top, folders, names in os.walk(path):
            for name in (".", *folders, *names):
                os.chown(os.path.join(top, name), found.pw_uid, found.pw_gid, follow_symlinks=False)


# --- installing -------------------------------------------------------------------------------------------------------


def install(unit: Unit) -> Change:
    """Write the unit, check it, enable it and restart it; steps that are done already are skipped. If it does not
    start, the earlier state is restored. Raises GridError."""
    at = Installed(unit.kind, not unit.runs_as)
    text = render(unit)
    before = at.path.read_text() if at.path.exists() else None
    if before == text and at.run("is-enabled", at.unit).returncode == 0 and at.active():
        return Change(False, False)
    check(at, text)
    at.path.parent.mkdir(parents=True, exist_ok=True)
    _write(at.path, text)
    try:
        at.must("daemon-reload")
        at.must("enable", "--quiet", at.unit)
        _start(at)
    except GridError:
        if before is None:
            remove(at)
        else:
            _write(at.path, before)
            at.run("daemon-reload")
            at.run("restart", "--no-block", at.unit)
        raise
    return Change(before != text, True)


def check(at: Installed, text: str) -> None:
    """Raise GridError where systemd finds a fault in the unit. What it merely does not know yet is not one."""
    if shutil.which("systemd-analyze") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / at.unit
        path.write_text(text)
        done = _run("systemd-analyze", *at.words, "verify", str(path))
    if done.returncode != 0:
        raise GridError(f"systemd finds a fault in {at.unit}", why=_last(done.stderr))


def _start(at: Installed) -> None:
    since = int(time.time())
    done = at.run("restart", at.unit)
    if done.returncode == 0:
        return
    raise GridError(
        f"{at.unit} does not start; nothing was left changed",
        why=last_words(at, "--since", f"@{since}") or _last(done.stderr),
        hint="put that right and install again",
    )


def last_words(at: Installed, *since: str) -> str:
    """Return the last output of its processes, on one line; empty if that cannot be read. `since`: options of
    journalctl."""
    if shutil.which("journalctl") is None:
        return ""
    # By --unit there is what systemd says of it, too.
    field = "_SYSTEMD_USER_UNIT" if at.own else "_SYSTEMD_UNIT"
    said = _run("journalctl", *at.words, f"{field}={at.unit}", *since, "-o", "cat", "--no-pager")
    return reason(said.stdout, at.unit)


def reason(log: str, unit: str) -> str:
    """Why a service does not start, on one line: the last lines of its log, without what systemd says of the unit."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and unit not in line]
    return "; ".join(dict.fromkeys(lines[-6:])).removeprefix("error: ")


def remove(at: Installed) -> None:
    """Stop and forget it. Raises GridError where it cannot be stopped."""
    at.run("disable", "--quiet", at.unit)
    at.must("stop", at.unit)
    at.path.unlink(missing_ok=True)
    at.run("daemon-reload")
    at.run("reset-failed", at.unit)


def state_dir_of(at: Installed) -> Path | None:
    """Return the state directory of the service, according to its unit."""
    text = option_of(at, "--state-dir")
    return Path(text) if text else None


def option_of(at: Installed, option: str) -> str:
    """Return the value that the unit gives this option; empty: none, or the unit cannot be read."""
    try:
        lines = at.path.read_text().splitlines()
    except OSError:
        return ""
    argv = next((unquoted(line.partition("=")[2]) for line in lines if line.startswith("ExecStart=")), [])
    return argv[argv.index(option) + 1] if option in argv[:-1] else ""


def user_of(at: Installed) -> str:
    """The user that a service of the machine runs as, as its unit says; empty: root."""
    for line in at.path.read_text().splitlines():
        if line.startswith("User="):
            return line.partition("=")[2]
    return ""


def lingers() -> bool:
    """Whether one's own services run while one is not logged in; where they do not, that is asked for."""
    mark = LINGER / me()
    if not mark.exists():
        _run("loginctl", "enable-linger")
    return mark.exists()


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    os.replace(fresh, path)


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)


def _last(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def me() -> str:
    """Return the user who runs this."""
    return getpass.getuser()
