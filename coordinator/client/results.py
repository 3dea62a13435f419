"""The result of a job: how it ended, with its output. It is separate from output.py because `grid run-shared` forwards
output and does not need this module."""

from dataclasses import dataclass, field

from distributed_grid.coordinator.client.output import (
    KEPT_BYTES,
    STREAMS,
    JobOutput,
    Piece,
    ended_stream,
    unreadable,
)
from distributed_grid.protocol.jobs import Cause, JobView, Outcome, exit_status


@dataclass(frozen=True)
class JobResult:
    """The result of a job. `exit_code` is what `grid run-shared` would exit with: the job's own, 128+N for signal N,
    124 for the time limit, 126 and 127 for a command that cannot be run or found, 75 for not placed, 125 where the grid
    failed.

    `stdout` and `stderr` are text (UTF-8, invalid bytes replaced); the bytes are available, too. Of a stream of more
    than 16 MiB only the last are kept, and `truncated` says so. `output_error` says why output is missing, if it is.
    """

    job_id: str
    name: str
    success: bool
    exit_code: int
    signal: int
    cause: str
    text: str
    node: str
    seconds: float
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    truncated: bool
    output_error: str
    job: JobView = field(repr=False)

    @property
    def stdout(self) -> str:
        """The standard output of the job, as text."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """The standard error of the job, as text."""
        return self.stderr_bytes.decode(errors="replace")


class ResultReader:
    """Collects the result of an ended job: `output` is to be read, each piece of it given to `add`."""

    def __init__(self, view: JobView) -> None:
        self.output = JobOutput()
        self._outcome = view.outcome or Outcome(Cause.SPAWN_FAILED, started=False, text="no outcome was recorded")
        self._view = view
        self._pieces: dict[str, list[bytes]] = {name: [] for name in STREAMS}
        self.output.begin_at(
            view.allocation, {name: max(0, ended_stream(self._outcome, name)[0] - KEPT_BYTES) for name in STREAMS}
        )

    def add(self, piece: Piece) -> None:
        """Keep what was read."""
        self._pieces[piece.stream].append(piece.data)

    def result(self) -> JobResult:
        """The result, once the output is over. Of a stream that cannot be had it has the end that is on record."""
        view, outcome, streams = self._view, self._outcome, self.output.streams
        texts = {
            name: ended_stream(outcome, name)[1] if streams[name].missing else b"".join(pieces)
            for name, pieces in self._pieces.items()
        }
        return JobResult(
            job_id=view.id,
            name=view.spec.name,
            success=outcome.cause is Cause.EXITED and outcome.code == 0,
            exit_code=exit_status(outcome),
            signal=outcome.signal,
            cause=str(outcome.cause),
            text=outcome.text,
            node=view.node,
            seconds=outcome.seconds,
            stdout_bytes=texts["stdout"],
            stderr_bytes=texts["stderr"],
            truncated=any(len(text) < ended_stream(outcome, name)[0] for name, text in texts.items()),
            output_error="; ".join(
                f"{unreadable(view.id, one).what}: {why}" for one in streams.values() if (why := one.incomplete())
            ),
            job=view,
        )
