"""Following a job: its output comes out of ours, signals to us reach it, and its end is our end."""

import random
import select
import signal
import time
from collections.abc import Sequence
from typing import Any

from distributed_grid.cli.attach.terminal import Signals, Sink, StatusLine, Stream
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.formatting import verdict
from distributed_grid.coordinator.client.blocking import Connection, ConnectionLost, Denied, Unreachable
from distributed_grid.protocol.jobs import JobView, State, exit_status, next_attempt
from distributed_grid.protocol.messages import (
    Cancel,
    Done,
    Failed,
    JobUpdate,
    Output,
    SignalJob,
    Submission,
    Submit,
    Submitted,
    Watch,
)


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


HOLD_SECONDS = 10.0
"""How long a node holds a question for output back until there is some."""
TRIES = 20
"""How often an ended job's output is asked for while its node is away."""
LAST_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a job whose user pressed ^C twice."""
FIRST_PAUSE, MOST_PAUSE = 0.05, 2.0
CLOSED_PIPE = 141
GRID_FAILED = 125
BEGUN = (State.RUNNING, State.STOPPING, State.LOST, State.ENDED)


class Leave(Exception):
    """The user leaves; the job may go on."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Attached:
    """`submission` is a job to begin, `job` one that is there. `owner`: we began it, so it ends if we are ended (see
    `keep`). `until_now`: print what there is, and do not wait for more. `streams`: which ones to print;
    `verdicts`: the job's end is told, and is our exit code."""

    def __init__(
        self,
        invocation: Invocation,
        *,
        submission: Submission | None = None,
        job: str = "",
        owner: bool = True,
        keep: bool = False,
        interactive: bool = True,
        until_now: bool = False,
        streams: Sequence[str] = ("stdout", "stderr"),
        verdicts: bool = True,
    ) -> None:
        self.invocation = invocation
        self.job = job
        self.view: JobView | None = None
        self._attempt = ""  # the allocation whose output is read
        self._submission = submission
        self._owner = owner
        self._keep = keep
        self._interactive = interactive
        self._until_now = until_now
        self._verdicts = verdicts
        fds = {"stdout": 1, "stderr": 2}
        self._streams = [Stream(name, Sink(fds[name])) for name in streams]
        self._line = StatusLine(invocation)
        self._connection: Connection | None = None
        self._interrupts = 0
        self._orders = Orders(invocation, job)
        self._code: int | None = None
        self._leave_at = 0.0
        self._greeting = 0

    def run(self, connection: Connection) -> int:
        """Stay with the job to its end; the exit code. Raises GridError where the grid refuses."""
        self._connection = connection
        numbers = [signal.SIGTERM, signal.SIGHUP] + ([signal.SIGINT] if self._interactive else [])
        with Signals(numbers) as signals:
            try:
                self._greet()
                while not self._over():
                    try:
                        self._turn(signals)
                    except ConnectionLost as lost:
                        self._reconnect(signals, lost)
            except Leave as leave:
                return leave.code
            finally:
                self._line.clear()
        return self._verdict()

    @property
    def connection(self) -> Connection:
        """The open connection. Raises ConnectionLost where there is none."""
        if self._connection is None:
            raise ConnectionLost("it is not there")
        return self._connection

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        """What is to be said on a fresh connection: submitting the same key again finds the job that is there."""
        connection = self.connection
        self._greeting = connection.number()
        try:
            if self._submission is not None:
                connection.send(Submit(id=self._greeting, jobs=(self._submission,), watch=True))
            else:
                connection.send(Watch(id=self._greeting, jobs=(self.job,)))
            self._orders.connected(connection)
        except ConnectionLost:
            pass  # the next turn finds out

    def _turn(self, signals: Signals) -> None:
        """Wait for something to happen, and deal with it."""
        self._ask_for_output()
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        poll.register(signals.fd, select.POLLIN)
        for stream in self._streams:
            if stream.sink.size:
                poll.register(stream.sink.fd, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(0 if self.connection.waiting() else self._patience() * 1000)}
        for stream in self._streams:
            if stream.sink.fd in ready and stream.sink.size:
                self._line.clear()
                stream.sink.write()
        if any(stream.sink.closed and not stream.done for stream in self._streams):
            self._reader_left()
        if signals.fd in ready:
            for number in signals.taken():
                self._signalled(number)
        if self.connection.fileno() in ready or self.connection.waiting():
            for message in self.connection.receive(0):
                self._heard(message)
        self.connection.keep_alive()
        if self._leave_at and time.monotonic() > self._leave_at:
            raise Leave(self._code if self._code is not None else GRID_FAILED)

    def _patience(self) -> float:
        """Seconds for which nothing has to be done unless something comes."""
        self._line.tick()
        soonest, now = 1.0, time.monotonic()
        for stream in self._streams:
            if stream.retry_at > now:
                soonest = min(soonest, stream.retry_at - now)
        return soonest

    def _over(self) -> bool:
        """Everything is written that ever will be, and the job has ended (or is not waited for)."""
        if any(stream.sink.size for stream in self._streams) or self.view is None:
            return False
        ended = self.view.state is State.ENDED or (self._until_now and self.view.state not in BEGUN)
        read = all(stream.done for stream in self._streams) and self._attempt == self.view.allocation
        return read and (ended or self._until_now)

    def _reconnect(self, signals: Signals, lost: ConnectionLost) -> None:
        """Connect again, however long it takes; the user may leave meanwhile. Raises GridError where we are turned
        away for good."""
        url = self.connection.url if self._connection else self.invocation.url()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._line.clear()
        self.invocation.say(f"connection lost ({lost.why}), trying again; the job is not affected")
        for stream in self._streams:
            stream.asked = 0
        self._orders.connection = None
        pause = FIRST_PAUSE
        while True:
            self._drain(signals, random.uniform(pause / 2, pause))  # noqa: S311
            try:
                self._connection = Connection(url)
                break
            except Unreachable:
                pause = min(2 * pause, MOST_PAUSE)
        self.invocation.say("connected again")
        self._greet()

    def _drain(self, signals: Signals, seconds: float) -> None:
        """Between two attempts: write out what there is, and hear signals."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(signals.fd, select.POLLIN)
            for stream in self._streams:
                if stream.sink.size:
                    poll.register(stream.sink.fd, select.POLLOUT)
            ready = {fd for fd, _ in poll.poll(left * 1000)}
            for stream in self._streams:
                if stream.sink.fd in ready and stream.sink.size:
                    stream.sink.write()
            for number in signals.taken():
                self._signalled(number)

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _heard(self, message: Any) -> None:
        match message:
            case JobUpdate(view):
                self._update(view)
            case Output():
                self._output(message)
            case Submitted():
                self.job = message.jobs[0]
                self._submission = None
                self._orders.submitted(self.job)
                self._line.submitted(self.job, message.fit, message.nodes)
            case Failed():
                self._failed(message)
            case Done():
                self._orders.done(message.id)

    def _failed(self, failed: Failed) -> None:
        if failed.id == self._greeting:
            raise Denied(failed)
        self._orders.failed(failed, self.view)

    def _update(self, view: JobView) -> None:
        if self.job not in ("", view.id) and self.view is not None:
            return
        if not ((view.request.retry_on or view.taken_back) and self._attempt):
            self._read(view.allocation)  # if there was another one, nothing had run there
        if self.view is not None and view.retried + view.taken_back > self.view.retried + self.view.taken_back:
            self._line.again(view)
        if self._submission is None or view.state is not State.WAITING:
            self._line.show(view)
        self.job, self.view = view.id, view
        if self._orders.job:  # a name until now, or the beginning of an id
            self._orders.job = view.id
        if view.state is State.RUNNING:
            self._orders.running()
        if view.state is State.ENDED:
            if self._attempt == view.allocation:
                self._ended(view)
        elif self._until_now and view.state not in BEGUN:
            for stream in self._streams:
                stream.done = True

    def _read(self, attempt: str) -> None:
        """From now on the output of this attempt is read, from its beginning."""
        if attempt != self._attempt:
            self._attempt = attempt
            for stream in self._streams:
                stream.begin_anew()

    def _read_next(self, view: JobView) -> None:
        """Of a job that was run again each attempt is read to its end before the next."""
        while self._attempt != view.allocation and all(stream.done for stream in self._streams):
            self._read(next_attempt(self._attempt))
            if self._attempt == view.allocation and view.state is State.ENDED:
                self._ended(view)

    def _ended(self, view: JobView) -> None:
        for stream in self._streams:
            stream.ended(view)

    # --- output -------------------------------------------------------------------------------------------------------

    def _ask_for_output(self) -> None:
        """Ask for the next piece of each stream, unless it is asked for, or what came before is still to be written."""
        view = self.view
        if view is None or not view.allocation or self._submission is not None:
            return
        self._read_next(view)
        if self._attempt == view.allocation and view.state not in BEGUN:
            return
        wait, number = 0.0 if self._until_now else HOLD_SECONDS, self.connection.number
        asked = [q for one in self._streams for q in one.question(number, self._attempt, wait, one.sink.size)]
        if asked:
            self.connection.send(*asked)

    def _output(self, answer: Output) -> None:
        stream = next((one for one in self._streams if one.asked == answer.id), None)
        if stream is None or stream.done:
            return
        stream.asked = 0
        if answer.error:
            self._no_output(stream, answer.error)
            return
        stream.failures = 0
        if gap := stream.take(answer.offset, answer.data):
            self._line.clear()
            self.invocation.say(f"{gap} bytes of {stream.name} are gone: the node keeps the beginning and the end")
        stream.done = stream.done or answer.end or (self._until_now and not answer.data)

    def _no_output(self, stream: Stream, error: str) -> None:
        stream.failed()
        if self.view is not None and self._attempt != self.view.allocation:  # nobody waits for an attempt that is over
            stream.done = True
            return
        final = self._until_now or (self.view is not None and self.view.state is State.ENDED)
        if final and (stream.failures > TRIES or self._until_now or not error.startswith("unavailable")):
            stream.done = True
            stream.missing = error

    def _reader_left(self) -> None:
        """Nobody reads our output any more. A command here would end by SIGPIPE; so does the job, if it is ours."""
        for stream in self._streams:
            if stream.sink.closed and not stream.done:
                stream.done = True
                if stream.name == "stdout" and self._code is None:
                    self._code = CLOSED_PIPE
                    if not self._owner:
                        raise Leave(CLOSED_PIPE)
                    self._end("nobody reads its output any more", -1.0)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            self._interrupted()
        elif self._keep or not self._owner or self._code is not None:
            self._line.clear()
            if self.job and self._code is None:
                self.invocation.say(f"leaving; the job goes on: grid attach {self.job}")
            raise Leave(128 + number)
        else:
            self._code = 128 + number
            self._end(f"its client was ended by {signal.Signals(number).name}", -1.0)

    def _interrupted(self) -> None:
        self._line.interrupted()
        if self._interrupts >= 3:
            self.invocation.say(f"leaving; the job may go on: grid attach {self.job}")
            raise Leave(130)
        if self._interrupts == 2:
            self.invocation.say("ending the job")
            self._end("^C twice", LAST_GRACE)
        elif self.view is None or self.view.state is State.WAITING:
            self._end("^C", -1.0)
        elif self.view.state is State.STARTING:
            self._orders.owed = signal.SIGINT
        else:
            self._orders.signal(signal.SIGINT)

    def _end(self, reason: str, grace: float) -> None:
        """End the job, by its own grace (-1) or another one; once we are connected, if we are not."""
        if self._code is not None:
            own = self.view.spec.grace if self.view else 5.0
            self._leave_at = time.monotonic() + own + 10
        self._orders.end(reason, grace)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _verdict(self) -> int:
        """What is to be said at the end, and the exit code."""
        missing = next((stream for stream in self._streams if stream.missing), None)
        if missing is not None:
            self.invocation.say(f"the {missing.name} of {self.job} cannot be read: {missing.missing}")
        if self._code is not None:
            return self._code
        view = self.view
        if self._until_now or not self._verdicts or view is None or view.outcome is None:
            return 1 if missing is not None else 0
        if text := verdict(view):
            self.invocation.say(text)
        code = exit_status(view.outcome)
        return GRID_FAILED if missing is not None and code == 0 else code
