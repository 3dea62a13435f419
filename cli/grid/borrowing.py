"""Asking for a boost and staying until Ray shows it. A lost connection is made again, and the same request is found
there by its key; a signal takes the request back, also one whose answer is on its way."""

import select
import signal
import time
from typing import Any

import msgspec

from distributed_grid.cli.attach.terminal import Signals
from distributed_grid.cli.context import Invocation
from distributed_grid.coordinator.client.blocking import Connection, ConnectionLost, Denied, Unreachable
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Cancel, Done, Failed, JobUpdate, RequestBoost, Submitted

FIRST_PAUSE, MOST_PAUSE = 0.05, 2.0
AGAIN_SECONDS = 1.0
"""A signal that follows so soon is the same one, sent to us and to our process group."""


class Borrowing:
    """One request. `run` returns the boost once it runs or has ended."""

    def __init__(self, invocation: Invocation, asked: RequestBoost) -> None:
        self._invocation = invocation
        self._asked = asked
        self._question = self._order = 0
        self._boost = self._said = ""
        self._view: JobView | None = None
        self._left_by = 0
        self._left_at = 0.0
        self._left = False

    def run(self) -> JobView:
        """Raises GridError where the grid refuses, SystemExit (128 + the signal) once the request is taken back."""
        connection = self._invocation.connect()
        try:
            with Signals([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]) as signals:
                self._greet(connection)
                while self._view is None and not self._left:
                    try:
                        self._turn(connection, signals)
                    except ConnectionLost as lost:
                        connection.close()
                        connection = self._connected(lost, signals)
        finally:
            connection.close()
        if self._view is None or self._left_by:
            self._invocation.say(f"{self._boost}: taken back")
            raise SystemExit(128 + self._left_by)
        return self._view

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _greet(self, connection: Connection) -> None:
        """Ask, on a fresh connection; whoever asks again with the same key gets what is there."""
        self._question, self._order = connection.number(), 0
        try:
            connection.send(msgspec.structs.replace(self._asked, id=self._question))
            self._take_back(connection)
        except ConnectionLost:
            pass  # the next turn finds out

    def _turn(self, connection: Connection, signals: Signals) -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(signals.fd, select.POLLIN)
        if not connection.waiting():
            poll.poll(1000)
        self._hear(signals)
        for message in connection.receive():
            self._answered(message)
        self._take_back(connection)

    def _connected(self, lost: ConnectionLost, signals: Signals) -> Connection:
        """A new connection, however long that takes. The user may leave meanwhile. Raises GridError where we are turned
        away for good."""
        if self._left_by:
            self._leave("the coordinator is gone")
        else:
            self._invocation.say(f"connection lost ({lost.why}), trying again; ^C takes the request back")
        pause = FIRST_PAUSE
        while True:
            poll = select.poll()
            poll.register(signals.fd, select.POLLIN)
            if poll.poll(1000 * pause):
                self._hear(signals)
                if self._left_by:
                    self._leave("the coordinator is gone")
            try:
                connection = self._invocation.connect()
            except Unreachable:
                pause = min(2 * pause, MOST_PAUSE)
                continue
            self._invocation.say("connected again")
            self._greet(connection)
            return connection

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _answered(self, message: Any) -> None:
        match message:
            case Submitted():
                self._boost = message.jobs[0]
            case JobUpdate(view):
                self._boost = view.id
                if view.state is State.ENDED or (view.state is State.RUNNING and not self._left_by):
                    self._view = view
                else:
                    self._tell(view)
            case Done(id=number) if number == self._order:
                self._left = True
            case Failed(id=number) if number in (self._question, self._order):
                raise Denied(message)

    def _tell(self, view: JobView) -> None:
        """A line for each state."""
        text = view.story[-1].text if view.story else ""
        if view.reason is not None:
            text = f"waits: {view.reason.text}"
        if text != self._said and not self._left_by:
            self._invocation.say(f"{view.id}: {text}")
            self._said = text

    # --- signals ------------------------------------------------------------------------------------------------------

    def _hear(self, signals: Signals) -> None:
        for number in signals.taken():
            if not self._left_by:
                self._left_by, self._left_at = number, time.monotonic()
            elif time.monotonic() - self._left_at > AGAIN_SECONDS:
                self._leave("it was not awaited")

    def _take_back(self, connection: Connection) -> None:
        """Once it is known by which id, and once."""
        if self._left_by and self._boost and not self._order and self._view is None:
            self._order = connection.number()
            reason = "^C" if self._left_by == signal.SIGINT else f"its client got {signal.Signals(self._left_by).name}"
            connection.send(Cancel(id=self._order, jobs=(self._boost,), reason=reason))

    def _leave(self, why: str) -> None:
        """Leave it as it is, and say so."""
        name = self._boost or "a boost"
        self._invocation.say(f"{name} may wait or be lent, as {why}: grid boost status, grid boost release")
        raise SystemExit(128 + self._left_by)
