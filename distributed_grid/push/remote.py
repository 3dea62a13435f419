"""The program that runs on a host for `grid node add` and `grid node remove`. It is sent there as text, with one call
at its end, and the host's own Python reads it from standard input, so that its arguments, secrets included, are on no
command line. It needs that Python (3.11 or newer) and nothing else, and prints its result as one line of JSON. When its
standard input ends, its caller is gone, and it ends with all that it has started except the agent.

Everything is in two places: ROOT, with one environment for each version (`builds/`) and a link to the one in use
(`venv`); and the agent's state directory, as for every agent.
"""

import contextlib
import importlib.util
import json
import os
import platform
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path.home() / ".local/share/grid"
BUILDS = ROOT / "builds"
UNIT = "grid-agent.service"
LINGER = Path("/var/lib/systemd/linger")
LINK = ROOT / "venv"
WHOLE = ".whole"
"""A file in an environment that was made to its end."""
KEPT = 2
"""So many environments stay: the one in use and the one before, from which a supervisor may still run."""
CONNECT_SECONDS = 5.0
START_SECONDS = 60.0
STOP_SECONDS = 15.0
LINGER_SECONDS = 30.0


class Failed(Exception):
    """A step failed: what, why, and what to try."""


def survey(name: str, host: str, port: int) -> dict[str, Any]:
    """Return the state of this host. `name`: of the node, `host` and `port`: the address that it has to reach."""
    hostname = socket.gethostname().partition(".")[0] or "node"
    name = name or _only_node() or hostname
    state = state_dir(name)
    member = _json(state / "identity" / "member.json")
    agent = _agent(state)
    home = Path.home()
    user, service = _user(), kind()
    return {
        "hostname": hostname,
        "name": name,
        "user": user,
        "root": os.geteuid() == 0,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "disk_free": shutil.disk_usage(home).free,
        "service": service,
        "foreign": foreign(service, name),
        "linger": (LINGER / user).exists(),
        "builds": sorted(path.parent.name for path in BUILDS.glob(f"*/{WHOLE}")),
        "current": _current(),
        "grid": str(member.get("grid", "")) if (state / "identity" / "own.crt").is_file() else "",
        "agent": agent,
        "running": _build_of(agent),
        "unreached": _unreached(host, port) if host else "",
        "lacks": next((one for one in ("venv", "ensurepip") if importlib.util.find_spec(one) is None), ""),
        "state_dir": str(state),
        "state_there": state.exists(),
        "home": str(home),
    }


def stage(staged: str) -> str:
    """A folder of this user's alone, for what is copied here."""
    folder = ROOT / staged
    folder.mkdir(mode=0o700, parents=True)
    return str(folder)


