"""How far many jobs are: one line that is rewritten on a terminal, else a line now and then."""

import sys
import time

from distributed_grid.cli.context import Invocation, complain, printable
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import Cause, JobView, State, exit_status
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
        """These as well."""
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
        self._live = sys.stderr.isatty() and not invocation.quiet
        self._quiet = invocation.quiet
        self._began = time.monotonic()
        self._at_first: int | None = None
        self._next = 0.0
        self._shown = ""

    def show(self, count: Count, over: bool = False) -> None:
        """This is how it stands."""
        now = time.monotonic()
        if self._at_first is None:
            self._at_first = count.done
        if self._quiet or (now < self._next and not over):
            return
        self._next = now + (LIVE_EVERY if self._live else SOBER_EVERY)
        line = printable(f"grid: {words(count, count.done - self._at_first, now - self._began)}")
        if line == self._shown:
            return
        self._shown = line
        if self._live:
            import shutil

            sys.stderr.write("\r\x1b[K" + line[: max(20, shutil.get_terminal_size().columns - 1)])
            sys.stderr.flush()
        else:
            complain(line)

    def close(self) -> None:
        """Leave the last line standing."""
        if self._live and self._shown:
            complain("")
            self._shown = ""


def words(count: Count, ended: int, seconds: float) -> str:
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
