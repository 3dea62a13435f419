"""What the user wants of a job beside its output: a signal to it, its end. Said again after a lost connection where it
can be said twice."""

from distributed_grid.cli.connection import Connection
from distributed_grid.cli.context import Invocation
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Cancel, Failed, SignalJob


class Orders:
    """`job` is the job's id, empty while it is being submitted; `connection` None while there is none."""

    def __init__(self, invocation: Invocation, job: str) -> None:
        self.job = job
        self.connection: Connection | None = None
        self.owed = 0
        """A signal that came before the job ran, to be sent when it does."""
        self._invocation = invocation
        self._held: Cancel | None = None
        self._cancels: dict[int, Cancel] = {}
        self._signals: dict[int, SignalJob] = {}

    def connected(self, connection: Connection) -> None:
        """A fresh connection. An end that was not confirmed is asked for again, which has no effect twice; a signal
        would have one, and is not."""
        self.connection = connection
        self._signals.clear()
        if self._cancels:
            self._held = list(self._cancels.values())[-1]
            self._cancels.clear()
        self._say_held()

    def submitted(self, job: str) -> None:
        """The job has its id."""
        self.job = job
        self._say_held()

    def _say_held(self) -> None:
        if self._held is not None and self.connection is not None and self.job:
            held, self._held = self._held, None
            self.end(held.reason, held.grace)

    def end(self, reason: str, grace: float) -> None:
        """End the job with `grace` seconds between SIGTERM and SIGKILL (-1: its own); once it can be said, if it cannot
        be now."""
        if self.connection is None or not self.job:
            self._held = Cancel(id=0, jobs=(), reason=reason, grace=grace)
            return
        number = self.connection.number()
        self._cancels[number] = Cancel(id=number, jobs=(self.job,), reason=reason, grace=grace)
        self.connection.send(self._cancels[number])

    def signal(self, number: int) -> None:
        """Send the job a signal."""
        if self.connection is None:
            self._invocation.say("the job cannot be reached now; ^C again ends it once it can")
            return
        message = SignalJob(id=self.connection.number(), job=self.job, signal=number)
        self._signals[message.id] = message
        self.connection.send(message)

    def running(self) -> None:
        """The job runs: it gets what it is owed."""
        if self.owed:
            owed, self.owed = self.owed, 0
            self.signal(owed)

    def done(self, number: int) -> None:
        """The coordinator has done what was asked under this number."""
        self._cancels.pop(number, None)
        self._signals.pop(number, None)

    def failed(self, failed: Failed, view: JobView | None) -> None:
        """The coordinator could not do it."""
        if self._cancels.pop(failed.id, None):
            self._invocation.say(f"it could not be cancelled: {failed.what}")
        elif sent := self._signals.pop(failed.id, None):
            if view is not None and view.state is State.STARTING:
                self.owed = sent.signal  # a moment too early
            elif view is None or view.state is not State.ENDED:
                self._invocation.say(f"{failed.what}; ^C again ends the job")
