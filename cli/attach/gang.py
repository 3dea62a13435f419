"""Standing by a gang: the output of its first member comes out of ours as it is, that of the others line by line behind
their rank in brackets. ^C ends all of it: members that wait for one another do not end by themselves when one does.
"""

from collections.abc import Sequence
from typing import Any

from distributed_grid.cli.attach.attached import BEGUN, HOLD_SECONDS, TRIES, Attached
from distributed_grid.cli.attach.terminal import Signals, Sink, Stream
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.formatting import verdict
from distributed_grid.cli.jobs.groups import status_of_all
from distributed_grid.coordinator.client.blocking import Connection, ConnectionLost, Denied
from distributed_grid.protocol.groups import GroupKind, GroupView, member_id
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import (
    Jobs,
    JobUpdate,
    Output,
    ShowJobs,
    Submission,
    Submit,
    Submitted,
    WantOutput,
    Watch,
)

LONGEST_LINE = 64 << 10
"""A line of a member that has no end by then is broken here."""


class Prefixed(Sink):
    """Passes whole lines on to another sink, each behind a prefix."""

    def __init__(self, to: Sink, prefix: bytes) -> None:
        super().__init__(to.fd)
        self.to = to
        self._prefix = prefix
        self._rest = b""

    def put(self, data: bytes) -> None:
        """Take bytes; what is not yet a line waits for the rest of it."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.to.put(b"".join(self._prefix + line + b"\n" for line in lines))
        if len(self._rest) > LONGEST_LINE:
            self.finish()

    def finish(self) -> None:
        """There is no more of it: what waits is a line."""
        if self._rest:
            self.to.put(self._prefix + self._rest + b"\n")
            self._rest = b""


class Mate:
    """A member beside the first, and how far its output is read."""

    def __init__(self, job: str, rank: int, sinks: Sequence[Stream]) -> None:
        self.job = job
        self.view: JobView | None = None
        prefix = f"[{rank}] ".encode()
        self._sinks = [Prefixed(one.sink, prefix) for one in sinks]
        self.streams = [Stream(one.name, sink) for one, sink in zip(sinks, self._sinks, strict=True)]

    def update(self, view: JobView) -> None:
        """It has changed. Of another attempt the output is read from its beginning."""
        if self.view is None or view.allocation != self.view.allocation:
            for stream in self.streams:
                stream.begin_anew()
        self.view = view
        if view.state is State.ENDED:
            for stream in self.streams:
                stream.ended(view)
            self._finish()

    def ask(self, number: Any) -> list[WantOutput]:
        """The next piece of each stream that is not asked for, unless what came before is still to be written."""
        view = self.view
        if view is None or not view.allocation or view.state not in BEGUN:
            return []
        both = zip(self.streams, self._sinks, strict=True)
        return [q for stream, to in both for q in stream.question(number, view.allocation, HOLD_SECONDS, to.to.size)]

    def take(self, answer: Output) -> bool:
        """A piece of output; whether it is ours."""
        stream = next((one for one in self.streams if one.asked == answer.id), None)
        if stream is None:
            return False
        stream.asked = 0
        if answer.error:
            stream.failed()
            ended = self.view is not None and self.view.state is State.ENDED
            stream.done = ended and (stream.failures > TRIES or not answer.error.startswith("unavailable"))
        else:
            stream.failures = 0
            stream.take(answer.offset, answer.data)
            stream.done = stream.done or answer.end
        self._finish()
        return True

    def over(self) -> bool:
        """Whether it has ended and all of its output was read."""
        ended = self.view is not None and self.view.state is State.ENDED
        return ended and all(stream.done for stream in self.streams)

    def _finish(self) -> None:
        for stream, sink in zip(self.streams, self._sinks, strict=True):
            if stream.done:
                sink.finish()


class AttachedGang(Attached):
    """`gang` has `count` members. `owner` and `keep` as for a job: whether it ends if we are ended."""

    def __init__(
        self, invocation: Invocation, gang: str, count: int, *, owner: bool = True, keep: bool = False
    ) -> None:
        super().__init__(invocation, job=member_id(gang, 0), owner=owner, keep=keep)
        self._gang = gang
        names = {rank: member_id(gang, rank) for rank in range(1, count)}
        self._mates = {name: Mate(name, rank, self._streams) for rank, name in names.items()}

    def _greet(self) -> None:
        super()._greet()
        names = list(self._mates)
        try:
            for at in range(0, len(names), 100):
                connection = self.connection
                connection.send(Watch(id=connection.number(), jobs=tuple(names[at : at + 100])))
        except ConnectionLost:
            pass  # the next turn finds out

    def _heard(self, message: Any) -> None:
        match message:
            case JobUpdate(view) if view.id in self._mates:
                self._mates[view.id].update(view)
            case Output() if any(mate.take(message) for mate in self._mates.values()):
                pass
            case _:
                super()._heard(message)

    def _ask_for_output(self) -> None:
        super()._ask_for_output()
        questions = [one for mate in self._mates.values() for one in mate.ask(self.connection.number)]
        if questions:
            self.connection.send(*questions)

    def _over(self) -> bool:
        return super()._over() and all(mate.over() for mate in self._mates.values())

    def _reconnect(self, signals: Signals, lost: ConnectionLost) -> None:
        for mate in self._mates.values():
            for stream in mate.streams:
                stream.asked = 0
        super()._reconnect(signals, lost)

    def _interrupted(self) -> None:
        if self._interrupts > 1:
            super()._interrupted()
            return
        self._line.interrupted()
        self.invocation.say(f"ending all of {self._gang}")
        self._end("^C", -1.0)

    def _verdict(self) -> int:
        code = super()._verdict()
        views = [view for view in (self.view, *(mate.view for mate in self._mates.values())) if view is not None]
        for view in views[1:]:
            if text := verdict(view):
                self.invocation.say(text)
        return code if self._code is not None else status_of_all(views) or code


def begin_gang(invocation: Invocation, connection: Connection, submission: Submission, keep: bool) -> AttachedGang:
    """Submit a gang, to stand by it."""
    reply: Submitted = connection.call(Submit(id=connection.number(), jobs=(submission,)))
    return AttachedGang(invocation, reply.jobs[0], submission.request.gang, keep=keep)


def gang_of(connection: Connection, ref: str) -> GroupView | None:
    """The gang that is meant by this; None: it is something else, or not known."""
    try:
        answer: Jobs = connection.call(ShowJobs(id=connection.number(), jobs=(ref,)))
    except Denied:
        return None  # who attaches to it is told why
    return next((one for one in answer.groups if one.kind is GroupKind.GANG), None)
