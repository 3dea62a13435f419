"""A job's output, read piece by piece with its offset and attempt after attempt. Without I/O."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from distributed_grid.coordinator.client.session import GridUnavailable
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import JobView, Outcome, State, next_attempt
from distributed_grid.protocol.messages import Output, WantOutput

STREAMS = ("stdout", "stderr")
KEPT_BYTES = 16 << 20
"""How much of each stream a result carries: the last bytes."""
HOLD_SECONDS = 10.0
"""How long a node holds a question for output back until there is some."""
EMPTY_SECONDS = 0.05
"""A node that had nothing is asked again after this."""
RETRY_SECONDS = 0.5
"""A node that could not answer is asked again after this."""
TRIES = 20
"""How often the node of an ended job is asked before its output counts as out of reach."""
HOLD_AGAIN = 15.0
"""An attached reader that asks for nothing says after so many seconds that it is there; its node waits for a minute."""
ALL_READ = 1 << 60
"""The offset of a reader that wants nothing more."""
BEGUN = (State.RUNNING, State.STOPPING, State.LOST, State.ENDED)


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a stream; `gap`: number of bytes missing before them, because the node keeps only the beginning and the
    end."""

    stream: str
    data: bytes
    gap: int = 0


class Stream:
    """How far one stream of an attempt has been read. `asked` is the number of the unanswered request (0: none);
    `dropped`: the rest is not wanted. `lost`: bytes in the middle that are gone, of all attempts that were read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = self.asked = self.failures = 0
        self.done = self.dropped = False
        self.retry_at = self.hold_at = 0.0
        self.left = False
        """Its node was told that it is dropped."""
        self.lost = 0
        self.missing = ""
        """Why the rest cannot be had."""
        self.size = 0
        """Of an ended job, the size that its node told (0: not known): a node may send without end."""

    def incomplete(self) -> str:
        """Why not all of it was read; empty: it was, so far."""
        gone = [gap_words(self.lost, self.name)] if self.lost else []
        return "; ".join([*gone, *([self.missing] if self.missing else [])])

    def begin_anew(self) -> None:
        """Start reading another output from its beginning."""
        self.offset = self.asked = self.size = 0
        self.done = self.dropped

    def ended(self, view: JobView) -> Piece | None:
        """Handle the end of the job: there never was any output, or the rest of it may be in the outcome."""
        outcome = view.outcome
        if outcome is None or not outcome.started or not view.allocation:
            self.done = True
        if self.done or outcome is None:
            return None
        self.size, tail = ended_stream(outcome, self.name)
        begin = self.offset - (self.size - len(tail))
        if begin < 0:
            return None
        self.offset, self.done = max(self.offset, self.size), True
        return Piece(self.name, tail[begin:])

    def receive(self, offset: int, data: bytes, now: float) -> Piece:
        """Take bytes that begin at `offset`."""
        gap = max(0, offset - self.offset)
        self.lost += gap
        if self.size:
            data = data[: max(0, self.size - offset)]
        piece = Piece(self.name, data[max(0, self.offset - offset) :], gap)
        self.offset = max(self.offset, offset + len(data))
        self.done = self.done or 0 < self.size <= self.offset
        if not data:  # a node that answers at once with nothing is not asked without a pause
            self.retry_at = now + EMPTY_SECONDS
        return piece


class JobOutput:
    """The output of a job that goes on, or has ended. `until_now`: what there is, without waiting for more. `reader`:
    the id of an attached reader, for which the node keeps what was not read, and has the job wait. `attempt`: the
    number of the one attempt whose output is read; 0: of all of them, one after another; None: of the last one, and of
    those that follow while it is read."""

    def __init__(
        self,
        streams: Sequence[str] = STREAMS,
        until_now: bool = False,
        reader: str = "",
        attempt: int | None = None,
    ) -> None:
        self.streams = {name: Stream(name) for name in streams}
        self.view: JobView | None = None
        self.attempt = ""
        """The allocation whose output is read."""
        self._until_now = until_now
        self._reader = reader
        self._asked_for = attempt
        self._next_held_at = 0.0

    @property
    def done(self) -> bool:
        """Whether all output of the last attempt was read."""
        view = self.view
        if view is None or (self.attempt != view.allocation and not self._asked_for):
            return False
        return all(one.done for one in self.streams.values())

    @property
    def over(self) -> bool:
        """Whether all output was read, and there is no further attempt."""
        view = self.view
        again = view is not None and (view.request.retry_on or view.request.requeue)
        return self.done and (not again or (view is not None and view.state is State.ENDED))

    def update(self, view: JobView) -> list[Piece]:
        """The job as it stands now."""
        self.view = view
        if self._asked_for is not None:
            if not self.attempt and view.allocation:
                self._read(f"{view.id}.{self._asked_for or 1}")
        elif not ((view.request.retry_on or view.evicted) and self.attempt):
            self._read(view.allocation)  # if there was another one, nothing had run there
        return self._proceed()

    def questions(
        self,
        number: Callable[[], int],
        now: float,
        ready: Callable[[str], bool] = lambda _: True,
        size: int = PART_BYTES,
    ) -> list[WantOutput]:
        """Return requests for the next pieces, of `size` bytes: for each stream that has no open request and is `ready`
        to take more."""
        view = self.view
        if view is None or not view.allocation or (self.attempt == view.allocation and not _has_run(view)):
            return []
        asked = self.holds(number, now)
        for one in self.streams.values():
            if not (one.done or one.asked) and one.retry_at <= now and ready(one.name):
                one.asked, one.hold_at = number(), now + HOLD_AGAIN
                wait = 0.0 if self._until_now else HOLD_SECONDS
                asked.append(self._want(one.asked, one, one.offset, size, wait))
        return asked

    def holds(self, number: Callable[[], int], now: float) -> list[WantOutput]:
        """Return messages that tell the node that an attached reader is present, for streams without an open request.
        They are answered without output."""
        view, requests = self.view, []
        if not self._reader or view is None or not self.attempt:
            return []
        for one in self.streams.values():
            if one.dropped and not one.left:
                one.left = True
                requests.append(self._want(number(), one, ALL_READ))
            elif not one.done and 0.0 < one.hold_at <= now:
                one.hold_at = now + HOLD_AGAIN
                requests.append(self._want(number(), one, one.offset))
        if view.allocation != self.attempt and view.state in BEGUN and self._next_held_at <= now:
            self._next_held_at = now + HOLD_AGAIN  # the next attempt runs, while this one is read
            requests += [
                self._want(number(), one, 0, allocation=view.allocation)
                for one in self.streams.values()
                if not one.dropped
            ]
        return requests

    def leave(self, number: Callable[[], int]) -> list[WantOutput]:
        """Return messages that tell the node that an attached reader is leaving: the job continues without it."""
        view = self.view
        if not self._reader or not self.attempt or view is None:
            return []
        requests = [self._want(number(), one, ALL_READ) for one in self.streams.values() if not (one.done or one.left)]
        if self._next_held_at and view.allocation != self.attempt:
            requests += [
                self._want(number(), one, ALL_READ, allocation=view.allocation)
                for one in self.streams.values()
                if not one.dropped
            ]
        return requests

    def _want(
        self, number: int, one: Stream, offset: int, size: int = 0, wait: float = 0.0, allocation: str = ""
    ) -> WantOutput:
        return WantOutput(number, allocation or self.attempt, one.name, offset, size, wait, self._reader)

    def awaits(self, number: int) -> bool:
        """Whether the request with this number was made here and is not answered."""
        return any(one.asked == number for one in self.streams.values())

    def receive(self, answer: Output, now: float) -> list[Piece]:
        """Handle an answer; an answer to another question is ignored."""
        stream = next((one for one in self.streams.values() if one.asked == answer.id), None)
        if stream is None:
            return []
        stream.asked = 0
        pieces = []
        if stream.done:
            pass
        elif answer.error:
            self._failed(stream, answer.error, now)
        else:
            stream.failures = 0
            piece = stream.receive(answer.offset, answer.data, now)
            pieces += [piece] if piece.data or piece.gap else []
            stream.done = stream.done or answer.end or (self._until_now and not answer.data)
        return pieces + self._proceed()

    def begin_at(self, attempt: str, offsets: Mapping[str, int]) -> None:
        """Read this attempt, from these offsets on."""
        self._read(attempt)
        for name, offset in offsets.items():
            self.streams[name].offset = offset

    def drop(self, name: str) -> None:
        """Read no more of this stream."""
        self.streams[name].done = self.streams[name].dropped = True

    def pause(self, now: float) -> float | None:
        """Seconds until there is something to ask again; None: when something is told."""
        times = [one.retry_at - now for one in self.streams.values() if not one.done and one.retry_at > now]
        return min(times, default=None)

    def incomplete(self) -> Stream | None:
        """A stream with missing bytes, or whose rest is not available."""
        return next((one for one in self.streams.values() if one.incomplete()), None)

    def _read(self, attempt: str) -> None:
        """Start reading the output of this attempt, from its beginning."""
        if attempt != self.attempt:
            self.attempt = attempt
            for stream in self.streams.values():
                stream.begin_anew()

    def _proceed(self) -> list[Piece]:
        """Go on to the next attempt of a job that was run again, once the output of the one before was read to its
        end."""
        view = self.view
        if view is None:
            return []
        follows = view.allocation and not self._asked_for
        while follows and view.allocation != self.attempt and all(one.done for one in self.streams.values()):
            self._read(next_attempt(self.attempt))
        if self.attempt != view.allocation:
            return []
        if view.state is State.ENDED:
            pieces = [one.ended(view) for one in self.streams.values()]
            return [one for one in pieces if one is not None and one.data]
        if self._until_now and not _has_run(view):
            for stream in self.streams.values():
                stream.done = True
        return []

    def _failed(self, stream: Stream, error: str, now: float) -> None:
        stream.failures += 1
        stream.retry_at = now + RETRY_SECONDS
        view = self.view
        if view is None or self.attempt != view.allocation:  # nobody waits for an attempt that is over
            stream.done = True
            if self._asked_for is not None:
                stream.missing = error
        elif self._until_now or (
            view.state is State.ENDED and (stream.failures > TRIES or not error.startswith("unavailable"))
        ):
            stream.done, stream.missing = True, error


def _has_run(view: JobView) -> bool:
    """Whether its newest attempt may have written: it runs, or is over, also where the job waits for another one."""
    return bool(view.allocation) and view.state is not State.STARTING


def ended_stream(outcome: Outcome, stream: str) -> tuple[int, bytes]:
    """The size of a stream of an ended job, and its end, as its node told them."""
    if stream == "stdout":
        return outcome.stdout_size, outcome.stdout_tail
    return outcome.stderr_size, outcome.stderr_tail


def gap_words(gap: int, stream: str) -> str:
    """Describe bytes that are gone."""
    return f"{gap} bytes of {stream} are gone: of an output that nobody reads the node keeps the beginning and the end"


def unreadable(job: str, stream: Stream) -> GridUnavailable:
    """The error for output that cannot be had."""
    return GridUnavailable(f"the {stream.name} of {job} cannot be read", why=stream.incomplete())
