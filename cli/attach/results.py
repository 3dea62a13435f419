"""`--get`: the files of a job that come back, and what that says and exits with."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distributed_grid.protocol.errors import GridError

if TYPE_CHECKING:
    from distributed_grid.cli.attach.attached import Attached

GRID_FAILED = 125
C = TypeVar("C", bound=Callable[..., Any])


def get_options(command: C) -> C:
    """Give a command the options about files that come back."""
    executable = click.option("--executable", is_flag=True, help="With --get: keep executable bits.")
    force = click.option(
        "--force", is_flag=True, help="With --get: write over what changed since the job was submitted."
    )
    return force(executable(command))


def here() -> Path:
    """The current directory. Raises GridError where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise GridError("the current directory is not there any more", hint="cd to one that is") from None


def bring_back(
    attached: "Attached", globs: tuple[str, ...], force: bool, executable: bool, code: int, since: float | None = None
) -> int:
    """Fetch results of a job that was started and has ended; the exit code is the job's, unless that says success and
    not all results are there. `since`: when the job was submitted by our clock, where that is known."""
    from distributed_grid.cli.attach.transfer import fetch
    from distributed_grid.cli.connection import ConnectionLost
    from distributed_grid.cli.context import complain
    from distributed_grid.coordinator.client.downloads import Rules, refusal

    invocation, view = attached.invocation, attached.view
    if view is None or view.outcome is None or not view.outcome.started:
        return code
    rules = Rules(min(time.time(), view.submitted) if since is None else since, force, executable)
    try:
        try:
            brought, refused = fetch(invocation, attached.connection, view, globs, here(), rules)
        except ConnectionLost:
            brought, refused = fetch(invocation, invocation.connect_patiently(), view, globs, here(), rules)
        if refused:
            raise GridError(refusal(refused), hint="--force writes over what is here")
        if brought:
            return code
        invocation.say(f"--get {' '.join(globs)} matches no file of the job")
    except ConnectionLost:
        raise
    except GridError as error:
        complain("\n".join(error.lines()))
    return code or GRID_FAILED
