"""The agent's process: settings to a running service and an exit code."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from distributed_grid import __version__
from distributed_grid.agent.core.spare import Limits, describe
from distributed_grid.agent.gpus import open_backend
from distributed_grid.agent.launcher import Launcher
from distributed_grid.agent.probe import Probe, kin_roots
from distributed_grid.agent.runtime import Place, Runtime
from distributed_grid.agent.supervisor_procs import become_subreaper
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import GpuFacts, NodeFacts, Offer, Sample
from distributed_grid.protocol.resources import format_bytes

__all__ = ["AgentSettings", "Limits", "detect", "gpus", "main"]

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How to run an agent. `cores` None: all this process may use; `memory` bytes to manage (0: all there is); `gpus`
    by UUID or index (empty: all); `kin`: a directory whose subdirectories belong to sibling agents; `interval` seconds
    between measurements."""

    name: str
    state_dir: Path
    coordinator: str = "ws://127.0.0.1:7433"
    cores: tuple[int, ...] | None = None
    memory: int = 0
    gpus: tuple[str, ...] = ()
    gpu_backend: str = "auto"
    virtual: bool = False
    kin: Path | None = None
    interval: float = 2.0
    limits: Limits = field(default_factory=Limits)
    labels: dict[str, str] = field(default_factory=dict)
    priority: float = 1.0
    log_level: str = "info"


def main(settings: AgentSettings) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Jobs go on without the agent. Errors a person can act on go to
    stderr, in three lines."""
    _configure_logs(settings.log_level)
    try:
        _prepare(settings.state_dir)
        with _locked(settings.state_dir), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(settings))
    except GridError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return 1
    return 0


def detect(settings: AgentSettings) -> tuple[NodeFacts, Sample, Offer]:
    """What this machine has, how it is used now, and what an agent with these settings would offer and why not more.
    Needs neither a coordinator nor a state directory. Raises GridError."""
    probe = _probe(settings, tuple, settings.state_dir if settings.state_dir.exists() else Path("/"))
    facts = probe.facts(settings.name, 0, settings.limits, settings.labels, __version__, settings.priority)
    probe.sample()
    # The first figures of CPU use are worth nothing: they are over no time at all.
    time.sleep(0.6)
    sample = probe.sample()
    return facts, sample, describe(settings.limits, facts, sample)


def gpus(backend: str = "auto") -> tuple[GpuFacts, ...]:
    """The GPUs of this machine."""
    return open_backend(backend).facts()


# --- before running ---------------------------------------------------------------------------------------------------


def _prepare(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = state_dir / f".write-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise GridError(
            f"the state directory {state_dir} cannot be written",
            why=error.strerror or str(error),
            hint="give another one with --state-dir, or make this one yours",
        ) from None


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Hold the directory's lock: one agent per state. The kernel lets go of it whatever becomes of us."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
            raise GridError(
                f"another agent runs on {state_dir}",
                why=f"its process is {holder}" if holder else "it holds the lock",
                hint="use that one, stop it first, or give this one another --state-dir and --name",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _configure_logs(level: str) -> None:
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    tty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not tty),
            *([] if tty else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _probe(settings: AgentSettings, own_roots: Callable[[], Iterable[int]], state_dir: Path) -> Probe:
    kin = settings.kin
    return Probe(
        settings.cores,
        settings.memory,
        open_backend(settings.gpu_backend, settings.gpus),
        settings.virtual,
        own_roots,
        (lambda: kin_roots(kin)) if kin is not None else tuple,
        state_dir,
    )


def _facts(settings: AgentSettings, probe: Probe) -> NodeFacts:
    """This life's facts: one incarnation on from the last."""
    state_dir = settings.state_dir
    incarnation = 1
    with contextlib.suppress(OSError, ValueError):
        incarnation = int((state_dir / "incarnation").read_text()) + 1
    _write(state_dir / "incarnation", f"{incarnation}\n")
    facts = probe.facts(settings.name, incarnation, settings.limits, settings.labels, __version__, settings.priority)
    return msgspec.structs.replace(facts, instance=_instance(state_dir))


def _instance(state_dir: Path) -> str:
    path = state_dir / "instance"
    with contextlib.suppress(OSError):
        if known := path.read_text().strip():
            return known
    _write(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()


def _write(path: Path, content: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(content)
    os.replace(fresh, path)


def _start_ticks() -> int:
    """When this process began, as /proc tells it: with the pid it is a name that is not used twice."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


# --- running ----------------------------------------------------------------------------------------------------------


async def _run(settings: AgentSettings) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _adopt_orphans()
    _write(settings.state_dir / "agent.pid", json.dumps({"pid": os.getpid(), "start": _start_ticks()}) + "\n")
    runtimes: list[Runtime] = []
    launcher = Launcher(
        settings.state_dir, settings.name, lambda told: runtimes[0].told(told), log=lambda text: log.warning(text)
    )
    # A driver may take its time to answer, and nothing waits for it here but the start.
    probe = await asyncio.to_thread(_probe, settings, lambda: _own(launcher), settings.state_dir)
    facts = _facts(settings, probe)
    place = Place(settings.coordinator, settings.state_dir, settings.interval)
    runtime = Runtime(place, facts, settings.limits, probe, launcher)
    runtimes.append(runtime)
    running = asyncio.create_task(runtime.run(lambda: _ready(settings, facts, probe)))
    watchdog = asyncio.create_task(_feed_watchdog())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    _sd_notify("STOPPING=1")
    for task in (running, watchdog, stopping):
        task.cancel()
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
    log.info("stopped; jobs go on")


def _own(launcher: Launcher) -> Iterable[int]:
    return (os.getpid(), launcher.supervisor_pid) if launcher.supervisor_pid else (os.getpid(),)


def _adopt_orphans() -> None:
    """If the supervisor is killed, its jobs become our children: known as ours, and reaped."""
    become_subreaper()

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # Not by the loop, which would keep this signal for itself: nothing else here has children to wait for.
    signal.signal(signal.SIGCHLD, reap)


def _ready(settings: AgentSettings, facts: NodeFacts, probe: Probe) -> None:
    gpus = ", ".join(f"{gpu.model}{' (stand-in)' if gpu.stand_in else ''}" for gpu in facts.gpus)
    log.info(
        f"agent {facts.name} is up",
        coordinator=settings.coordinator,
        cores=_ranges(facts.cores) + (" (virtual)" if facts.virtual else ""),
        memory=format_bytes(facts.memory),
        gpus=gpus or probe.gpus.error or probe.gpus.note or "none",
        lends=str(facts.lendable),
        state_dir=str(settings.state_dir),
        incarnation=facts.incarnation,
    )
    _sd_notify(f"READY=1\nSTATUS=serving {settings.coordinator}")


def _ranges(cores: tuple[int, ...]) -> str:
    """Core numbers as people write them: 0-3,6."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


async def _feed_watchdog() -> None:
    """Show systemd that the loop turns, where it asked for that."""
    micros = os.environ.get("WATCHDOG_USEC", "")
    if not micros.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        _sd_notify("WATCHDOG=1")
        await asyncio.sleep(int(micros) / 2e6)


def _sd_notify(state: str) -> None:
    """Tell systemd, where it asked to be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        try:
            out.sendto(state.encode(), address)
        except OSError as error:
            log.warning("systemd cannot be told", error=str(error))
