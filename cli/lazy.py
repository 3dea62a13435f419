"""A click group that knows its commands by name and imports one only when it is called.

Even `grid --help` imports none: the one-line summaries stand in the table. `tests/cli/test_main.py` compares them
with the help of the commands. The help of every command ends with its examples (examples.py).
"""

from importlib import import_module
from typing import Any, NamedTuple

import click

from distributed_grid.cli.context import COMMON


class Lazy(NamedTuple):
    """Where a command lives (`module:attribute`) and its line in the help of the group."""

    target: str
    summary: str

    def load(self) -> click.Command:
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is not a command")
        return with_common(command)


def with_common(command: click.Command) -> click.Command:
    """The command with the options that every command takes, before its own."""
    command.params[:0] = [one for one in COMMON if one not in command.params]
    return command


class Command(click.Command):
    """A command whose help ends with its examples."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)


def path_of(ctx: click.Context) -> str:
    """The names of this command and of the groups that it is in, below `grid`."""
    names: list[str] = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.insert(0, at.info_name or "")
        at = at.parent
    return " ".join(names)


def write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """The section Examples of a command's help. Lines are not wrapped: they are to be copied."""
    from distributed_grid.cli.examples import EXAMPLES

    if examples := EXAMPLES.get(path_of(ctx)):
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class LazyGroup(click.Group):
    """A group whose commands come from a table of `Lazy` entries, in the order of the table, and behind these from
    decorators. Both take the common options. `sections` are titles and the names below each, in the help."""

    command_class = Command

    def __init__(
        self,
        *args: Any,
        table: dict[str, Lazy] | None = None,
        sections: dict[str, tuple[str, ...]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, context_settings={"help_option_names": ["-h", "--help"]}, **kwargs)
        self.params += COMMON
        self.table = table if table is not None else {}
        self.sections = sections or {}

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(with_common(cmd), name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.table:
            return self.table[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: lazy.summary for name, lazy in self.table.items()}
        rows |= {name: command.get_short_help_str(limit=200) for name, command in self.commands.items()}
        width = max(map(len, rows), default=0)  # the summaries of all sections begin in one column
        for title, names in (self.sections or {"Commands": tuple(rows)}).items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(f"{name:{width}}", rows[name]) for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)
