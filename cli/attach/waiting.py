"""Wait until jobs and groups end, with a progress line meanwhile."""

import math
import time

from distributed_grid.cli.context import Invocation, print_error, printable, write_error
from distributed_grid.coordinator.client.session import Answer, Event, Lost, Opened
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import Cause, JobView, State, exit_status
from distributed_grid.protocol.messages import GroupUpdate, Jobs, JobUpdate, ShowJobs
from distributed_grid.protocol.text import format_duration

LIVE_EVERY = 0.2
SOBER_EVERY = 10.0
"""Seconds between two lines, on a terminal and elsewhere."""
AT_WORK = (State.STARTING, State.RUNNING, State.STOPPING, State.LOST)


class Count:
    """Jobs by how they stand."""

    def __init__(self) -> None:
        self.all = self.done = self.failed = self.cancelled = self.working = 0
        self.why = ""
        """Why one of those that wait does."""

    def add(self, view: JobView | GroupView) -> None:
        """Add these views."""
        if view.reason is not None and not self.why:
            self.why = f"{view.reason.code} – {view.reason.text}" if view.reason.text else view.reason.code
        if isinstance(view, GroupView):
            self.all += view.count
            self.done += view.states.get(State.ENDED.value, 0)
            self.failed += view.failed
            self.cancelled += view.cancelled
            self.working += sum(view.states.get(state.value, 0) for state in AT_WORK)
        else:
            self.all += 1
            self.done += view.state is State.ENDED
            cancelled = view.outcome is not None and view.outcome.cause is Cause.CANCELLED
            self.cancelled += cancelled
            self.failed += view.outcome is not None and not cancelled and exit_status(view.outcome) != 0
            self.working += view.state in AT_WORK


class Progress:
    """Shows counts. The rate is that since the beginning, and so is what it says of the time that is left."""

    def __init__(self, invocation: Invocation) -> None:
        self._live = invocation.live()
        self._quiet = invocation.quiet
        self._began = time.monotonic()
        self._at_first: int | None = None
        self._next = 0.0
        self._shown = ""

    def show(self, count: Count, over: bool = False) -> None:
        """Print the present state."""
        now = time.monotonic()
        if self._at_first is None:
            self._at_first = count.done
        if self._quiet or (now < self._next and not over):
            return
        self._next = now + (LIVE_EVERY if self._live else SOBER_EVERY)
        line = printable(f"grid: {count_words(count, count.done - self._at_first, now - self._began)}")
        if line == self._shown:
            return
        self._shown = line
        if self._live:
            import shutil

            write_error("\r\x1b[K" + line[: max(20, shutil.get_terminal_size().columns - 1)])
        else:
            print_error(line)

    def clear(self) -> None:
        """Take the line away, for something else to be written; it comes again."""
        if self._live and self._shown:
            self._shown, self._next = "", 0.0
            write_error("\r\x1b[K")

    def close(self) -> None:
        """Leave the last line standing."""
        if self._live and self._shown:
            print_error("")
            self._shown = ""


def count_words(count: Count, ended: int, seconds: float) -> str:
    """`431 of 1000 done (2 failed) · 8 running · 561 waiting · 21.3/s · 27s left`; `ended` of them in these seconds."""
    bad = [f"{number} {what}" for number, what in ((count.failed, "failed"), (count.cancelled, "cancelled")) if number]
    failed = f" ({', '.join(bad)})" if bad else ""
    waiting = count.all - count.done - count.working
    parts = [f"{count.done} of {count.all} done{failed}"]
    parts += [f"{number} {what}" for number, what in ((count.working, "running"), (waiting, "waiting")) if number]
    if count.why and waiting and not count.working:
        parts[-1] += f" ({count.why})"
    if ended > 0 and seconds > 0:
        rate = ended / seconds
        parts.append(f"{rate:.1f}/s" if rate >= 0.1 else f"{rate * 60:.1f}/min")
        if left := count.all - count.done:
            parts.append(f"{format_duration(max(1.0, round(left / rate)))} left")
    return " · ".join(parts)


MEMBERS_TOLD = 1000
"""Of larger groups the members are not asked for one by one."""


class Waiting:
    """The jobs and groups of these references, and their present state; `wait` returns when all have ended. `until`:
    the latest time."""

    def __init__(self, invocation: Invocation, refs: tuple[str, ...], until: float | None, progress: bool) -> None:
        self.jobs: dict[str, JobView] = {}
        self.groups: dict[str, GroupView] = {}
        self._invocation = invocation
        self._until = until
        self._progress = Progress(invocation) if progress else None
        self._grid = invocation.connect()
        answer: Jobs = self._grid.call(ShowJobs(id=0, jobs=refs))
        self.jobs = {view.id: view for view in answer.jobs}
        self.groups = {view.id: view for view in answer.groups}

    def wait(self) -> bool:
        """Wait for the end of all. False: the time is up."""
        self._grid.session.patience = math.inf
        try:
            if not self._over():
                self._grid.watch(*self.jobs, *self.groups, whole=True)
            while not self._over():
                left = math.inf if self._until is None else self._until - time.monotonic()
                if left <= 0:
                    return False
                for event in self._grid.receive(min(left, 1.0)):
                    self._handle(event)
                self._show()
            self._show(over=True)
            return True
        finally:
            if self._progress is not None:
                self._progress.close()

    def members(self) -> list[JobView]:
        """The jobs, and the members of groups that are not too large, as they ended."""
        small = [view.id for view in self.groups.values() if view.count <= MEMBERS_TOLD]
        return [*self.jobs.values(), *(view for name in small for view in self._grid.members(name))]

    def close(self) -> None:
        """Leave."""
        self._grid.close()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        ended = all(view.state is State.ENDED for view in self.jobs.values())
        return ended and all(view.ended for view in self.groups.values())

    def _handle(self, event: Event) -> None:
        match event:
            case JobUpdate(view) if view.id in self.jobs:
                self.jobs[view.id] = view
            case GroupUpdate(view):
                self.groups[view.id] = view
            case Answer(_, GridError() as error):
                raise error
            case Lost(why):
                self._invocation.say(f"connection lost ({why}), trying again")
            case Opened(again=True):
                self._invocation.say("connected again")

    def _show(self, over: bool = False) -> None:
        if self._progress is not None:
            count = Count()
            for job in self.jobs.values():
                count.add(job)
            for group in self.groups.values():
                count.add(group)
            self._progress.show(count, over)
