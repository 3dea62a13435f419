"""Files to the grid and back: a directory goes out as blobs, `--get` brings results home below the current directory,
and says what came and exits with what it has to.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distributed_grid.cli.context import Invocation
from distributed_grid.coordinator.client.blocking import Connection, Denied
from distributed_grid.coordinator.client.downloads import Download, Folder, NotWritten, Rules, compared, some
from distributed_grid.coordinator.client.shipping import Bundle, HashCache, ShippingError, asked_for, scan
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import FileData, Files, MissingBlobs, PutBlob, WantBlobs, WantFile, WantFiles

if TYPE_CHECKING:
    from distributed_grid.cli.attach.attached import Attached


ASKED_AT_ONCE = 10_000
TRIES = 3


def ship(invocation: Invocation, connection: Connection, directory: Path) -> str:
    """Make a directory known to the coordinator; the hash for `JobSpec.bundle`. A file that changes between reading
    and sending starts it over. Raises ShippingError."""
    cache = HashCache()
    for attempt in range(TRIES):
        bundle = scan(directory, cache=cache)
        try:
            sent = _send_missing(connection, bundle)
        except (Denied, OSError) as error:
            if isinstance(error, Denied) and error.code != "bad-value":
                why = f"{error.what}: {error.why}" if error.why else error.what
                raise ShippingError(f"{directory} cannot be shipped", why, error.hint) from None
            if attempt == TRIES - 1:
                raise ShippingError(
                    f"{directory} cannot be shipped",
                    why=f"{error}; files in it may be changing all the time",
                    hint="leave them out with a .gridignore, or use --no-ship",
                ) from None
            cache.known.clear()
            continue
        for note in bundle.notes:
            invocation.say(note)
        if invocation.verbose:
            invocation.say(f"shipped {directory}: {bundle.count} entries, {bundle.size} bytes, {sent} files sent")
        return bundle.hash
    raise AssertionError("every attempt returns or raises")  # pragma: no cover


def _send_missing(connection: Connection, bundle: Bundle) -> int:
    hashes = list(bundle.blobs)
    missing: list[str] = []
    for at in range(0, len(hashes), ASKED_AT_ONCE):
        blobs = tuple(hashes[at : at + ASKED_AT_ONCE])
        answer: MissingBlobs = connection.call(WantBlobs(id=connection.number(), blobs=blobs))
        missing += answer.blobs
    missing = asked_for(bundle, missing)
    for blob in missing:
        with bundle.open(blob) as file:
            _put(connection, blob, file.read)
    # Last, so that a manifest is never there without what it names.
    answer = connection.call(WantBlobs(id=connection.number(), blobs=(bundle.hash,)))
    if answer.blobs:
        rest = memoryview(bundle.manifest)

        def read(size: int) -> bytes:
            nonlocal rest
            data, rest = rest[:size], rest[size:]
            return bytes(data)

        _put(connection, bundle.hash, read)
    return len(missing)


def _put(connection: Connection, blob: str, read: Callable[[int], bytes]) -> None:
    number, offset, data = connection.number(), 0, read(PART_BYTES)
    while len(data) == PART_BYTES:
        connection.send(PutBlob(id=number, blob=blob, offset=offset, data=data))
        offset += len(data)
        data = read(PART_BYTES)
    connection.call(PutBlob(id=number, blob=blob, offset=offset, data=data, end=True))


def fetch(
    invocation: Invocation, connection: Connection, view: JobView, globs: tuple[str, ...], into: Path, rules: Rules
) -> tuple[int, list[NotWritten]]:
    """Bring the files of a job's working directory that match into a directory here, keeping their relative paths. How
    many were brought, and those that are not written because of what is here. Raises GridError where one cannot be had,
    or the node answers with what was not asked for."""
    question = WantFiles(id=connection.number(), allocation=view.allocation, globs=globs)
    files: Files = connection.call(question)
    if files.error:
        raise GridError("the results cannot be brought back", why=files.error)
    listed = compared(files, globs, view.node)
    if note := listed.note():
        invocation.say(note)
    refused = []
    with Folder(into) as folder:
        folder.check_room(listed)
        for file in listed.files:
            try:
                _fetch(connection, view, file, folder, rules)
            except NotWritten as error:
                refused.append(error)
    brought = len(listed.files) - len(refused)
    if invocation.verbose:
        invocation.say(f"brought back {brought} files: {some([file.path for file in listed.files])}")
    return brought, refused


def _fetch(connection: Connection, view: JobView, file: Download, folder: Folder, rules: Rules) -> None:
    with folder.begin(file, rules, view.node) as writer:
        while writer.wanted:
            answer: FileData = connection.call(
                WantFile(
                    id=connection.number(),
                    allocation=view.allocation,
                    path=file.entry.path,
                    offset=writer.offset,
                    size=writer.wanted,
                    raw=file.entry.raw,
                )
            )
            writer.take(answer)
        writer.finish()


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
    pass
    from distributed_grid.cli.context import complain
    from distributed_grid.coordinator.client.blocking import ConnectionLost
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
