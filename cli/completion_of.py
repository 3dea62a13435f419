"""What the shell is offered for job and node arguments: asked of the coordinator, within a blink, or nothing."""

from typing import Any

TIMEOUT = 0.3


def jobs(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Ids and names of jobs, and `last`."""
    from distributed_grid.protocol.messages import ListJobs

    found = _ask(lambda number: ListJobs(id=number, ended=True, limit=200))
    words = [word for job in (found.jobs if found else ()) for word in (job.id, job.spec.name) if word]
    return [word for word in dict.fromkeys([*words, "last"]) if word.startswith(incomplete)]


def nodes(ctx: Any, param: Any, incomplete: str) -> list[str]:
    """Names of nodes."""
    from distributed_grid.protocol.messages import GetStatus

    found = _ask(lambda number: GetStatus(id=number))
    names = [node.facts.name for node in found.nodes] if found else []
    return [name for name in names if name.startswith(incomplete)]


def _ask(make: Any) -> Any:
    from distributed_grid.cli.context import Invocation
    from distributed_grid.protocol.errors import GridError

    try:
        from distributed_grid.cli.connection import Connection

        connection = Connection(Invocation().url(), TIMEOUT)
        return connection.call(make(connection.number()), TIMEOUT)
    except (GridError, OSError):
        return None
