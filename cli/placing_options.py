"""The options that say where a job may and should go, of every command that submits jobs."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distributed_grid.protocol.placing import Strategy, parse_strategy

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--strategy", metavar="WORD", help=f"How a node is chosen: {', '.join(Strategy)}. The grid has its own."
    ),
)


def placing(command: F) -> F:
    """Add these options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def placing_fields(options: dict[str, Any]) -> dict[str, Any]:
    """What they say, as fields of a Request. Raises BadValue."""
    strategy = options["strategy"]
    return {"strategy": parse_strategy(strategy) if strategy is not None else None}
