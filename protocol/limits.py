"""What a job may take at most, beside the resources that it was granted, and how it is told that an end is near."""

from decimal import Decimal, InvalidOperation

import msgspec

from distributed_grid.protocol.durations import parse_duration
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.numbers import Count, Finite
from distributed_grid.protocol.resources import MILLI

SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18, "WINCH": 28}
"""Signals that a program can take as a warning, by their numbers on Linux."""
MOST_PIDS = 1 << 22
NODE_PIDS = 10_000
"""Processes and threads that any job may have on a node whose configuration says nothing else: a raylet of a large node
has thousands."""
MOST_FACTOR = 100 * MILLI


class JobLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """`warn_signal` is sent to the job `warn_before` seconds ahead of its time limit (0: none). `pids` is how many
    processes and threads it may have at once (0: what the node allows). `cpu`: it never gets more CPU time than it was
    granted, also where more is idle."""

    warn_signal: Count = 0
    warn_before: Finite = 0.0
    pids: Count = 0
    cpu: bool = False


def parse_limits(
    warn: str | None = None, pids: int | None = None, cpu: bool = False, *, time_limit: float = 0.0
) -> JobLimits:
    """The limits of a job by what a person says of them. Raises BadValue."""
    signal, before = _warning(warn) if warn is not None else (0, 0.0)
    if pids is not None and pids < 1:
        raise BadValue(f"{pids} processes are too few for any job", hint="give a number from 1 up")
    limits = JobLimits(signal, before, pids or 0, cpu)
    check_limits(limits, time_limit)
    return limits


def check_limits(limits: JobLimits, time_limit: float) -> None:
    """Raises BadValue for what makes no sense together, whoever says it."""
    if limits.pids > MOST_PIDS:
        raise BadValue(f"{limits.pids} processes are more than a machine can have", hint=f"give at most {MOST_PIDS}")
    if not limits.warn_signal and not limits.warn_before:
        return
    if limits.warn_signal not in SIGNALS.values():
        raise BadValue(f"signal {limits.warn_signal} cannot be a warning", hint=f"use one of {', '.join(SIGNALS)}")
    if not time_limit:
        raise BadValue(
            "a warning before which end?", why="the job has no time limit", hint="give one with --time, such as 1h"
        )
    if not 0 < limits.warn_before < time_limit:
        raise BadValue(
            f"a warning {limits.warn_before:g} s before a time limit of {time_limit:g} s cannot be given",
            hint="warn later, or give more time",
        )


def _warning(text: str) -> tuple[int, float]:
    """Of `USR1@60`: SIGUSR1, a minute before."""
    name, at, before = text.partition("@")
    number = SIGNALS.get(name.strip().upper().removeprefix("SIG"))
    if number is None and name.strip().isdecimal():
        number = int(name)
    if number is None or not at:
        names = ", ".join(SIGNALS)
        raise BadValue(f"{text!r} is not a warning", hint=f"write SIGNAL@TIME, as USR1@60, with one of {names}")
    return number, parse_duration(before)


def parse_factor(text: str) -> int:
    """How many times as much: `2x`, `1.5x` or `2`, in thousandths; above 1 and up to 100. Raises BadValue."""
    try:
        number = Decimal(text.strip().lower().removesuffix("x"))
    except InvalidOperation:
        raise BadValue(f"{text!r} is not a factor", hint="write it as 2x or 1.5x") from None
    if not number.is_finite() or not 1 < number <= MOST_FACTOR // MILLI:
        raise BadValue(f"the factor {text} cannot be used", why="it must be above 1 and at most 100", hint="try 2x")
    return int(number * MILLI)
