"""Shell completion: `grid completion` prints a shell's script, and job and node arguments are completed by asking
the coordinator, briefly.
"""

from typing import Any

import click

from distributed_grid.cli.context import Invocation, client
from distributed_grid.cli.lazy import Command

TIMEOUT = 0.3


def complete_jobs(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Ids and names of jobs, and `last`."""
    from distributed_grid.protocol.messages import ListJobs

    found = _ask(lambda number: ListJobs(id=number, ended=True, limit=200))
    words = [word for job in (found.jobs if found else ()) for word in (job.id, job.spec.name) if word]
    return [word for word in dict.fromkeys([*words, "last"]) if word.startswith(incomplete)]


def complete_nodes(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Names of nodes."""
    from distributed_grid.protocol.messages import GetStatus

    found = _ask(lambda number: GetStatus(id=number))
    names = [node.facts.name for node in found.nodes] if found else []
    return [name for name in names if name.startswith(incomplete)]


def _ask(make: Any) -> Any:
    from distributed_grid.protocol.errors import GridError

    try:
        invocation = Invocation()
        seconds = {"connect_seconds": TIMEOUT, "answer_seconds": TIMEOUT}
        with client(invocation.url(), trusts=invocation.trusts(), **seconds) as grid:
            return grid.call(make(grid.number()))
    except (GridError, OSError):
        return None


SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    For bash: put `eval "$(grid completion bash)"` into ~/.bashrc; for zsh the same with zsh into ~/.zshrc; for fish:
    `grid completion fish > ~/.config/fish/completions/grid.fish`.
    """
    from click.shell_completion import get_completion_class

    from distributed_grid.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choice above has only these
    click.echo(kind(main, {}, "grid", "_GRID_COMPLETE").source())
