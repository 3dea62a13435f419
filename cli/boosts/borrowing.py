"""Requests a boost or a hold and waits until it is available: a boost, until Ray shows it. After a lost connection the
same request is found by its key. A signal withdraws the request, also one whose answer is still on its way."""

import math
import select
import signal
import time

from distributed_grid.cli.attach.terminal import Signals
from distributed_grid.cli.context import Invocation
from distributed_grid.coordinator.client.session import Answer, Event, Lost, Opened
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Cancel, Done, JobUpdate, RequestBoost, Submit, Submitted

AGAIN_SECONDS = 1.0
"""A signal that follows so soon is the same one, sent to us and to our process group."""


class Borrowing:
    """One request. `run` returns the boost or hold once it runs or has ended."""

    def __init__(self, invocation: Invocation, asked: RequestBoost | Submit) -> None:
        self._invocation = invocation
        self._grid = invocation.connect()
        self._asked = asked
        self._question = self._order = 0
        self._boost = self._said = ""
        self._view: JobView | None = None
        self._left_by = 0
        self._left_at = 0.0
        self._left = False

    def run(self) -> JobView:
        """Raises GridError where the grid refuses, SystemExit (128 + the signal) once the request is taken back."""
        self._grid.session.patience = math.inf
        try:
            with Signals([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]) as signals:
                self._question = self._grid.ask(self._asked)
                while self._view is None and not self._left:
                    self._turn(signals)
        finally:
            self._grid.close()
        if self._view is None or self._left_by:
            self._invocation.say(f"{self._boost}: taken back")
            raise SystemExit(128 + self._left_by)
        return self._view

    def _turn(self, signals: Signals) -> None:
        """Wait for the next event, and handle it."""
        poll = select.poll()
        poll.register(signals.fd, select.POLLIN)
        if (fd := self._grid.fileno()) >= 0:
            poll.register(fd, select.POLLIN)
        poll.poll(1000 * min(1.0, self._grid.timeout()))
        for number in signals.taken():
            self._signalled(number)
        for event in self._grid.receive():
            self._handle(event)
        self._take_back()

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case Answer(_, Submitted() as answer):
                self._boost = answer.jobs[0]
            case JobUpdate(view):
                self._boost = view.id
                if view.state is State.ENDED or (view.state is State.RUNNING and not self._left_by):
                    self._view = view
                else:
                    self._tell(view)
            case Answer(number, Done()) if number == self._order:
                self._left = True
            case Answer(number, GridError() as error) if number in (self._question, self._order):
                raise error
            case Lost(why):
                self._leave_if_gone()
                self._invocation.say(f"connection lost ({why}), trying again; ^C takes the request back")
            case Opened(again=True):
                self._invocation.say("connected again")

    def _tell(self, view: JobView) -> None:
        """A line for each state."""
        text = view.story[-1].text if view.story else ""
        if view.reason is not None:
            text = f"waits: {view.reason.text}"
        if text != self._said and not self._left_by:
            self._invocation.say(f"{view.id}: {text}")
            self._said = text

    # --- signals ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if not self._left_by:
            self._left_by, self._left_at = number, time.monotonic()
            self._leave_if_gone()
        elif time.monotonic() - self._left_at > AGAIN_SECONDS:
            self._leave("it was not awaited")

    def _take_back(self) -> None:
        """Once it is known by which id, and once."""
        if self._left_by and self._boost and not self._order and self._view is None:
            reason = "^C" if self._left_by == signal.SIGINT else f"its client got {signal.Signals(self._left_by).name}"
            self._order = self._grid.ask(Cancel(id=0, jobs=(self._boost,), reason=reason))

    def _leave_if_gone(self) -> None:
        if self._left_by and self._grid.fileno() < 0:
            self._leave("the coordinator is gone")

    def _leave(self, why: str) -> None:
        """Leave it as it is, and say so."""
        if isinstance(self._asked, Submit):
            name, look = self._boost or "a hold", "grid hold list, grid hold release"
        else:
            name, look = self._boost or "a boost", "grid boost status, grid boost release"
        self._invocation.say(f"{name} may wait or be lent, as {why}: {look}")
        raise SystemExit(128 + self._left_by)
