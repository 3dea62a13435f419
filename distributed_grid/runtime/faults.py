"""Fault points: places on the path of a job where a test makes a disk, a socket or a process fail.

GRID_FAULTS lists the faults, comma separated: `NAME:NTH:ACTION[=SECONDS]`, such as `coordinator.commit:3:kill`. NTH
counts the passes in this process from 1: `3` that one, `3+` it and all later ones, `3-9` these. A point is a function
that syncs, commits, sends or forks; `NAME` is before it and `NAME.after` once it has returned. Actions:

    kill      this process is killed, as by kill -9
    eio       the call fails with EIO; `enospc`, `erofs` alike
    delay=S   the call takes S seconds longer
    drop      the call is not made, and its caller does not notice

Each fault prints a line on stderr when it happens. Without GRID_FAULTS a point is the function itself, without any
overhead. Stdlib only, since the supervisor has points as well.
"""

import errno
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

POINTS: dict[str, str] = {
    "coordinator.epoch": "the new epoch is committed, before the first listen",
    "coordinator.commit": "a batch of records is committed",
    "coordinator.perform": "a batch of commands is performed, after its commit",
    "coordinator.send": "a frame is written to an agent",
    "coordinator.reply": "a frame is written to a client",
    "coordinator.blob": "a shipped blob is synced",
    "agent.epoch": "the newest epoch seen is written",
    "agent.folder": "an allocation's folder is made",
    "agent.launch": "an order is written to the supervisor",
    "agent.send": "a frame is written to the coordinator",
    "supervisor.write": "records are written to the journal",
    "supervisor.sync": "the journal is synced",
    "supervisor.rewrite": "the journal is replaced by a new one",
    "supervisor.spawn": "a job's process is made",
    "supervisor.tell": "what happened is written to the agent",
}
"""Every point, with what happens there."""

_ERRORS = {"eio": errno.EIO, "enospc": errno.ENOSPC, "erofs": errno.EROFS}
ACTIONS = ("kill", *_ERRORS, "delay", "drop")
_NTH = re.compile(r"([1-9]\d*)(\+|-([1-9]\d*))?")


class Fault(NamedTuple):
    """The effect at a fault point on its passes from `first` to `last`."""

    first: int
    last: float
    action: str
    seconds: float


class BadFaults(ValueError):
    """GRID_FAULTS does not say what it may say."""


def parse(text: str) -> dict[str, list[Fault]]:
    """Parse GRID_FAULTS, by point. Raises BadFaults."""
    asked: dict[str, list[Fault]] = {}
    known = [name + end for name in POINTS for end in ("", ".after")]
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, nth, action = (part.split(":") + ["", ""])[:3]
        action, _, seconds = action.partition("=")
        if name not in known:
            from difflib import get_close_matches  # a tenth of a supervisor's start, and needed for a mistake alone

            near = get_close_matches(name, known, 1)
            raise BadFaults(f"{part!r}: there is no fault point {name!r}" + (f"; is it {near[0]}?" if near else ""))
        times = _NTH.fullmatch(nth)
        if times is None:
            raise BadFaults(f"{part!r}: which pass? give a number from 1, such as 3, 3+ or 3-9")
        if action not in ACTIONS or (action == "delay") != bool(seconds):
            raise BadFaults(f"{part!r}: the action is one of {', '.join(ACTIONS)}, delay with =SECONDS")
        if name.endswith(".after") and action not in ("kill", "delay"):
            raise BadFaults(f"{part!r}: what has been done can only be followed by kill or delay")
        first = int(times[1])
        last = float("inf") if times[2] == "+" else float(times[3] or first)
        try:
            asked.setdefault(name, []).append(Fault(first, last, action, float(seconds or 0)))
        except ValueError:
            raise BadFaults(f"{part!r}: {seconds!r} is not a number of seconds") from None
    return asked


def _asked() -> dict[str, list[Fault]]:
    try:
        return parse(os.environ.get("GRID_FAULTS", ""))
    except BadFaults as error:
        sys.exit(f"error: GRID_FAULTS: {error}")


_ASKED = _asked()


def fault(name: str, error: Callable[[OSError], Exception] | None = None) -> Callable[[F], F]:
    """Make the decorated function a fault point; `error` turns an OSError into what the function raises by itself."""
    if name not in POINTS:
        raise KeyError(f"{name} is not in POINTS")
    before, after = _ASKED.get(name, []), _ASKED.get(f"{name}.after", [])

    def decorate(function: F) -> F:
        return _faulty(name, function, before, after, error) if before or after else function  # type: ignore[return-value]

    return decorate


def _faulty(
    name: str,
    function: Callable[..., Any],
    before: list[Fault],
    after: list[Fault],
    error: Callable[[OSError], Exception] | None,
) -> Callable[..., Any]:
    passes = 0

    @functools.wraps(function)
    def faulty(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        mine = passes
        for one in before:
            if one.first <= mine <= one.last and _act(f"{name}:{mine}", one, error):
                return None
        result = function(*args, **kwargs)
        for one in after:
            if one.first <= mine <= one.last:
                _act(f"{name}.after:{mine}", one, error)
        return result

    return faulty


def _act(where: str, one: Fault, error: Callable[[OSError], Exception] | None) -> bool:
    """Carry out a fault. Returns whether the call is to be left out."""
    os.write(2, f"GRID_FAULTS {where}:{one.action}\n".encode())
    if one.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif one.action == "delay":
        time.sleep(one.seconds)
    elif one.action in _ERRORS:
        number = _ERRORS[one.action]
        failed = OSError(number, f"{os.strerror(number)} (GRID_FAULTS)")
        raise error(failed) if error is not None else failed
    return one.action == "drop"
