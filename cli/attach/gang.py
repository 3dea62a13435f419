"""Follow a gang: the output of its first member is printed unchanged, that of the others line by line, after their rank
in brackets. ^C ends all members: those that wait for one another do not end by themselves when one does."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from distributed_grid.cli.attach.attached import Attached
from distributed_grid.cli.attach.terminal import Sink
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.formatting import verdict
from distributed_grid.cli.jobs.groups import status_of_all
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.output import JobOutput, Piece
from distributed_grid.coordinator.client.requests import only
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.groups import GroupView, member_id
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Jobs, Output, ShowJobs, Submit, Submitted

WATCHED_AT_ONCE = 100
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
        """Write the rest as a line: there is no more output."""
        if self._rest:
            self.to.put(self._prefix + self._rest + b"\n")
            self._rest = b""


class MemberOutput:
    """A member whose lines are printed behind its index or rank, and how far its output is read."""

    def __init__(self, rank: int, sinks: Mapping[str, Sink], until_now: bool = False, reader: str = "") -> None:
        self.output = JobOutput(tuple(sinks), until_now, reader)
        self._until_now = until_now
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
        """Whether it has ended, or is not waited for, and all of its output was read."""
        view = self.output.view
        return view is not None and (view.state is State.ENDED or self._until_now) and self.output.done


class AttachedMembers(Attached, ABC):
    """Jobs that were submitted as one. Those in `_member_outputs`, by id, are read, and printed behind their index or
    rank. ^C ends all of them."""

    word = ""
    """What it is called before its id is known."""

    def __init__(self, invocation: Invocation, grid: GridClient, **how: Any) -> None:
        super().__init__(invocation, grid, **how)
        self._member_outputs: dict[str, MemberOutput] = {}
        self._group = ""

    def _begin(self) -> None:
        """Signals that come from here on are for the group, also before its id is known."""
        if self._submission is not None:
            self._question = self.grid.ask(Submit(id=0, jobs=(self._submission,)))
        else:
            self._watch()

    @abstractmethod
    def _watch(self) -> None:
        """Begin to read a group that is known by its id."""

    def _submitted(self, answer: Submitted) -> None:
        self._group = answer.jobs[0]
        super()._submitted(answer)
        self._watch()

    def _outputs(self) -> Sequence[JobOutput]:
        return [mate.output for mate in self._member_outputs.values()]

    def _update(self, view: JobView) -> None:
        if (mate := self._member_outputs.get(view.id)) is not None:
            self._tell_gaps(pieces := mate.output.update(view), view.id)
            mate.put(pieces)

    def _output(self, number: int, answer: Output) -> None:
        for name, mate in self._member_outputs.items():
            if mate.output.awaits(number):
                self._tell_gaps(pieces := mate.output.receive(answer, time.monotonic()), name)
                mate.put(pieces)
                return
        super()._output(number, answer)

    def _interrupted(self) -> None:
        if self._interrupts > 1:
            super()._interrupted()
            return
        self._line.interrupted()
        self._clear()
        self.invocation.say(f"ending all of {self._group or self.word}")
        self._end("^C", -1.0)


class AttachedGang(AttachedMembers):
    """`gang` has `count` members; empty: `submission` is one to begin. `owner` and `keep` as for a job: whether it ends
    if we are ended."""

    word = "the gang"

    def __init__(self, invocation: Invocation, grid: GridClient, gang: str, count: int, **how: Any) -> None:
        super().__init__(invocation, grid, **how)
        self._group, self._count = gang, count

    def _watch(self) -> None:
        self.job = member_id(self._group, 0)
        self._question = self.grid.watch(self.job)
        for rank in range(1, self._count):
            self._member_outputs[member_id(self._group, rank)] = MemberOutput(rank, self.sinks, reader=self._reader)
        names = list(self._member_outputs)
        for at in range(0, len(names), WATCHED_AT_ONCE):
            self.grid.watch(*names[at : at + WATCHED_AT_ONCE])

    def _outputs(self) -> Sequence[JobOutput]:
        return [self.output, *super()._outputs()]

    def _update(self, view: JobView) -> None:
        if view.id in self._member_outputs:
            super()._update(view)
        else:
            Attached._update(self, view)

    def _over(self) -> bool:
        return super()._over() and all(mate.over() for mate in self._member_outputs.values())

    def _verdict(self) -> int:
        code = super()._verdict()
        views = [
            view
            for view in (self.view, *(mate.output.view for mate in self._member_outputs.values()))
            if view is not None
        ]
        for view in views[1:]:
            if text := verdict(view):
                self.invocation.say(text)
        missing = [name for name, mate in self._member_outputs.items() if self._tell_missing(mate.output, name)]
        if self._code is not None:
            return code
        return status_of_all(views, self.grid_failed) or code or (self.grid_failed if missing else 0)


def group_of(grid: GridClient, ref: str) -> GroupView | None:
    """The array or gang that is meant by this; None: it is one job, or not known. Raises BadValue for several
    members."""
    try:
        answer: Jobs = grid.call(ShowJobs(id=0, jobs=(ref,)))
    except RequestRefused:
        return None  # who attaches to it is told why
    if answer.groups:
        return answer.groups[0]
    only(answer, ref)
    return None
