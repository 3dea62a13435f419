"""Options that several commands share: limits of a job, limits of what a node lends, where a job may and should run;
and the help of a command with many options, in sections."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import option
from distributed_grid.cli.lazy import Command
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import SIGNALS, JobLimits
from distributed_grid.protocol.nodes import Lending
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import GIB, parse_memory
from distributed_grid.protocol.text import format_duration

F = TypeVar("F", bound=Callable[..., Any])


def not_empty(text: str) -> str:
    """The type of an option whose text may not be empty, as an unset variable of a script is: it would mean what is
    meant where nothing is given. Raises click.BadParameter."""
    if not text.strip():
        raise click.BadParameter("it is empty; leave it out, or name something")
    return text


def limit_options(command: F) -> F:
    """Add them to a command."""
    for add in reversed(
        [
            option("--warn-signal", metavar="SIG@TIME", help="Send it a signal before --time ends it: USR1@60."),
            option("--cpu-limit", is_flag=True, help="Never more CPU time than granted, even if more is idle."),
            option("--pids-limit", type=int, metavar="N", help="Processes and threads it may have at once."),
            option("--retry-memory", metavar="FACTOR", help="If out of memory, run it again with more: 2x."),
        ]
    ):
        command = add(command)
    return command


def lending_options(command: F) -> F:
    """Add those that say what a node lends at most."""
    for add in reversed(
        [
            option("--cores", type=click.FloatRange(0, 1e9), metavar="N", help="Maximum number of cores to lend."),
            option("--memory", metavar="SIZE", help="Maximum memory to lend, such as 16G."),
            option("--gpus", type=click.IntRange(0, 10_000), metavar="N", help="Maximum number of GPUs to lend."),
            option("--share/--no-share", default=None, help="Lend, or lend nothing."),
        ]
    ):
        command = add(command)
    return command


LENT = {"cores": "max_share_cpu", "memory": "max_share_memory_gb", "gpus": "max_share_gpu", "share": "can_share"}
"""The settings of these options."""


def lending(options: dict[str, Any]) -> Lending:
    """Return the settings of these options. Raises BadValue."""
    if (cores := options["cores"]) is not None and math.isnan(cores):
        raise BadValue("--cores nan is no number of cores", hint="give a number, such as 4 or 0.5")
    given = {LENT[name]: options[name] for name in ("cores", "gpus", "share")}
    if options["memory"] is not None:
        size = options["memory"].strip()
        given["max_share_memory_gb"] = 0.0 if size == "0" else parse_memory(size) / GIB
    return Lending(**given)


def limits_words(limits: JobLimits) -> str:
    """Describe the limits for people; empty if there are none."""
    said = []
    if limits.warn_signal:
        name = next(name for name, number in SIGNALS.items() if number == limits.warn_signal)
        said.append(f"SIG{name} {format_duration(limits.warn_before)} before the time limit")
    if limits.pids:
        said.append(f"{limits.pids} processes and threads")
    if limits.cpu:
        said.append("no more CPU time than granted")
    return " · ".join(said)


_OPTIONS = (
    option("--strategy", metavar="WORD", help=f"How a node is chosen: {', '.join(Strategy)}; default: the grid's."),
    option("--only", multiple=True, metavar="NODE", shell_complete=complete_nodes, help="On this node; repeatable."),
    option(
        "--exclude", multiple=True, metavar="NODE", shell_complete=complete_nodes, help="Not on this node; repeatable."
    ),
    option(
        "--label", "labels", multiple=True, metavar="K=V", help="On nodes with this label: K=V, K!=V or K; repeatable."
    ),
    option("--gpu-model", type=not_empty, metavar="NAME", help="GPUs of this model: a part of its name, or a glob."),
    option("--gpu-memory", metavar="SIZE", help="Free memory of each GPU, such as 20G; also with a fraction of one."),
    option("--walls", metavar="LEVEL", help="With these walls (isolation) or stronger: user, namespace or landlock."),
    option("--near", multiple=True, metavar="JOB", help="On a node where this job of yours runs; repeatable."),
    option("--apart", multiple=True, metavar="JOB", help="On a node where this job of yours does not run; repeatable."),
)


def placing(command: F) -> F:
    """Add these options to a command."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


EVERYWHERE = ("config", "coordinator", "output", "color", "quiet", "verbose", "--help")


class Sectioned(Command):
    """A command whose `sections` say which options stand together, by title and parameter names. Those that every
    command takes come last."""

    sections: Sequence[tuple[str, Sequence[str]]] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them. An option that no section names stands before those of every command."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        left = {
            one.opts[-1] if one.opts[-1] == "--help" else one.name or "": record
            for one in options
            if (record := one.get_help_record(ctx))
        }
        for title, names in self.sections:
            if rows := [left.pop(name) for name in names if name in left]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        common = [name for name in left if name in EVERYWHERE]
        others = [left[name] for name in left if name not in common]
        for title, rows in (("Others", others), ("As everywhere", [left[name] for name in common])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
