"""Files between here and the grid: a directory goes out as blobs, results come back piece by piece."""

import asyncio
import os
import tempfile
from pathlib import Path

from distributed_grid.coordinator.client_session import ConnectionLost, GridUnavailable, RequestRefused, Session
from distributed_grid.coordinator.shipping import Bundle, HashCache, ShippingError, scan
from distributed_grid.protocol.bundle import check_path
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import FileData, FileEntry, MissingBlobs, PutBlob, WantBlobs, WantFile

_ASKED_AT_ONCE = 10_000  # blobs in one question
_TRIES = 3
_SENDING = 4  # blobs on their way at the same time


async def ship_directory(session: Session, directory: Path, cache: HashCache) -> Bundle:
    """Make a directory known to the coordinator. A file that changes between reading and sending starts it over."""
    for attempt in range(_TRIES):
        bundle = await asyncio.to_thread(scan, directory, cache=cache)
        try:
            await _send_missing(session, bundle)
            return bundle
        except (RequestRefused, FileNotFoundError) as error:
            cache.known.clear()
            if isinstance(error, RequestRefused) and error.code != "bad-value":
                why = f"{error.what}: {error.why}" if error.why else error.what
                raise ShippingError(f"{directory} cannot be shipped", why, error.hint) from error
            if attempt == _TRIES - 1:
                raise ShippingError(
                    f"{directory} cannot be shipped",
                    why=f"{error}; files in it may be changing all the time",
                    hint="leave them out with a .gridignore, or use --no-ship",
                ) from error
    raise AssertionError("every attempt returns or raises")  # pragma: no cover


async def _send_missing(session: Session, bundle: Bundle) -> None:
    hashes = list(bundle.blobs)
    missing: list[str] = []
    for at in range(0, len(hashes), _ASKED_AT_ONCE):
        question = WantBlobs(id=session.number(), blobs=tuple(hashes[at : at + _ASKED_AT_ONCE]))
        answer: MissingBlobs = await session.ask(question)
        missing += answer.blobs
    slots = asyncio.Semaphore(_SENDING)

    async def send(blob: str) -> None:
        async with slots:
            await _put(session, blob, bundle.blobs[blob])

    try:
        async with asyncio.TaskGroup() as sending:
            for blob in missing:
                sending.create_task(send(blob))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    # Last, so that a manifest is never there without what it names.
    answer = await session.ask(WantBlobs(id=session.number(), blobs=(bundle.hash,)))
    if answer.blobs:
        await _put(session, bundle.hash, bundle.manifest)


async def _put(session: Session, blob: str, source: Path | bytes) -> None:
    """Send one blob, from its beginning again where the connection broke."""
    while True:
        try:
            await _put_once(session, blob, source)
            return
        except ConnectionLost:
            await session.ask(WantBlobs(id=session.number(), blobs=()))  # waits until there is a connection again


async def _put_once(session: Session, blob: str, source: Path | bytes) -> None:
    number, offset = session.number(), 0
    file = None if isinstance(source, bytes) else await asyncio.to_thread(open, source, "rb")
    try:
        while True:
            if file is None:
                assert isinstance(source, bytes)  # noqa: S101
                data = source[offset : offset + PART_BYTES]
                end = offset + len(data) >= len(source)
            else:
                data = await asyncio.to_thread(file.read, PART_BYTES)
                end = len(data) < PART_BYTES
            part = PutBlob(id=number, blob=blob, offset=offset, data=data, end=end)
            if end:
                await session.ask(part, retry=False)
                return
            await session.post(part)
            offset += len(data)
    finally:
        if file is not None:
            file.close()


async def fetch_files(session: Session, view: JobView, files: list[FileEntry], into: Path) -> list[Path]:
    """Write these files of a job's working directory below a directory here; each appears when it is whole."""
    paths = []
    for entry in files:
        check_path(entry.path)
        path = into / entry.path
        await _fetch(session, view, entry, path)
        paths.append(path)
    return paths


async def _fetch(session: Session, view: JobView, entry: FileEntry, path: Path) -> None:
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    fd, temporary = await asyncio.to_thread(tempfile.mkstemp, dir=path.parent, prefix=".grid-")
    try:
        offset, end = 0, False
        while not end:
            question = WantFile(
                id=session.number(), allocation=view.allocation, path=entry.path, offset=offset, size=PART_BYTES
            )
            answer: FileData = await session.ask(question)
            if answer.error:
                raise GridUnavailable(f"{entry.path} of {view.id} cannot be fetched", why=answer.error)
            await asyncio.to_thread(_write_all, fd, answer.data)
            offset, end = offset + len(answer.data), answer.end
        os.fchmod(fd, entry.mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
