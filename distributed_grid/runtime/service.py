"""What both services need around their work: a state directory of their own, a lock on it, logs, and notifications to
systemd."""

import asyncio
import ctypes
import errno
import fcntl
import io
import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from distributed_grid.protocol.errors import GridError, printable
from distributed_grid.runtime.logs import get_logger, structlog

log = get_logger("service")
_PR_SET_DUMPABLE = 4


_FOREIGN = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def _advice(error: OSError) -> str:
    """Return what to do if a state directory cannot be written for this reason."""
    another = "give another one with --state-dir"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{another}, or make this one yours"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"make room there (df -h, and df -i for the number of files), or {another}"
    return another


def prepare(state_dir: Path, mode: int = 0o700) -> None:
    """Make the state directory with this mode, or use the existing one as it is. Raises GridError if it cannot be
    written, or if a FIFO or device is in the place of a file: opening it would wait for ever."""
    try:
        str(state_dir).encode()
    except UnicodeEncodeError:
        raise GridError(
            f"the state directory {printable(str(state_dir))} cannot be used",
            why="its path is not UTF-8",
            hint="give another one with --state-dir",
        ) from None
    try:
        if not state_dir.is_dir():
            state_dir.mkdir(parents=True)
            state_dir.chmod(mode)
        probe = state_dir / f".write-{os.getpid()}"
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise GridError(
            f"the state directory {state_dir} cannot be written",
            why=error.strerror or str(error),
            hint=_advice(error),
        ) from None
    for path in sorted(state_dir.iterdir()):
        with suppress(OSError):  # gone meanwhile, or a link to nothing: who opens it says what is wrong
            if (kind := _FOREIGN.get(stat.S_IFMT(path.stat().st_mode))) is not None:
                raise GridError(
                    f"{path} is no file",
                    why=f"it is {kind}, and nothing of the grid puts one there",
                    hint="see who did; then remove it (what was to be in it is lost)",
                )


def forbid_dumps() -> None:
    """Keep other processes of this user from reading this process's memory, which has keys, and from stopping it as a
    debugger does; and let it leave no core. Root is not kept from that."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@contextmanager
def locked(state_dir: Path, service: str, hint: str) -> Iterator[None]:
    """Hold the directory's lock: one `service` per state. The kernel lets go of it whatever becomes of us. Raises
    GridError with `hint` if another one has it."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
            raise GridError(
                f"another {service} runs on {state_dir}",
                why=f"its process is {holder}" if holder else "it holds the lock",
                hint=hint,
            ) from None
        with suppress(OSError):  # a courtesy, that may find no room
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


class _Lenient(io.StringIO):
    """A stream for logs that ignores a closed reader (a broken pipe), so that it does not end the service."""

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


def configure_logs(level: str) -> None:
    """Logs to stderr: for people on a terminal, JSON lines elsewhere."""
    # The library's own remarks about peers (garbage instead of a handshake) are not errors of ours.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    tty = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=not tty),
            *([_escape] if tty else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if tty else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_Lenient(sys.stderr)),
    )


def _escape(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape text of peers so that it cannot act on the terminal; JSON has its own escapes."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the service's event loop: uvloop, if it is installed."""
    try:
        import uvloop
    except ImportError:  # not on this platform
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def to_next_second() -> float:
    """Seconds to the next whole second of the running loop's clock, 0.75 to 1.25 on average 1: whatever is done every
    second waits for these, so that an idle process wakes up once for all of it."""
    now = asyncio.get_running_loop().time()
    return (now + 0.25) // 1.0 + 1.0 - now


def write_whole(path: Path, content: str) -> None:
    """Replace a file at once: whoever reads it sees the old or the new."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(content)
    os.replace(fresh, path)


def this_process() -> dict[str, object]:
    """Return this process's pid and its start, as /proc shows it: together an identity that is not used twice."""
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return {"pid": os.getpid(), "start": start}


def announce(path: Path, **more: object) -> None:
    """Write down which process serves here, for clients that look for it."""
    write_whole(path, json.dumps({**more, **this_process()}) + "\n")


async def feed_watchdog() -> None:
    """Show systemd that the loop turns, where it asked for that; for ever."""
    micros = os.environ.get("WATCHDOG_USEC", "")
    if not micros.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        sd_notify("WATCHDOG=1")
        await asyncio.sleep(int(micros) / 2e6)


def sd_notify(state: str) -> None:
    """Notify systemd, if it requested that."""
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


RAYS_OWN = "~/.ray/auth_token"
"""Where Ray itself looks last."""
ANYBODY = 0o007


def find_ray_token(named: str, setting: str) -> Path:
    """The file: the named one, else what `RAY_AUTH_TOKEN_PATH` names, else Ray's own. Ray itself does not say that one
    is missing or empty: it ends its process by an abort. Raises GridError with the setting that could name another."""
    path = Path(named or os.environ.get("RAY_AUTH_TOKEN_PATH") or RAYS_OWN).expanduser()
    try:
        empty, mode = not path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise _unusable(path, setting, error.strerror or str(error)) from None
    if empty:
        raise _unusable(path, setting, "it is empty")
    if named and mode & ANYBODY:  # Ray makes its own one readable to all
        raise GridError(f"the Ray cluster's token in {path} is no secret", "anybody can read it", f"chmod 600 {path}")
    return path


def _unusable(path: Path, setting: str, why: str) -> GridError:
    hint = f"put it there, readable only by its user, or name its file with {setting}"
    return GridError(f"there is no token for the Ray cluster in {path}", why, hint)
