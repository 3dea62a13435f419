"""`grid completion`: the script that teaches a shell our commands, options, nodes and jobs."""

import click

from distributed_grid.cli.context import common

SHELLS = ("bash", "zsh", "fish")


@click.command()
@common
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