def install(staged: str, build: str, index: bool) -> None:
    """Make an environment for this build; what it needs comes from the index of packages that this host's pip uses, or
    without one from what was copied."""
    where = BUILDS / build
    if (where / WHOLE).exists():
        return
    shutil.rmtree(where, ignore_errors=True)
    BUILDS.mkdir(mode=0o700, parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", where], "cannot make an environment")
    own = [str(path) for path in sorted((ROOT / staged).glob("distributed_grid-*.whl"))]
    pip = [where / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    offline: list[Any] = [] if index else ["--no-index", "--find-links", ROOT / staged]
    hint = "see whether that host's pip has an index of packages; for one without: --wheels DIR"
    hint = hint if index else "see what is in the folder of --wheels"
    _run(
        [*pip, *offline, *own],
        "cannot install the grid and what it needs",
        hint,
    )
    _run([where / "bin" / "grid", "--version"], "what was installed does not run")
    (where / WHOLE).touch()


def discard(build: str) -> None:
    """Remove the environment of this build, if there is one."""
    shutil.rmtree(BUILDS / build, ignore_errors=True)
    _tidy()


def unstage(staged: str) -> None:
    """Remove the copied files."""
    shutil.rmtree(ROOT / staged, ignore_errors=True)
    _tidy()


def join(build: str, name: str, invitation: str) -> None:
    """Become a node; an identity from before is put aside until it is known how that goes."""
    identity = state_dir(name) / "identity"
    aside = identity.with_name("identity.before")
    if identity.exists():
        shutil.rmtree(aside, ignore_errors=True)
        identity.rename(aside)
    grid = str(BUILDS / build / "bin" / "grid")
    _run([grid, "agent", "join", "--name", name, "-"], "cannot join the grid", stdin=invitation)


def unjoin(name: str, member: bool, state_there: bool) -> None:
    """Undo `join`, however far that came; `member`: it was a node before; `state_there`: it had a state directory."""
    state = state_dir(name)
    aside = state / "identity.before"
    if aside.exists() or not member:
        shutil.rmtree(state / "identity", ignore_errors=True)
    if aside.exists():
        aside.rename(state / "identity")
    if not state_there:
        shutil.rmtree(state, ignore_errors=True)
        _tidy()


def switch(build: str) -> None:
    """Make this the build in use; none: there is no build in use. Readers see the one or the other at any moment."""
    fresh = LINK.with_name(".venv.new")
    fresh.unlink(missing_ok=True)
    if build:
        fresh.symlink_to(Path("builds") / build)
        fresh.replace(LINK)
    else:
        LINK.unlink(missing_ok=True)
        _tidy()


def start(name: str, service: str, owner: str = "") -> None:
    """Start the agent of the build in use, replacing a running one; jobs go on. Its owners are `owner`, a user of the
    grid, and the user of this process."""
    owners = [
        word for one in dict.fromkeys((owner, pwd.getpwuid(os.geteuid()).pw_name)) if owner for word in ("--owner", one)
    ]
    state = state_dir(name)
    before = _agent(state)
    grid = BUILDS / _current() / "bin" / "grid"
    if service == "none":
        _end(state / "agent.pid", STOP_SECONDS)
        process = detached([grid, "agent", "run", "--name", name, *owners], state)
    else:
        process = None
        _run([grid, "agent", "install", *whose(service), "--name", name, *owners], "its service cannot be installed")
        if before and _agent(state) == before:  # the unit was as it should be
            systemctl(service, "restart", UNIT)
    until = time.monotonic() + START_SECONDS
    while _agent(state) in (0, before):
        if process is not None and process.poll() is not None:
            raise Failed("its agent ended at once", log(name, service))
        if time.monotonic() > until:
            raise Failed(f"its agent is not ready after {START_SECONDS:g} s", log(name, service))
        time.sleep(0.05)


def stop(name: str, service: str) -> None:
    """End the agent and its service, and its supervisor as soon as nothing runs below that."""
    state = state_dir(name)
    grid = BUILDS / _current() / "bin" / "grid"
    if service != "none" and unit(service).exists() and grid.exists():
        _run([grid, "agent", "uninstall", *whose(service)[: service == "user"]], "its service cannot be removed")
    _end(state / "agent.pid", STOP_SECONDS)
    _end(state / "supervisor.pid", STOP_SECONDS, kill=False)


def log(name: str, service: str) -> str:
    """The last lines that its agent said."""
    if service != "none":
        whose = ["--user"] if service == "user" else []
        asked = ["journalctl", *whose, "--unit", UNIT, "--lines", "3", "--output", "cat", "--no-pager"]
        said = subprocess.run(asked, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL).stdout
    else:
        said = ""
        with contextlib.suppress(OSError):
            said = (state_dir(name) / "agent.log").read_text(errors="replace")
    return " | ".join(said.splitlines()[-3:])


def settle(staged: str, build: str, name: str) -> None:
    """Remove what was needed in between only, and builds that are neither in use nor were before."""
    if staged:
        unstage(staged)
    shutil.rmtree(state_dir(name) / "identity.before", ignore_errors=True)
    others = sorted((path for path in BUILDS.iterdir() if path.name != build), key=lambda path: path.stat().st_mtime)
    for path in others[: 1 - KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def remove(name: str) -> None:
    """Remove a node from this host: its identity and state, and the environments unless there is another node."""
    state = state_dir(name)
    shutil.rmtree(state, ignore_errors=True)
    if not any(state.parent.glob("agent-*/identity/own.crt")):
        shutil.rmtree(BUILDS, ignore_errors=True)
        LINK.unlink(missing_ok=True)
    _tidy()


# --- pieces -----------------------------------------------------------------------------------------------------------


def state_dir(name: str) -> Path:
    """Return the default state directory of an agent (`Config.agent_state_dir`)."""
    if os.path.isabs(base := os.environ.get("XDG_STATE_HOME", "")):
        return Path(base) / "grid" / f"agent-{name}"
    below = Path("/var/lib/grid") if os.geteuid() == 0 else Path.home() / ".local/state/grid"
    return below / f"agent-{name}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _only_node() -> str:
    """The name of the one node that this host is for us already; empty: none, or several."""
    found = [path.parts[-3].removeprefix("agent-") for path in state_dir("").parent.glob("agent-*/identity/own.crt")]
    return found[0] if len(found) == 1 and BUILDS.is_dir() else ""


def _unreached(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
    return ""


def _current() -> str:
    try:
        return Path(os.readlink(LINK)).name
    except OSError:
        return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _start_of(pid: int) -> int:
    """Return when a process began; 0: there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _living(path: Path) -> int:
    """The pid in a pid file, where that process lives; else 0."""
    record = _json(path)
    pid, begun = record.get("pid", 0), record.get("start", 0)
    return pid if isinstance(pid, int) and pid > 0 and begun and _start_of(pid) == begun else 0


def _agent(state: Path) -> int:
    return _living(state / "agent.pid")


def _build_of(pid: int) -> str:
    """The build that a process was started from."""
    with contextlib.suppress(OSError):
        for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if pid else ():
            path = Path(os.fsdecode(word))
            if BUILDS in path.parents:
                return path.relative_to(BUILDS).parts[0]
    return ""


def _end(path: Path, seconds: float, kill: bool = True) -> None:
    """SIGTERM to the process of a pid file, and with `kill` SIGKILL after some seconds; it can be no stranger."""
    pid = _living(path)
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL) if kill else (signal.SIGTERM,):
            if _living(path) != pid:
                return
            signal.pidfd_send_signal(fd, number)
            if select.select([fd], [], [], seconds)[0]:
                return
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _tidy() -> None:
    """Remove the grid's own folders that are empty."""
    for path in (BUILDS, ROOT):
        with contextlib.suppress(OSError):
            path.rmdir()


def _run(command: list[Any], what: str, hint: str = "", stdin: str = "") -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, errors="replace", cwd="/", env=environment
    )
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise Failed(what, " | ".join(said[-4:]) or f"exit code {done.returncode}", hint)


# --- the service ------------------------------------------------------------------------------------------------------


def kind() -> str:
    """Return what can run the agent: `system` (root's own service), `user` (the user's own), or `none`."""
    if not Path("/run/systemd/system").is_dir():
        return "none"
    if os.geteuid() == 0:
        return "system"
    return "user" if systemctl("user", "show-environment") else "none"


def whose(service: str) -> list[str]:
    """Return the options of `grid agent install` by which the agent, and its jobs, run as the user of this process."""
    return ["--user"] if service == "user" else ["--as", "root"]


def unit(service: str) -> Path:
    """The file that makes it a service."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    own = (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "systemd/user"
    return (own if service == "user" else Path("/etc/systemd/system")) / UNIT


def linger() -> bool:
    """See that our user's services run without a session; whether they do. systemd may allow that to oneself only where
    one sits at the machine."""
    mark = LINGER / _user()
    if not mark.exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            asked = ["loginctl", "enable-linger"]
            subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=LINGER_SECONDS)
    return mark.exists()


def foreign(service: str, name: str) -> str:
    """Return the unit of an agent of another environment, or of another node of this host; empty: there is none."""
    with contextlib.suppress(OSError):
        text = unit(service).read_text() if service != "none" else ""
        if text and not (str(BUILDS) in text and f"--name {name} " in text):
            return str(unit(service))
    return ""


def systemctl(service: str, *words: str) -> bool:
    """`systemctl …`, and whether it did it."""
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")  # sessions of ssh need not have it
    command = ["systemctl", *(["--user"] if service == "user" else []), *words]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def detached(command: list[Any], state: Path) -> "subprocess.Popen[bytes]":
    """A process that outlives us, with its own log."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    with open(state / "agent.log", "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


# --- calls ------------------------------------------------------------------------------------------------------------


def _end_when_left() -> None:
    if not os.read(0, 1):
        os.killpg(0, signal.SIGTERM)


CALLS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        survey, stage, install, discard, unstage, join, unjoin, switch, start, linger, stop, log, settle, remove,
    )
}  # fmt: skip


def main(call: str, arguments: str) -> None:
    """Make one of these calls, with arguments in JSON, and print its result in JSON."""
    with contextlib.suppress(PermissionError):  # the first of a session has a group of its own anyhow
        os.setpgid(0, 0)
    threading.Thread(target=_end_when_left, daemon=True).start()
    try:
        answer: dict[str, Any] = {"done": CALLS[call](**json.loads(arguments))}
    except Failed as error:
        what, why, hint = (*error.args, "", "")[:3]
        answer = {"what": what, "why": why, "hint": hint}
    except OSError as error:
        answer = {"what": f"{call} failed", "why": f"{error.strerror}: {error.filename}", "hint": ""}
    print(json.dumps(answer))
