"""Files to the grid and back, and the messages about them: the current directory is shipped, and `--get` brings results
back into it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distributed_grid.cli.context import AWAY_SECONDS, Invocation, option, print_error
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.protocol.errors import BadValue, GridError

if TYPE_CHECKING:
    from distributed_grid.cli.attach.attached import Attached

C = TypeVar("C", bound=Callable[..., Any])


def get_options(command: C) -> C:
    """Give a command the options about files that come back."""
    executable = option("--executable", is_flag=True, help="With --get: keep executable bits.")
    force = option(
        "--force", is_flag=True, help="With --get: overwrite files that changed since the job was submitted."
    )
    return force(executable(command))


def check_globs(globs: tuple[str, ...]) -> None:
    """Raise BadValue for patterns of --get that cannot be asked for, before anything runs."""
    from distributed_grid.protocol.globs import Globs

    Globs(globs)
    for glob in globs:
        try:
            glob.encode()
        except UnicodeEncodeError:
            hint = "write ? for each byte that is not"
            raise BadValue(f"--get {glob!r} cannot be sent", why="patterns must be UTF-8", hint=hint) from None


def here() -> Path:
    """The current directory. Raises GridError where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise GridError("the current directory is not there any more", hint="cd to one that is") from None


def shipping_options(command: C) -> C:
    """Give a command the options about what is shipped."""
    links = option(
        "--links",
        type=click.Choice(["follow", "keep", "skip"]),
        help="Links to outside of the directory: ship their targets, keep the links, or leave them out.",
    )
    secrets = option(
        "--ship-secrets", is_flag=True, help="Also ship files that commonly hold secrets (.env, *.pem, …)."
    )
    return links(secrets(command))


def ship(invocation: Invocation, grid: GridClient, links: str | None = None, secrets: bool = False) -> str:
    """Make the current directory known to the coordinator; the hash for `JobSpec.bundle`. Raises ShippingError."""
    from distributed_grid.coordinator.client import shipping, walk
    from distributed_grid.protocol.bundle import BUNDLE_BYTES

    directory, config = here(), invocation.config()
    rules = walk.rules(config.shipping.ceiling if config is not None else BUNDLE_BYTES, links or "refuse", secrets)
    usual, grid.session.patience = grid.session.patience, AWAY_SECONDS  # what was sent need not be sent again
    try:
        shipped = grid.do(shipping.ship(grid.number, directory, shipping.HashCache(), rules))
    finally:
        grid.session.patience = usual
    bundle = shipped.bundle
    for note in bundle.notes:
        invocation.say(note)
    if invocation.verbose:
        invocation.say(f"shipped {directory}: {bundle.count} entries, {bundle.size} bytes, {shipped.sent} files sent")
    return bundle.hash


def fetch_results(
    attached: "Attached", globs: tuple[str, ...], force: bool, executable: bool, code: int, since: float | None = None
) -> int:
    """Fetch results of a job that was started and has ended; the exit code is the job's, unless that says success and
    not all results are there. `since`: when the job was submitted by our clock, where that is known."""
    from distributed_grid.coordinator.client.downloads import Rules, fetch_files, refusal, some

    invocation, grid, view = attached.invocation, attached.grid, attached.view
    if view is None or view.outcome is None or not view.outcome.started:
        return code
    rules = Rules(min(time.time(), view.submitted) if since is None else since, force, executable)
    grid.session.patience = AWAY_SECONDS
    try:
        fetched = grid.do(fetch_files(view, globs, here(), rules))
        if note := fetched.listed.note():
            invocation.say(note)
        if invocation.verbose:
            listed = [file.path for file in fetched.listed.files]
            invocation.say(f"brought back {len(fetched.paths)} files: {some(listed)}")
        if fetched.refused:
            raise GridError(refusal(fetched.refused), hint="--force writes over what is here")
        if fetched.paths:
            return code
        invocation.say(f"--get {' '.join(globs)} matches no file of the job")
    except GridError as error:
        print_error("\n".join(error.lines()))
    return code or attached.grid_failed
