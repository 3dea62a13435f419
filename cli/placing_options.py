"""The options that say where a job may and should go, of every command that submits jobs."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distributed_grid.cli.completion_of import nodes
from distributed_grid.protocol.placing import Strategy, parse_placing

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--strategy", metavar="WORD", help=f"How a node is chosen: {', '.join(Strategy)}. The grid has its own."
    ),
    click.option("--only", multiple=True, metavar="NODE", shell_complete=nodes, help="On this node; repeatable."),
    click.option("--exclude", multiple=True, metavar="NODE", shell_complete=nodes, help="Not there; repeatable."),
    click.option(
        "--label", "labels", multiple=True, metavar="K=V", help="On nodes with this label: K=V, K!=V or K; repeatable."
    ),
    click.option("--gpu-model", metavar="NAME", help="GPUs of this model: a part of its name, or a glob."),
    click.option("--gpu-memory", metavar="SIZE", help="Free memory of each GPU, such as 20G; also of a part of one."),
    click.option("--walls", metavar="LEVEL", help="Behind these walls or stronger: user, namespace or landlock."),
    click.option("--near", multiple=True, metavar="JOB", help="Where this job or name of yours is; repeatable."),
    click.option("--apart", multiple=True, metavar="JOB", help="Where this job or name of yours is not; repeatable."),
)


def placing(command: F) -> F:
    """Add these options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def placing_fields(options: dict[str, Any], gpu: int) -> dict[str, Any]:
    """What they say, as fields of a Request for so many milli-GPUs. Raises BadValue."""
    names = ("strategy", "only", "exclude", "labels", "gpu_model", "gpu_memory", "near", "apart", "walls")
    return parse_placing(gpu=gpu, **{name: options[name] for name in names})
