"""Help of a command with many options, in sections."""

from collections.abc import Sequence

import click

EVERYWHERE = ("config", "coordinator", "output", "color", "quiet", "verbose", "--help")


class Sectioned(click.Command):
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
