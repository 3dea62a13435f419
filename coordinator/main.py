"""The coordinator's process: settings to a running service and an exit code."""

import asyncio
import errno
import fcntl
import gc
import io
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import structlog

from distributed_grid.coordinator.audit import RequestLog
from distributed_grid.coordinator.blobs import Blobs
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.driver import Clock, Driver, LedgerBroken
from distributed_grid.coordinator.server import LOOPBACK, Server
from distributed_grid.coordinator.store import Store
from distributed_grid.protocol.errors import GridError

EX_SOFTWARE = 70
EX_CONFIG = 78

log = structlog.get_logger("coordinator")


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """How to run a coordinator. `port` 0: any free one, told in `coordinator.json` under the state directory.
    `insecure`: listen on an address that is not loopback, without TLS and without asking who somebody is."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 7433
    insecure: bool = False
    log_level: str = "info"


class CannotStart(GridError):
    """Why the coordinator does not run; `code` is its exit code."""

    def __init__(self, what: str, why: str = "", hint: str = "", code: int = 1) -> None:
        super().__init__(what, why, hint)
        self.code = code


def main(settings: CoordinatorSettings) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Errors a person can act on go to stderr, in three lines."""
    try:
        _check_address(settings)
        _configure_logs(settings.log_level)
        _prepare(settings.state_dir)
        with _locked(settings.state_dir):
            _allow_many_files()
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_run(settings))
        return 0
    except CannotStart as error:
        return _fail(error, error.code)
    except GridError as error:
        return _fail(error, 1)
    except LedgerBroken as error:
        what = "the coordinator stopped: its ledger found itself in an impossible state"
        hint = "start it again (it begins from what is stored) and report the log above"
        return _fail(GridError(what, why=str(error), hint=hint), EX_SOFTWARE)


def _fail(error: GridError, code: int) -> int:
    print("\n".join(error.lines()), file=sys.stderr)
    return code


# --- before listening -------------------------------------------------------------------------------------------------


def _check_address(settings: CoordinatorSettings) -> None:
    if settings.host not in LOOPBACK and not settings.insecure:
        raise CannotStart(
            f"the coordinator does not listen on {settings.host}",
            why="there is no TLS and no authentication yet: whoever reaches it could run commands on every node",
            hint="leave --host at 127.0.0.1, or give --insecure where the network is yours alone",
            code=EX_CONFIG,
        )


def _prepare(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = state_dir / f".write-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"the state directory {state_dir} cannot be written",
            why=error.strerror or str(error),
            hint="give another one with --state-dir, or make this one yours",
        ) from error


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Hold the directory's lock: one coordinator per state. The kernel lets go of it whatever becomes of us."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
            raise CannotStart(
                f"another coordinator runs on {state_dir}",
                why=f"its process is {holder}" if holder else "it holds the lock",
                hint="use that one, stop it first, or give another --state-dir",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _allow_many_files() -> None:
    """A connection is a file: as many as the machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Lenient(io.StringIO):
    """A stream for logs. That nobody reads it any more (a pipe whose reader went) must not end a connection."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _configure_logs(level: str) -> None:
    # The library's own remarks about peers (garbage instead of a handshake) are not errors of ours.
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
        logger_factory=structlog.PrintLoggerFactory(_Lenient(sys.stderr)),
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# --- running ----------------------------------------------------------------------------------------------------------


async def _run(settings: CoordinatorSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = Store(settings.state_dir / "grid.db")
    clock = Clock(store.clock)
    living = store.load()
    ledger = Ledger(store.epoch)
    restored = ledger.restore(living.jobs, living.allocations, living.nodes, clock())
    _spare_the_collector()
    driver = Driver(ledger, store, clock)
    audit = RequestLog(settings.state_dir / "audit.log")
    blobs = Blobs(
        settings.state_dir / "blobs", lambda: (job.spec.bundle for job in ledger.jobs.values() if job.spec.bundle)
    )
    server = Server(ledger, store, driver, blobs, audit, clock)
    driver.begin(server.perform, restored)
    try:
        port = await _listen(server, settings)
        _announce(settings, port, store, len(living.jobs))
        stopping = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, driver.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        _sd_notify("STOPPING=1")
    finally:
        await server.close()
        await driver.close()
        audit.close()
        store.abandon() if driver.failed.done() else store.close()
    if driver.failed.done():
        driver.failed.result()
    log.info("stopped; agents and jobs go on")


def _spare_the_collector() -> None:
    """What is here now stays, and hardly anything here dies in a ring: looking for rings seldom is enough. Looking at
    every 700 new objects, as by default, is most of the time of taking 100,000 jobs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _listen(server: Server, settings: CoordinatorSettings) -> int:
    try:
        return await server.listen(settings.host, settings.port)
    except (OSError, OverflowError) as error:
        address = f"{settings.host}:{settings.port}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"{address} is in use",
                why="another program listens there, perhaps another coordinator",
                hint="give another --port (0 takes any free one), or stop the other program",
            ) from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CannotStart(f"cannot listen on {address}", why=why, hint="give another --host or --port") from None


def _announce(settings: CoordinatorSettings, port: int, store: Store, jobs: int) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"ws://{host}:{port}"
    who: dict[str, object] = {"pid": os.getpid(), "start": _start_ticks()}
    _write(settings.state_dir / "coordinator.pid", who)
    _write(settings.state_dir / "coordinator.json", {"url": url, **who})
    log.info(f"listening on {url}", grid=store.grid, epoch=store.epoch, jobs=jobs, state_dir=str(settings.state_dir))
    if settings.host not in LOOPBACK:
        log.warning("INSECURE: no TLS, no authentication; whoever reaches this address can run commands on every node")
    _sd_notify(f"READY=1\nSTATUS=listening on {url}")


def _write(path: Path, content: dict[str, object]) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(content) + "\n")
    os.replace(new, path)


def _start_ticks() -> int:
    """When this process began, as /proc tells it: with the pid it is a name that is not used twice."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


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
