"""Follow a job: print its output, send it our input and the signals that this process gets, and exit as the job does.

One loop waits for the coordinator, for signals, and until stdout and stderr accept more. The session restores a lost
connection; only the job's end, or the user, ends the loop.
"""

import contextlib
import math
import secrets
import select
import signal
import time
from collections.abc import Sequence

from distributed_grid.cli.attach.terminal import STDIN, Signals, Sink, StatusLine, read_input
from distributed_grid.cli.context import Invocation, grid_failed, print_error
from distributed_grid.cli.formatting import verdict
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.input import JobInput
from distributed_grid.coordinator.client.output import STREAMS, JobOutput, Piece, gap_words
from distributed_grid.coordinator.client.session import Answer, ConnectionLost, Event, Lost, Opened
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import JobView, State, exit_status
from distributed_grid.protocol.messages import (
    Cancel,
    Done,
    JobUpdate,
    Output,
    SignalJob,
    Submission,
    Submit,
    Submitted,
)

LAST_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a job whose user pressed ^C twice."""
CLOSED_PIPE = 141
FDS = {"stdout": 1, "stderr": 2}


class Leave(Exception):
    """The user leaves; the job may go on."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Attached:
    """A job whose output is printed here. `submission` is a job to begin, `job` an existing one. `owner`: this command
    began it, so it ends if the command is ended (see `keep`). `until_now`: print the present output, and do not wait
    for more. `streams`: which ones to print; `verdicts`: print the job's end, and exit with its code. `stdin`: this
    command's standard input is the job's. `reads_along`: unread output is kept for this command, and the job waits for
    it as at a pipe. `attempt`: the attempt whose output is printed, as for JobOutput."""

    def __init__(
        self,
        invocation: Invocation,
        grid: GridClient,
        *,
        submission: Submission | None = None,
        job: str = "",
        owner: bool = True,
        keep: bool = False,
        interactive: bool = True,
        until_now: bool = False,
        streams: Sequence[str] = STREAMS,
        verdicts: bool = True,
        stdin: bool = False,
        reads_along: bool = True,
        attempt: int | None = None,
    ) -> None:
        self.invocation = invocation
        self.grid = grid
        self.job = job
        self.view: JobView | None = None
        self.grid_failed = grid_failed()
        """The exit code where the grid is at fault."""
        self._reader = secrets.token_hex(8) if reads_along else ""
        self.output = JobOutput(streams, until_now, self._reader, attempt)
        self.sinks = {name: Sink(FDS[name]) for name in streams}
        self._input = JobInput() if stdin else None
        self._submission = submission
        self._grace = submission.spec.grace if submission is not None else 5.0
        """What it has between SIGTERM and SIGKILL, where no view says so."""
        self._owner = owner
        self._keep = keep
        self._interactive = interactive
        self._until_now = until_now
        self._verdicts = verdicts
        self._line = StatusLine(invocation)
        self._question = 0
        """The request by which the job is begun or watched."""
        self._cancels: set[int] = set()
        self._signals: dict[int, int] = {}
        """What was asked of the job and is not answered, by the numbers of the requests."""
        self._cancel: Cancel | None = None
        """It is to be ended, once it is known by which id."""
        self._owed = 0
        """A signal that came before the job ran, to be sent when it does."""
        self._interrupts = 0
        self._code: int | None = None
        self._leave_at = 0.0

    def run(self) -> int:
        """Stay with the job to its end; the exit code. Raises GridError where the grid refuses."""
        self.grid.session.patience = math.inf
        numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT] + ([signal.SIGINT] if self._interactive else [])
        with Signals(numbers) as signals:
            try:
                self._begin()
                while not self._over():
                    self._turn(signals)
            except Leave as leave:
                self._stop_reading()
                return leave.code
            finally:
                self._line.clear()
        return self._verdict()

    def _stop_reading(self) -> None:
        """The job does not wait for us any more."""
        with contextlib.suppress(GridError):
            for output in self._outputs():
                self.grid.ask(*output.leave(self.grid.number), repeatable=False)

    def _outputs(self) -> Sequence[JobOutput]:
        """Return all outputs that are read."""
        return (self.output,)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._submission is not None:
            self._question = self.grid.ask(Submit(id=0, jobs=(self._submission,), watch=True))
        else:
            self._question = self.grid.watch(self.job)

    def _turn(self, signals: Signals) -> None:
        """Wait for the next event, and handle it."""
        self._ask_for_output()
        self._send_input()
        poll = select.poll()
        poll.register(signals.fd, select.POLLIN)
        if (fd := self.grid.fileno()) >= 0:
            poll.register(fd, select.POLLIN)
        for sink in self.sinks.values():
            if sink.size:
                poll.register(sink.fd, select.POLLOUT)
        if self._input is not None and self._input.room():
            poll.register(STDIN, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(self._patience() * 1000)}
        for sink in self.sinks.values():
            if sink.fd in ready and sink.size:
                self._clear()
                sink.write()
        for name, sink in self.sinks.items():
            if sink.failure and self._code is None:
                self._write_failed(name, sink.failure)
        if any(self.sinks[name].closed and not stream.done for name, stream in self.output.streams.items()):
            self._reader_left()
        for number in signals.taken():
            self._signalled(number)
        if STDIN in ready and self._input is not None:  # after a signal its end may be due to that, and means nothing
            read_input(self._input)
        for event in self.grid.receive():
            self._handle(event)
        if self._leave_at and time.monotonic() > self._leave_at:
            raise Leave(self._code if self._code is not None else self.grid_failed)

    def _patience(self) -> float:
        """Seconds for which nothing has to be done unless something comes."""
        self._line.tick()
        now = time.monotonic()
        pauses = [one.pause(now) for one in (*self._outputs(), self._input) if one is not None]
        return min(1.0, self.grid.timeout(), *(pause for pause in pauses if pause is not None))

    def _over(self) -> bool:
        """Whether all output is written, and the job has ended (or is not waited for)."""
        if any(sink.size for sink in self.sinks.values()) or self.view is None:
            return False
        return self.output.done and (self.view.state is State.ENDED or self._until_now)

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        match event:
            case JobUpdate(view):
                self._update(view)
            case Answer(number, content) if self._input is not None and self._input.receive(
                number, content, time.monotonic()
            ):
                pass
            case Answer(number, Output() as answer):
                self._output(number, answer)
            case Answer(_, Submitted() as answer):
                self._submitted(answer)
            case Answer(number, Done()):
                self._cancels.discard(number)
                self._signals.pop(number, None)
            case Answer(number, GridError() as error):
                self._failed(number, error)
            case Lost(why):
                self._line.clear()
                self.invocation.say(f"connection lost ({why}), trying again; the job is not affected")
            case Opened(again=True):
                self.invocation.say("connected again")

    def _submitted(self, answer: Submitted) -> None:
        self.job = answer.jobs[0]
        self._submission = None
        self._line.submitted(self.job, answer.fit, answer.nodes)
        if self._cancel is not None:
            self._end(self._cancel.reason, self._cancel.grace)

    def _failed(self, number: int, error: GridError) -> None:
        if number == self._question:
            raise error
        if number in self._cancels:
            self._cancels.discard(number)
            self.invocation.say(f"it could not be cancelled: {error.what}")
        elif sent := self._signals.pop(number, 0):
            if isinstance(error, ConnectionLost):
                self.invocation.say("the job cannot be reached now; ^C again ends it once it can")
            elif self.view is not None and self.view.state is State.STARTING:
                self._owed = sent  # a moment too early
            elif self.view is None or self.view.state is not State.ENDED:
                self.invocation.say(f"{error.what}; ^C again ends the job")
        else:
            self._output(number, Output(id=number, offset=0, error=error.what))

    def _update(self, view: JobView) -> None:
        before = self.view
        if before is not None and before.id != view.id:
            return
        if view.spec.hold:
            hint = f"grid hold list shows it; grid job wait {view.id} waits for its end"
            raise BadValue(f"{view.id} is a hold and has no output", "it runs no command", hint)
        if before is not None and view.retried + view.evicted > before.retried + before.evicted:
            self._line.again(view)
        if self._submission is None or view.state is not State.WAITING:
            self._line.show(view)
        self.job, self.view = view.id, view
        self.grid.session.rename(self._question, view.id)
        if view.state is State.RUNNING and self._owed:
            owed, self._owed = self._owed, 0
            self._send(owed)
        if self._input is not None:
            self._input.update(view)
        self._put(self.output.update(view))

    # --- input --------------------------------------------------------------------------------------------------------

    def _send_input(self) -> None:
        """Send what the node takes of our input, and ask it to take more."""
        if self._input is not None:
            self.grid.ask(*self._input.messages(self.grid.number, time.monotonic()))

    def _leave(self) -> None:
        """Print that this command leaves a job that goes on, and what happens to its input."""
        said = self._input.leave() if self._input is not None else ""
        self._send_input()
        self.invocation.say(f"leaving; the job goes on: grid attach {self.job}" + (f"; {said}" if said else ""))

    # --- output -------------------------------------------------------------------------------------------------------

    def _ask_for_output(self) -> None:
        """Request the next pieces, unless earlier ones are still to be written."""
        ready = {name for name, sink in self.sinks.items() if sink.size < PART_BYTES}
        now, size = time.monotonic(), self._part()
        for output in self._outputs():
            self.grid.ask(*output.questions(self.grid.number, now, ready.__contains__, size))

    def _part(self) -> int:
        """Return the number of bytes to request at once."""
        return PART_BYTES

    def _output(self, number: int, answer: Output) -> None:
        self._put(self.output.receive(answer, time.monotonic()))

    def _put(self, pieces: list[Piece]) -> None:
        self._tell_gaps(pieces)
        for piece in pieces:
            self.sinks[piece.stream].put(piece.data)

    def _tell_gaps(self, pieces: list[Piece], job: str = "") -> None:
        """Print what is missing before these pieces, also with --quiet."""
        for piece in pieces:
            if piece.gap:
                self._clear()
                print_error(f"error: {f'{job}: ' if job else ''}{gap_words(piece.gap, piece.stream)}")

    def _tell_missing(self, output: JobOutput, job: str) -> bool:
        """Whether something of the output is missing; why its rest is, is said."""
        stream = output.incomplete()
        if stream is not None and stream.missing:
            self._clear()
            print_error(f"error: the {stream.name} of {job} cannot be read: {stream.missing}")
        return stream is not None

    def _clear(self) -> None:
        """Take away what we have on the last line of the terminal."""
        self._line.clear()

    def _reader_left(self) -> None:
        """Handle that this command's output is not read any more. A local command would end by SIGPIPE; so does the
        job, if this command began it."""
        for name, stream in self.output.streams.items():
            if self.sinks[name].closed and not stream.done:
                self.output.drop(name)
                if name == "stdout" and self._code is None:
                    self._give_up(CLOSED_PIPE, "nobody reads its output any more")

    def _write_failed(self, name: str, why: str) -> None:
        """Handle that bytes of the output are lost here, as on a full disk: the job ends, if this command began it,
        since no exit code of its own may stand for an incomplete output."""
        print_error(f"error: the {name} of {self.job} cannot be written: {why}")
        self._give_up(self.grid_failed, f"its {name} cannot be written where it is read: {why}")

    def _give_up(self, code: int, reason: str) -> None:
        """Exit with this code, once the job has ended for this reason; at once, if this command did not begin it."""
        self._code = code
        if not self._owner:
            raise Leave(code)
        self._end(reason, -1.0)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: int) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
            self._interrupted()
        elif self._keep or not self._owner or self._code is not None:
            self._line.clear()
            if self.job and self._code is None:
                self._leave()
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
            self._owed = signal.SIGINT
        else:
            self._send(signal.SIGINT)

    def _send(self, number: int) -> None:
        """Send the job a signal, once: sent again it would have an effect again."""
        self._signals[self.grid.ask(SignalJob(id=0, job=self.job, signal=number), repeatable=False)] = number

    def _end(self, reason: str, grace: float) -> None:
        """End the job, by its own grace (-1) or another one; once it is known, and we are connected, if that is not so
        yet."""
        if self._code is not None:
            self._leave_at = time.monotonic() + (self.view.spec.grace if self.view else self._grace) + 10
        cancel = Cancel(id=0, jobs=(self.job,), reason=reason, grace=grace)
        if self.job:
            self._cancels.add(self.grid.ask(cancel))
        else:
            self._cancel = cancel

    # --- the end ------------------------------------------------------------------------------------------------------

    def _verdict(self) -> int:
        """Print the end of the job, and return the exit code."""
        incomplete = self._tell_missing(self.output, self.job)
        if self._code is not None:
            return self._code
        view = self.view
        if self._until_now or not self._verdicts or view is None or view.outcome is None:
            return self.grid_failed if incomplete else 0
        if text := verdict(view):
            self.invocation.say(text)
        code = exit_status(view.outcome, self.grid_failed)
        return self.grid_failed if incomplete and code == 0 else code
