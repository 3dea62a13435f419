"""Files between here and the grid: a directory goes out as blobs, results come back piece by piece."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from distributed_grid.coordinator.client.downloads import Download, Folder, Listed, NotWritten, Rules, refusal
from distributed_grid.coordinator.client.session import ConnectionLost, GridUnavailable, RequestRefused, Session
from distributed_grid.coordinator.client.shipping import Bundle, HashCache, ShippingError, asked_for, scan
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import FileData, MissingBlobs, PutBlob, WantBlobs, WantFile
from distributed_grid.protocol.text import shown

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
        except (RequestRefused, OSError) as error:
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
            await _put(session, blob, lambda: bundle.open(blob))

    try:
        async with asyncio.TaskGroup() as sending:
            for blob in asked_for(bundle, missing):
                sending.create_task(send(blob))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    # Last, so that a manifest is never there without what it names.
    answer = await session.ask(WantBlobs(id=session.number(), blobs=(bundle.hash,)))
    if answer.blobs:
        await _put(session, bundle.hash, bundle.manifest)


async def _put(session: Session, blob: str, source: Callable[[], BinaryIO] | bytes) -> None:
    """Send one blob, from its beginning again where the connection broke."""
    while True:
        try:
            await _put_once(session, blob, source)
            return
        except ConnectionLost:
            await session.ask(WantBlobs(id=session.number(), blobs=()))  # waits until there is a connection again


async def _put_once(session: Session, blob: str, source: Callable[[], BinaryIO] | bytes) -> None:
    number, offset = session.number(), 0
    file = None if isinstance(source, bytes) else await asyncio.to_thread(source)
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


async def fetch_files(session: Session, view: JobView, listed: Listed, into: Path, rules: Rules) -> list[Path]:
    """Write these files of a job's working directory below a directory here; each appears when it is whole. Raises
    GridError, also where some are not written because of what is here: then all others are."""
    paths, refused = [], []
    with await asyncio.to_thread(Folder, into) as folder:
        folder.check_room(listed)
        for file in listed.files:
            try:
                await _fetch(session, view, file, folder, rules)
                paths.append(into / file.path)
            except NotWritten as error:
                refused.append(error)
    if refused:
        raise GridError(refusal(refused), hint="force=True writes over what changed since the job was submitted")
    return paths


async def _fetch(session: Session, view: JobView, file: Download, folder: Folder, rules: Rules) -> None:
    with await asyncio.to_thread(folder.begin, file, rules, view.node) as writer:
        while writer.wanted:
            question = WantFile(
                id=session.number(),
                allocation=view.allocation,
                path=file.entry.path,
                offset=writer.offset,
                size=writer.wanted,
                raw=file.entry.raw,
            )
            answer: FileData = await session.ask(question)
            if answer.error:
                raise GridUnavailable(f"{shown(file.path)} of {view.id} cannot be fetched", why=answer.error)
            await asyncio.to_thread(writer.take, answer)
        await asyncio.to_thread(writer.finish)
