"""Files to the grid and back: a directory goes out as blobs, results come home below the current directory."""

from collections.abc import Callable
from pathlib import Path

from distributed_grid.cli.connection import Connection, Denied
from distributed_grid.cli.context import Invocation
from distributed_grid.coordinator.client.downloads import Download, Folder, NotWritten, Rules, compared, some
from distributed_grid.coordinator.client.shipping import Bundle, HashCache, ShippingError, asked_for, scan
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import FileData, Files, MissingBlobs, PutBlob, WantBlobs, WantFile, WantFiles

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
