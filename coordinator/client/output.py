"""A job's output, pulled piece by piece with its offset, and its result."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from distributed_grid.coordinator.client.session import GridUnavailable, Session
from distributed_grid.coordinator.client.watch import Watches
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobView, Outcome, State, exit_status, next_attempt
from distributed_grid.protocol.messages import Output, WantOutput

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
