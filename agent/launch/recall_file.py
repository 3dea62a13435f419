"""The notice that a job gets before its place is taken back: a file whose path is in its environment, which appears
together with the SIGTERM. A job that looks for it knows that it will be run again, and how long it has."""

import contextlib
import os
import time
from pathlib import Path

import msgspec

from distributed_grid.agent.launch import workdir
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Stop
from distributed_grid.runtime import beneath

VARIABLE = "GRID_RECALL_FILE"
RECALLS = "recalls"
CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.RELEASED})


def place(state_dir: Path, allocation: str) -> str:
    """Where the notice of an allocation lies, once it is given: in a directory that jobs can read and not change."""
    workdir.place(state_dir, allocation)  # checks the id
    return f"{state_dir}/{RECALLS}/{allocation}"


def seconds(state_dir: Path, stop: Stop) -> float:
    """How long the job has after this stop: its own grace, where the stop does not say."""
    if stop.grace >= 0:
        return stop.grace
    launch = workdir.read_launch(state_dir, stop.allocation)
    return launch.spec.grace if launch is not None else 0.0


def give(state_dir: Path, stop: Stop) -> None:
    """Write the notice of this stop, if it takes the job's place back; the first one stays. Raises OSError."""
    if stop.cause not in CAUSES or not os.path.isdir(workdir.place(state_dir, stop.allocation)):
        return
    left = seconds(state_dir, stop)
    said = {"cause": stop.cause, "reason": stop.text, "seconds": left, "deadline": round(time.time() + left, 3)}
    content = msgspec.json.encode(said) + b"\n"
    with workdir.opened(make_directory(state_dir)) as recalls:
        beneath.create_whole(recalls, stop.allocation, content, 0o644)  # the job may be another user's


def make_directory(state_dir: Path) -> str:
    """The directory of all notices, which others can enter and not list. Raises OSError."""
    path = f"{state_dir}/{RECALLS}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    os.chmod(path, 0o711)  # noqa: S103 (in, but no list)
    return path


def forget(state_dir: Path, allocation: str) -> None:
    """Remove the notice of an allocation that is over. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place(state_dir, allocation))
