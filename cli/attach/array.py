"""Follow an array: the output of all members is printed line by line, each line after its member's index in brackets,
in the order in which it comes. Only some members are read at once, from the lowest index on, because an array may have
a hundred thousand; the next ones are read as these end."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from distributed_grid.cli.attach.attached import CLOSED_PIPE
from distributed_grid.cli.attach.gang import AttachedMembers, MemberOutput
from distributed_grid.cli.attach.waiting import Count, Progress
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.formatting import emit_json, job_json, verdict
from distributed_grid.cli.jobs.groups import VERDICTS, group_json, group_label, progress_words
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.output import KEPT_BYTES, Piece
from distributed_grid.coordinator.client.session import Event
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import GroupView, indexes, member_id
from distributed_grid.protocol.jobs import JobView, State, exit_status
from distributed_grid.protocol.messages import GroupUpdate, Submission, Submitted

AT_ONCE = 100
"""Members that are read at once."""
IN_FLIGHT = 1 << 20
"""Bytes that are asked for at once, of all members together: what the coordinator grants a client."""
LEAST_PART = 4 << 10


class AttachedArray(AttachedMembers):
    """`group` is an array as it stands; None: `submission` is one to begin. `failed`: only members that failed; the
    others as for a job."""

    word = "the array"

    def __init__(
        self,
        invocation: Invocation,
        grid: GridClient,
        group: GroupView | None = None,
        *,
        submission: Submission | None = None,
        until_now: bool = False,
        verdicts: bool = True,
        failed: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(invocation, grid, submission=submission, until_now=until_now, verdicts=verdicts, **how)
        if group is not None:
            self.job, self._grace = group.id, group.spec.grace
        self._array = group.array if group is not None else submission.array if submission is not None else None
        self._count = group.count if group is not None else 0
        self._failed_only = failed
        self._ahead: Iterator[tuple[int, str]] = iter(())
        """Index and id of the members that are not read yet."""
        self._watches: dict[int, set[str]] = {}
        """Which of those that are read are watched under which number."""
        self._worst = self._said = 0
        self._incomplete = False
        self._progress = Progress(invocation) if verdicts and not until_now else None

    def run(self) -> int:
        """Stay with the array to its end; the exit code."""
        try:
            return super().run()
        finally:
            if self._progress is not None:
                self._progress.close()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _submitted(self, answer: Submitted) -> None:
        self.invocation.say(f"{answer.jobs[0]} is queued")
        super()._submitted(answer)

    def _watch(self) -> None:
        self._group = self.job
        self._ahead = ((index, member_id(self.job, index)) for index in self._indexes())
        if self._progress is not None:
            self.grid.watch(self.job, whole=True)
        self._read_more()

    def _indexes(self) -> Iterable[int]:
        return indexes(self._array.parts) if self._array is not None else range(self._count)

    def _member_output(self, index: int) -> MemberOutput:
        """Return the reader of a member's output."""
        return MemberOutput(index, self.sinks, self._until_now, self._reader)

    def _read_more(self) -> None:
        """Begin with members that come next, where there is room for some."""
        if len(self._member_outputs) > AT_ONCE // 2:
            return
        names = {name: index for index, name in islice(self._ahead, AT_ONCE - len(self._member_outputs))}
        if not names:
            return
        for name, index in names.items():
            self._member_outputs[name] = self._member_output(index)
        self._watches[self.grid.watch(*names)] = {*names}

    def _part(self) -> int:
        return min(PART_BYTES, max(LEAST_PART, IN_FLIGHT // max(1, 2 * len(self._member_outputs))))

    def _over(self) -> bool:
        if self._submission is not None:
            return False
        self._done_with([name for name, mate in self._member_outputs.items() if mate.over()])
        self._read_more()
        return not self._member_outputs and not any(sink.size for sink in self.sinks.values())

    def _done_with(self, names: Iterable[str]) -> None:
        """Drop members whose output is read, or not wanted."""
        for name in names:
            mate = self._member_outputs.pop(name)
            self._incomplete = self._tell_missing(mate.output, name) or self._incomplete
            if (view := mate.output.view) is not None and view.outcome is not None:
                self._ended(view)
            for number, left in [*self._watches.items()]:
                left.discard(name)
                if not left:
                    del self._watches[number]
                    self.grid.session.unwatch(number)

    def _ended(self, view: JobView) -> None:
        assert view.outcome is not None  # noqa: S101
        self._worst = max(self._worst, exit_status(view.outcome, self.grid_failed))
        if self._verdicts and self._said < VERDICTS and (text := verdict(view)):
            self._said += 1
            self._clear()
            self.invocation.say(text)

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, GroupUpdate):
            self._show(event.group, over=bool(event.group.ended))
        else:
            super()._handle(event)

    def _show(self, group: GroupView, over: bool) -> None:
        """Show how many have ended, where progress is shown."""
        if self._progress is not None:
            count = Count()
            count.add(group)
            self._progress.show(count, over)

    def _failed(self, number: int, error: GridError) -> None:
        if number in self._watches:
            raise error
        super()._failed(number, error)

    def _update(self, view: JobView) -> None:
        if self._failed_only and not (view.outcome is not None and exit_status(view.outcome)):
            if view.id in self._member_outputs and (view.state is State.ENDED or self._until_now):
                self._done_with([view.id])
        else:
            super()._update(view)

    def _reader_left(self) -> None:
        first, *_ = self.sinks.values()  # stdout, unless only stderr is printed
        if not first.closed or self._code is not None:
            return
        self._give_up(CLOSED_PIPE, "nobody reads its output any more")

    # --- signals, and the end -----------------------------------------------------------------------------------------

    def _clear(self) -> None:
        super()._clear()
        if self._progress is not None:
            self._progress.clear()

    def _verdict(self) -> int:
        if self._code is not None:
            return self._code
        if self._progress is not None:
            group = self.grid.show_array(self.job)  # what was told last may be a moment old
            if group.failed or group.cancelled:
                self._clear()
                self.invocation.say(f"{group_label(group)}: {progress_words(group)}")
            else:
                self._show(group, over=True)
        code = self._worst if self._verdicts and not self._until_now else 0
        return code or (self.grid_failed if self._incomplete else 0)


class CollectedArray(AttachedArray):
    """The same for a program: nothing is printed before the end, and then each member with its output, as JSON."""

    def __init__(self, invocation: Invocation, grid: GridClient, **how: Any) -> None:
        super().__init__(invocation, grid, **how)
        self._rows: dict[str, dict[str, Any]] = {}

    def _member_output(self, index: int) -> MemberOutput:
        return Collected(index, self.sinks, self._until_now, self._reader)

    def _done_with(self, names: Iterable[str]) -> None:
        for name in (names := [*names]):
            mate = self._member_outputs[name]
            if isinstance(mate, Collected) and mate.output.view is not None:
                self._rows[name] = job_json(mate.output.view) | mate.json()
        super()._done_with(names)

    def _verdict(self) -> int:
        code, group = super()._verdict(), self.grid.show_array(self.job)
        rows = [self._rows[name] for index in self._indexes() if (name := member_id(self.job, index)) in self._rows]
        self._clear()
        emit_json(self.invocation, {"jobs": rows, "arrays": [group_json(group)]}, rows="jobs")
        return code


class Collected(MemberOutput):
    """A member whose output is kept: of each stream the end, up to KEPT_BYTES."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._texts = {name: bytearray() for name in self.sinks}
        self._truncated = False

    def put(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            text = self._texts[piece.stream]
            text += piece.data
            if len(text) > 2 * KEPT_BYTES:
                self._trim(text)

    def _trim(self, text: bytearray) -> None:
        if (more := len(text) - KEPT_BYTES) > 0:
            self._truncated = True
            del text[:more]

    def json(self) -> dict[str, Any]:
        """Its output, in the form of JobResult."""
        for text in self._texts.values():
            self._trim(text)
        stream = self.output.incomplete()
        return {
            **{name: text.decode(errors="replace") for name, text in self._texts.items()},
            "truncated": self._truncated or stream is not None,
            "output_error": stream.incomplete() if stream is not None else "",
        }
