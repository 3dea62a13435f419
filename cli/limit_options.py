"""The options of `grid run-shared` that limit a job, beside what it asks for."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distributed_grid.protocol.durations import format_duration
from distributed_grid.protocol.limits import SIGNALS, JobLimits, parse_limits

F = TypeVar("F", bound=Callable[..., Any])


def limit_options(command: F) -> F:
    """Add them to a command."""
    for option in reversed(
        [
            click.option("--warn-signal", metavar="SIG@TIME", help="Send it a signal before --time ends it: USR1@60."),
            click.option(
                "--cpu-limit", is_flag=True, help="Never more CPU time than granted, also where more is idle."
            ),
            click.option("--pids-limit", type=int, metavar="N", help="Processes and threads it may have at once."),
            click.option("--retry-memory", metavar="FACTOR", help="If out of memory, run it again with more: 2x."),
        ]
    ):
        command = option(command)
    return command


def limits_of(options: dict[str, Any], time_limit: float) -> JobLimits:
    """What they say. Raises BadValue."""
    return parse_limits(options["warn_signal"], options["pids_limit"], options["cpu_limit"], time_limit=time_limit)


def limits_words(limits: JobLimits) -> str:
    """They in words; empty where there are none."""
    said = []
    if limits.warn_signal:
        name = next(name for name, number in SIGNALS.items() if number == limits.warn_signal)
        said.append(f"SIG{name} {format_duration(limits.warn_before)} before the time limit")
    if limits.pids:
        said.append(f"{limits.pids} processes and threads")
    if limits.cpu:
        said.append("no more CPU time than granted")
    return " · ".join(said)
