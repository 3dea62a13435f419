"""Files to the grid and back: a directory goes out as blobs, results come home below the current directory."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from distributed_grid.cli.connection import Connection, Denied
from distributed_grid.cli.invocation import Invocation
from distributed_grid.coordinator.shipping import Bundle, HashCache, ShippingError, scan
from distributed_grid.protocol.bundle import check_path
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import (
    FileData,
    FileEntry,
    Files,
    MissingBlobs,
    PutBlob,
    WantBlobs,
    WantFile,
    WantFiles,
)

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
        except (Denied, FileNotFoundError) as error:
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
    for blob in missing:
        with open(bundle.blobs[blob], "rb") as file:
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


def fetch(invocation: Invocation, connection: Connection, allocation: str, globs: tuple[str, ...], into: Path) -> int:
    """Bring the files of a job's working directory that match into a directory here, keeping their relative paths; how
    many. Raises GridError where one cannot be had, or would be written outside of `into`."""
    files: Files = connection.call(WantFiles(id=connection.number(), allocation=allocation, globs=globs))
    if files.error:
        raise GridError("the results cannot be brought back", why=files.error)
    for entry in files.files:
        _fetch(connection, allocation, entry, _inside(into, entry.path))
    if invocation.verbose:
        invocation.say(f"brought back {len(files.files)} files: {', '.join(entry.path for entry in files.files[:10])}")
    return len(files.files)


def _inside(into: Path, path: str) -> Path:
    """Where a file goes, whose name a node told us: below `into`, also when links here lead elsewhere."""
    check_path(path)
    target = into / path
    root = os.path.realpath(into)
    parent = os.path.realpath(target.parent)
    if os.path.commonpath((root, parent)) != root:
        raise GridError(
            f"{path} is not written",
            why=f"{target.parent} leads out of the current directory, to {parent}",
            hint="remove that link, or run grid in another directory",
        )
    return target


def _fetch(connection: Connection, allocation: str, entry: FileEntry, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=".grid-")
    except OSError as error:
        raise GridError(f"{entry.path} cannot be written here", why=error.strerror or str(error)) from None
    try:
        with open(fd, "wb") as file:
            offset, end = 0, False
            while not end:
                question = WantFile(
                    id=connection.number(), allocation=allocation, path=entry.path, offset=offset, size=PART_BYTES
                )
                answer: FileData = connection.call(question)
                if answer.error:
                    raise GridError(f"{entry.path} cannot be brought back", why=answer.error)
                file.write(answer.data)
                offset, end = offset + len(answer.data), answer.end
            os.fchmod(file.fileno(), entry.mode & 0o777)
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise GridError(f"{entry.path} cannot be written here", why=error.strerror or str(error)) from None
    except BaseException:
        os.unlink(temporary)
        raise
