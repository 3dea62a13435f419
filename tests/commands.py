"""Commands as people type them: taken apart, and tried on the parser of `grid` without being run."""

import shlex

import click

from distributed_grid.cli.main import main as grid


def words_of(line: str) -> list[str]:
    """The words of the first command of a line: up to a pipe, a redirection or the next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    words = list(lexer)
    until = next((at for at, word in enumerate(words) if set(word) <= set(";&|<>")), len(words))
    return words[:until]


def reached(words: list[str]) -> tuple[click.Context, list[str]]:
    """The command that these words name, behind options of the groups above it, and its own words. Raises
    click.UsageError."""
    command: click.Command = grid
    context, rest = click.Context(grid, info_name="grid"), words[1:]
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(context).parse_args(list(rest))
        if not rest:
            break
        below = command.get_command(context, rest[0])
        if below is None:
            raise click.UsageError(f"{context.command_path} has no {rest[0]}")
        command, context, rest = below, click.Context(below, info_name=rest[0], parent=context), rest[1:]
    return context, rest


def why_refused(words: list[str]) -> str:
    """Why the command line would refuse these words; empty where it takes them."""
    try:
        context, rest = reached(words)
        if not isinstance(context.command, click.Group):
            context.command.make_context(context.info_name, list(rest), parent=context.parent)
    except (click.exceptions.Exit, click.MissingParameter):
        return ""  # a command named in passing, without what it works on
    except click.UsageError as error:
        return error.format_message()
    return ""
