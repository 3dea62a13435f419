"""A click group that knows its commands by name and imports one only when it is called.

Even `grid --help` imports none: the one-line summaries are in the table `COMMANDS`. `tests/cli/test_main.py` compares
them with the help of the commands. The help of every command ends with its examples (examples.py).
"""

from importlib import import_module
from typing import Any

import click

from distributed_grid.cli.context import COMMON, Option


class Lazy:
    """Where a command lives (`module:attribute`) and its line in the help of the group."""

    def __init__(self, target: str, summary: str) -> None:
        self.target = target
        self.summary = summary

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


def _show_help(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class Light(click.Command):
    """A command for which click does not load its modules for translating texts and finding similar options."""

    _help: click.Option | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """One object for all calls: click compares them."""
        names = self.get_help_option_names(ctx)
        if self._help is None and names and self.add_help_option:
            text = "Show this message and exit."
            self._help = Option(names, is_flag=True, is_eager=True, expose_value=False, help=text, callback=_show_help)
        return self._help

    def make_parser(self, ctx: click.Context) -> Any:
        """Return a parser that tries `-t` as a short option first: click's tries a long one first, and then loads the
        search for similar ones."""
        parser: Any = super().make_parser(ctx)
        match_long = getattr(parser, "_match_long_opt", None)
        if match_long is None:  # of another version of click, which is as good, and slower
            return parser
        shorts, longs = getattr(parser, "_short_opt", ()), getattr(parser, "_long_opt", ())

        def match(opt: str, explicit_value: str | None, state: Any) -> None:
            if opt[:2] in shorts and opt not in longs:
                raise click.NoSuchOption(opt, "it is a short one")
            match_long(opt, explicit_value, state)

        parser._match_long_opt = match
        return parser


class Command(Light):
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


class LazyGroup(Light, click.Group):
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
