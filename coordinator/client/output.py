"""What comes back from a job and what goes there: its output piece by piece, its result, and files."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from distributed_grid.coordinator.client.downloads import Download, Folder, Listed, NotWritten, Rules, refusal
from distributed_grid.coordinator.client.session import (
    ConnectionLost,
    GridUnavailable,
    RequestRefused,
    Session,
    Watches,
)
from distributed_grid.coordinator.client.shipping import Bundle, HashCache, ShippingError, asked_for, scan
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobView, Outcome, State, exit_status, next_attempt
from distributed_grid.protocol.messages import FileData, MissingBlobs, Output, PutBlob, WantBlobs, WantFile, WantOutput
from distributed_grid.protocol.text import shown

STREAMS = ("stdout", "stderr")
KEPT_BYTES = 16 << 20
"""How much of each stream a result carries: the last bytes."""
_POLL = 20.0  # seconds the node holds a question back until there is output
_EMPTY = 0.05  # seconds before a node that had nothing is asked again
_PAUSE = 0.5  # seconds before a node that could not answer is asked again
_TRIES = 20  # how often an ended job's node is asked before its output counts as out of reach


@dataclass(frozen=True)
class JobResult:
    """How a job ended. `exit_code` is what `grid run-shared` would exit with: the job's own, 128+N for signal N, 124
    for the time limit, 126 and 127 for a command that cannot be run or found, 75 for not placed, 125 where the grid
    failed.

    `stdout` and `stderr` are text (UTF-8, what is no text replaced); the bytes are beside them. Of more than 16 MiB a
    stream the last are here, and `truncated` says so. `output_error` says why output is missing, if it is.
    """

    job_id: str
    name: str
    success: bool
    exit_code: int
    signal: int
    cause: str
    text: str
    node: str
    seconds: float
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    truncated: bool
    output_error: str
    job: JobView = field(repr=False)

    @property
    def stdout(self) -> str:
        """What the job wrote to its standard output."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """What the job wrote to its standard error."""
        return self.stderr_bytes.decode(errors="replace")


async def collect(session: Session, watches: Watches, view: JobView) -> JobResult:
    """The result of an ended job."""
    outcome = view.outcome or Outcome(cause=Cause.SPAWN_FAILED, started=False, text="no outcome was recorded")
    texts: list[bytes] = []
    errors: list[str] = []
    sizes = {"stdout": outcome.stdout_size, "stderr": outcome.stderr_size}
    tails = {"stdout": outcome.stdout_tail, "stderr": outcome.stderr_tail}
    for stream in STREAMS:
        text = tails[stream]
        if len(text) < min(sizes[stream], KEPT_BYTES):
            try:
                begin = max(0, sizes[stream] - KEPT_BYTES)
                text = await _rest(session, watches, view, stream, begin, sizes[stream])
            except GridError as error:
                errors.append(f"{error.what}: {error.why}" if error.why else error.what)
        texts.append(text)
    return JobResult(
        job_id=view.id,
        name=view.spec.name,
        success=outcome.cause is Cause.EXITED and outcome.code == 0,
        exit_code=exit_status(outcome),
        signal=outcome.signal,
        cause=str(outcome.cause),
        text=outcome.text,
        node=view.node,
        seconds=outcome.seconds,
        stdout_bytes=texts[0],
        stderr_bytes=texts[1],
        truncated=any(len(text) < sizes[stream] for text, stream in zip(texts, STREAMS, strict=True)),
        output_error="; ".join(errors),
        job=view,
    )


async def _rest(session: Session, watches: Watches, view: JobView, stream: str, begin: int, size: int) -> bytes:
    """An ended job's output from an offset on, up to the size that its node told: a node may send without end."""
    pieces, left = [], size - begin
    async with aclosing(_pull(session, watches, view, stream, begin)) as coming:
        async for piece in coming:
            pieces.append(piece[:left])
            left -= len(pieces[-1])
            if left <= 0:
                break
    return b"".join(pieces)


