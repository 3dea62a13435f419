"""`grid config`: the settings in effect and their origins, a check, a file to start from, the schema."""

import sys
from pathlib import Path

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, current, printable
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import GetSettings, NodeSettings
from distributed_grid.protocol.nodes import LENDING


@click.group(cls=LazyGroup)
def config() -> None:
    """Show, check and write configuration."""


@config.command()
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@click.option(
    "--node",
    type=not_empty,
    metavar="NODE",
    shell_complete=complete_nodes,
    help="Those in effect on this node of the grid.",
)
def show(origin: bool, node: str | None) -> None:
    """Show every setting with its value: those of this machine, or those in effect on a node."""
    from distributed_grid.config import render as config_text
    from distributed_grid.config.places import shown

    invocation = current()
    if node is not None:
        _show_node(invocation, invocation.ask(lambda n: GetSettings(id=n, node=node)))
        return
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


def _show_node(invocation: Invocation, answer: NodeSettings) -> None:
    from distributed_grid.config.render import format_value

    settings = answer.settings
    rows = [(name, getattr(settings.values, name), settings.origins.get(name, "default")) for name in LENDING]
    if not answer.connected:
        invocation.say(f"{answer.node} is not connected: these are the grid's settings for it, without its own")
    if answer.closed:
        invocation.say(f"{answer.node} offers nothing now: {answer.closed}")
    items = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
    about = {"node": answer.node, "connected": answer.connected, "closed": answer.closed or None, "settings": items}
    cells = [(name, format_value(value), origin) for name, value, origin in rows]
    table = formatting.table(invocation, ("SETTING", "VALUE", "ORIGIN"), cells)
    quiet = "".join(f"{name}={value}\n" for name, value, _ in cells)
    formatting.show(invocation, about, table, quiet, "settings")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@config.command()
@click.argument("file", required=False, type=not_empty)
def check(file: str | None) -> None:
    """Check the configuration, or FILE, and report all errors."""
    from distributed_grid.config.settings import find, load, places

    invocation = current()
    invocation.failure = 1
    path = find(file or invocation.config_path or None)
    whole = load(path)
    for warning in whole.warnings:
        invocation.say(f"warning: {warning}")
    if names := [node.name for node in whole.nodes]:
        invocation.say(f"whether the grid has these nodes, grid doctor can tell: {', '.join(names)}")
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
    from distributed_grid.config.render import template

    if file == "-":
        formatting.emit(template())
        return
    path = Path(file)
    try:
        with path.open("w" if force else "x") as out:
            out.write(template())
    except FileExistsError:
        raise GridError(f"{file} is there already", hint="give another name, or --force") from None
    except OSError as error:
        raise GridError(f"{file} cannot be written", why=error.strerror or str(error)) from None
    current().say(f"wrote {printable(file)}; check it after editing with: grid config check {printable(file)}")


@config.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    import json

    from distributed_grid.config.render import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=2) + "\n")
