"""`grid config`: what is set and where that comes from, a check, a file to start from, the schema."""

import sys
from pathlib import Path

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import current, printable
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.protocol.errors import GridError


@click.group(cls=LazyGroup)
def config() -> None:
    """Show, check and write configuration."""


@config.command()
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
def show(origin: bool) -> None:
    """Show every setting with its value."""
    from distributed_grid.config import schema as config_text
    from distributed_grid.config.places import shown

    invocation = current()
    flags = {"coordinator.url": invocation.coordinator} if invocation.coordinator else {}
    whole = invocation.whole_config(flags)
    if whole.path is not None and not invocation.verbose:
        invocation.say(f"configuration: {shown(whole.path)}")
    rows = whole.rows()
    match invocation.output:
        case "json" | "jsonl":
            items = [{"name": row.name, "value": _plain(row.value), "origin": row.origin} for row in rows]
            formatting.emit_json(invocation, {"file": str(whole.path or ""), "settings": items}, rows="settings")
        case "quiet":
            formatting.emit("".join(f"{row.name}={config_text.format_value(row.value)}\n" for row in rows))
        case _:
            header = ("SETTING", "VALUE", "ORIGIN") if origin else ("SETTING", "VALUE")
            cells = [(row.name, config_text.format_value(row.value), row.origin)[: len(header)] for row in rows]
            formatting.emit(formatting.table(invocation, header, cells))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@config.command()
@click.argument("file", required=False)
def check(file: str | None) -> None:
    """Check the configuration, or FILE, and report all errors."""
    from distributed_grid.config.settings import find, load, places

    invocation = current()
    invocation.failure = 1
    path = find(file or invocation.config_path or None)
    whole = load(path)
    for warning in whole.warnings:
        invocation.say(f"warning: {warning}")
    if path is None:
        looked = ", ".join(str(place) for place in places())
        invocation.say(f"there is no configuration file, so every setting has its default (looked for {looked})")
    else:
        invocation.say(f"{path} is good")


@config.command()
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.argument("file", default="grid.yaml")
def init(force: bool, file: str) -> None:
    """Write a commented file to start from: FILE (grid.yaml), or - for stdout."""
    from distributed_grid.config.schema import template as text

    if file == "-":
        formatting.emit(text())
        return
    path = Path(file)
    try:
        with path.open("w" if force else "x") as out:
            out.write(text())
    except FileExistsError:
        raise GridError(f"{file} is there already", hint="give another name, or --force") from None
    except OSError as error:
        raise GridError(f"{file} cannot be written", why=error.strerror or str(error)) from None
    current().say(f"wrote {printable(file)}; check it after editing with: grid config check {printable(file)}")


@config.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    import json

    from distributed_grid.config.schema import json_schema as make

    sys.stdout.write(json.dumps(make(), indent=2) + "\n")