async def stream_output(session: Session, watches: Watches, view: JobView) -> AsyncGenerator[tuple[str, bytes], None]:
    """Both streams of a job, each in order, as they come."""
    pieces: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(maxsize=8)

    async def pull(stream: str) -> None:
        try:
            async for piece in _pull(session, watches, view, stream, 0):
                await pieces.put((stream, piece))
        finally:
            await pieces.put(None)

    tasks = [asyncio.create_task(pull(stream)) for stream in STREAMS]
    try:
        ended = 0
        while ended < len(tasks):
            piece = await pieces.get()
            if piece is None:
                ended += 1
            else:
                yield piece
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pull(
    session: Session, watches: Watches, view: JobView, stream: str, offset: int
) -> AsyncGenerator[bytes, None]:
    """One stream from an offset to its end, attempt after attempt. A node that is away is waited for as long as the job
    may still go on there."""
    view = await _begun(watches, view)
    attempt, failures = view.allocation, 0
    while attempt and (attempt != view.allocation or view.outcome is None or view.outcome.started):
        number = session.number()
        answer: Output = await session.ask(
            WantOutput(id=number, allocation=attempt, stream=stream, offset=offset, size=PART_BYTES, wait=_POLL)
        )
        if not answer.error:
            failures = 0
            if answer.data:
                yield answer.data
            offset = answer.offset + len(answer.data)
            if not answer.end:
                if not answer.data:  # a node that answers at once with nothing is not asked without a pause
                    await asyncio.sleep(_EMPTY)
                continue
            view = await _settled(watches, view, attempt)
            if view.allocation == attempt:
                return
            offset, attempt, view = 0, next_attempt(attempt), await _begun(watches, view)  # it was run again
            continue
        if attempt != view.allocation:  # there was another one after it: nobody waits for what cannot be read of it
            offset, attempt = 0, next_attempt(attempt)
            continue
        failures += 1
        newer = await session.show(view.id)
        if newer.state is State.ENDED and (failures > _TRIES or not answer.error.startswith("unavailable")):
            raise GridUnavailable(f"the {stream} of {view.id} cannot be read", why=answer.error)
        if newer.allocation != attempt:
            offset, attempt = 0, next_attempt(attempt)
        view = await _begun(watches, newer)
        await asyncio.sleep(_PAUSE)


async def _settled(watches: Watches, view: JobView, attempt: str) -> JobView:
    """The job once it is over, or has been given another try."""
    if not (view.request.retry_on or view.request.requeue) or attempt != view.allocation:
        return view
    async with aclosing(watches.follow(view)) as views:
        async for newer in views:
            if newer.state is State.ENDED or newer.allocation != attempt:
                return newer
    return view


async def _begun(watches: Watches, view: JobView) -> JobView:
    """The job once it has begun to run, or has ended."""
    async with aclosing(watches.follow(view)) as views:
        async for view in views:
            if view.state not in (State.WAITING, State.STARTING):
                break
    return view


_ASKED_AT_ONCE = 10_000  # blobs in one question
_SHIP_TRIES = 3
_SENDING = 4  # blobs on their way at the same time


async def ship_directory(session: Session, directory: Path, cache: HashCache) -> Bundle:
    """Make a directory known to the coordinator. A file that changes between reading and sending starts it over."""
    for attempt in range(_SHIP_TRIES):
        bundle = await asyncio.to_thread(scan, directory, cache=cache)
        try:
            await _send_missing(session, bundle)
            return bundle
        except (RequestRefused, OSError) as error:
            cache.known.clear()
            if isinstance(error, RequestRefused) and error.code != "bad-value":
                why = f"{error.what}: {error.why}" if error.why else error.what
                raise ShippingError(f"{directory} cannot be shipped", why, error.hint) from error
            if attempt == _SHIP_TRIES - 1:
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
