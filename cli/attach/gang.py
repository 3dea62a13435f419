"""Standing by a gang: the output of its first member comes out of ours as it is, that of the others line by line behind
their rank in brackets. ^C ends all of it: members that wait for one another do not end by themselves when one does.
"""

import time
from collections.abc import Mapping

from distributed_grid.cli.attach.attached import Attached
from distributed_grid.cli.attach.terminal import Sink
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.formatting import verdict
from distributed_grid.cli.jobs.groups import status_of_all
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.output import JobOutput, Piece
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.groups import GroupKind, GroupView, member_id
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Jobs, Output, ShowJobs, Submission, Submit, Submitted

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

    def __init__(self, rank: int, sinks: Mapping[str, Sink]) -> None:
        self.output = JobOutput()
        prefix = f"[{rank}] ".encode()
        self.sinks = {name: Prefixed(sink, prefix) for name, sink in sinks.items()}

    def put(self, pieces: list[Piece]) -> None:
        """Pieces of its output have come."""
        for piece in pieces:
            self.sinks[piece.stream].put(piece.data)
        for name, stream in self.output.streams.items():
            if stream.done:
                self.sinks[name].finish()

    def over(self) -> bool:
        """Whether it has ended and all of its output was read."""
        view = self.output.view
        return view is not None and view.state is State.ENDED and self.output.done


class AttachedGang(Attached):
    """`gang` has `count` members. `owner` and `keep` as for a job: whether it ends if we are ended."""

    def __init__(
        self,
        invocation: Invocation,
        grid: GridClient,
        gang: str,
        count: int,
        *,
        owner: bool = True,
        keep: bool = False,
    ) -> None:
        super().__init__(invocation, grid, job=member_id(gang, 0), owner=owner, keep=keep)
        self._gang = gang
        self._mates = {member_id(gang, rank): Mate(rank, self.sinks) for rank in range(1, count)}

    def _begin(self) -> None:
        super()._begin()
        names = list(self._mates)
        for at in range(0, len(names), 100):
            self.grid.watch(*names[at : at + 100])

    def _update(self, view: JobView) -> None:
        if (mate := self._mates.get(view.id)) is not None:
            mate.put(mate.output.update(view))
        else:
            super()._update(view)

    def _output(self, number: int, answer: Output) -> None:
        for mate in self._mates.values():
            if mate.output.awaits(number):
                mate.put(mate.output.take(answer, time.monotonic()))
                return
        super()._output(number, answer)

    def _ask_for_output(self) -> None:
        super()._ask_for_output()
        now = time.monotonic()
        ready = {name for name, sink in self.sinks.items() if sink.size < PART_BYTES}
        for mate in self._mates.values():
            self.grid.ask(*mate.output.questions(self.grid.number, now, ready.__contains__))

    def _over(self) -> bool:
        return super()._over() and all(mate.over() for mate in self._mates.values())

    def _interrupted(self) -> None:
        if self._interrupts > 1:
            super()._interrupted()
            return
        self._line.interrupted()
        self.invocation.say(f"ending all of {self._gang}")
        self._end("^C", -1.0)

    def _verdict(self) -> int:
        code = super()._verdict()
        views = [view for view in (self.view, *(mate.output.view for mate in self._mates.values())) if view is not None]
        for view in views[1:]:
            if text := verdict(view):
                self.invocation.say(text)
        return code if self._code is not None else status_of_all(views) or code


def begin_gang(invocation: Invocation, grid: GridClient, submission: Submission, keep: bool) -> AttachedGang:
    """Submit a gang, to stand by it."""
    reply: Submitted = grid.call(Submit(id=0, jobs=(submission,)))
    return AttachedGang(invocation, grid, reply.jobs[0], submission.request.gang, keep=keep)


def gang_of(grid: GridClient, ref: str) -> GroupView | None:
    """The gang that is meant by this; None: it is something else, or not known."""
    try:
        answer: Jobs = grid.call(ShowJobs(id=0, jobs=(ref,)))
    except RequestRefused:
        return None  # who attaches to it is told why
    return next((one for one in answer.groups if one.kind is GroupKind.GANG), None)
