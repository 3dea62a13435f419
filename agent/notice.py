"""The notice that a job gets before its place is taken back: a file whose path is in its environment, which appears
together with the SIGTERM. A job that looks for it knows that it will be run again, and how long it has."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from distributed_grid.agent import workdir
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Stop

VARIABLE = "GRID_RECALL_FILE"
CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.RELEASED})


def place(state_dir: Path, allocation: str) -> str:
    """Where the notice of an allocation lies, once it is given."""
    return f"{workdir.place(state_dir, allocation)}/recall"


def seconds(state_dir: Path, stop: Stop) -> float:
    """How long the job has after this stop: its own grace, where the stop does not say."""
    if stop.grace >= 0:
        return stop.grace
    launch = workdir.read_launch(state_dir, stop.allocation)
    return launch.spec.grace if launch is not None else 0.0


def give(state_dir: Path, stop: Stop) -> None:
    """Write the notice of this stop, if it takes the job's place back; the first one stays. Raises OSError."""
    path = place(state_dir, stop.allocation)
    if stop.cause not in CAUSES or not os.path.isdir(os.path.dirname(path)):
        return
    left = seconds(state_dir, stop)
    said = {"cause": stop.cause, "reason": stop.text, "seconds": left, "deadline": round(time.time() + left, 3)}
    fresh = f"{path}.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(msgspec.json.encode(said) + b"\n")
        os.fchmod(file.fileno(), 0o644)  # the job may be another user's
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    os.unlink(fresh)
