"""Shell completion: `grid completion` prints a shell's script, and job and node arguments are completed by asking
the coordinator, briefly.
"""

import re
from typing import Any

import click

from distributed_grid.cli.context import Invocation, client
from distributed_grid.cli.lazy import Command

TIMEOUT = 0.3
PLAIN = r"[\w@%+=:,./][\w@%+=:,./-]*"
"""What every shell reads as the word that it is: bash inserts what it is offered as it stands, and anybody may name a
job `$(...)`."""


def complete_jobs(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Ids and names of jobs, and `last`."""
    from distributed_grid.protocol.messages import ListJobs

    found = _ask(ctx, lambda number: ListJobs(id=number, ended=True, limit=200))
    words = [word for job in (found.jobs if found else ()) for word in (job.id, job.spec.name)]
    return _plain([*words, "last"], incomplete)


def complete_nodes(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Names of nodes."""
    from distributed_grid.protocol.messages import GetStatus

    found = _ask(ctx, lambda number: GetStatus(id=number))
    return _plain([node.facts.name for node in found.nodes] if found else [], incomplete)


def _plain(words: list[str], incomplete: str) -> list[str]:
    """Return each of the words once that begins like this and can be used in a command line."""
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete) and re.fullmatch(PLAIN, word)]


def _ask(ctx: Any, make: Any) -> Any:
    from distributed_grid.protocol.errors import GridError

    try:
        given = (ctx.find_root().obj if ctx else None) or Invocation()
        invocation = Invocation(config_path=given.config_path, coordinator=given.coordinator, quiet=True)
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
