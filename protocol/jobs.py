"""What a job is, on the wire and on disk: what was asked for, where it stands, how it ended."""

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from distributed_grid.protocol.after import Dependency
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.limits import JobLimits, parse_factor
from distributed_grid.protocol.numbers import Code, Count, Finite, Text, Word
from distributed_grid.protocol.placing import Constraints, Local, Strategy
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.protocol.usage import Used

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", "SHELL")
"""What a job gets of its agent's own environment, if nothing else is said."""


class Priority(IntEnum):
    """One order with two vocabularies: `medium` is also called normal, `urgent` also critical."""

    LOW = 0
    MEDIUM = 1
    NORMAL = 1
    HIGH = 2
    URGENT = 3
    CRITICAL = 3

    @property
    def word(self) -> str:
        """What it is called wherever it is printed."""
        return self.name.lower()


_PRIORITY_WORDS = {name.lower(): one for name, one in Priority.__members__.items()}


def parse_priority(text: str) -> Priority:
    """A priority by any of its names. Raises BadValue."""
    try:
        return _PRIORITY_WORDS[str(text).strip().lower()]
    except KeyError:
        names = "low, medium (or normal), high, urgent (or critical)"
        raise BadValue(f"unknown priority {text!r}", hint=f"use one of {names}") from None


class State(StrEnum):
    """Where a job or its allocation stands. STARTING, RUNNING, STOPPING and LOST hold resources."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    LOST = "lost"
    ENDED = "ended"


HOLDING = frozenset({State.STARTING, State.RUNNING, State.STOPPING, State.LOST})


class Cause(StrEnum):
    """Why a job is over."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIME_LIMIT = "time-limit"
    CANCELLED = "cancelled"
    NOT_FOUND = "not-found"
    NOT_EXECUTABLE = "not-executable"
    SPAWN_FAILED = "spawn-failed"
    WORKDIR_FAILED = "workdir-failed"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_LOST = "node-lost"
    SUPERVISOR_LOST = "supervisor-lost"
    REBOOTED = "rebooted"
    LEASE_EXPIRED = "lease-expired"
    GANG = "gang"
    NOT_PLACED = "not-placed"
    DEPENDENCY_FAILED = "dependency-failed"
    RESTORED = "restored"
    PREEMPTED = "preempted"
    RECALLED = "recalled"
    DRAINED = "drained"
    RELEASED = "released"
    NODE_OUT_OF_MEMORY = "node-out-of-memory"
    TOO_MANY_PROCESSES = "too-many-processes"
    NOT_JOINED = "not-joined"


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job ended. `code` is its exit code, `signal` what ended it (0: none); `text` says the cause in words.

    `started`: false only where it is sure that the command never ran. Sizes are bytes of output ever written;
    `stdout_tail` and `stderr_tail` hold the last bytes of each (at most TAIL_BYTES), so that they are known when the
    node is not there any more.
    `suspended`: so many of its `seconds` it was frozen since the node's owner was there.
    `cpu_seconds` and `peak_memory` (bytes) are the whole process tree's as far as the kernel told.
    """

    cause: Cause
    code: Code = 0
    signal: Code = 0
    text: Text = ""
    started: bool = True
    seconds: Finite = 0.0
    cpu_seconds: Finite = 0.0
    peak_memory: Count = 0
    stdout_size: Count = 0
    stderr_size: Count = 0
    stdout_tail: bytes = b""
    stderr_tail: bytes = b""
    suspended: Finite = 0.0


TAIL_BYTES = 16 << 10


def exit_status(outcome: Outcome) -> int:
    """What `grid run-shared` exits with: the job's own code, 128+N for signal N, or one of the grid's own codes."""
    match outcome.cause:
        case Cause.EXITED:
            return outcome.code
        case Cause.SIGNALLED | Cause.CANCELLED | Cause.TOO_MANY_PROCESSES if outcome.signal:
            return 128 + outcome.signal
        case Cause.PREEMPTED | Cause.RECALLED | Cause.DRAINED | Cause.RELEASED if outcome.signal:
            return 128 + outcome.signal
        case Cause.OUT_OF_MEMORY | Cause.NODE_OUT_OF_MEMORY:
            return 137  # as if SIGKILL had ended it, also where that hit only a part of it
        case Cause.TIME_LIMIT:
            return 124
        case Cause.NOT_FOUND:
            return 127
        case Cause.NOT_EXECUTABLE:
            return 126
        case Cause.NOT_PLACED:
            return 75
        case Cause.CANCELLED:
            return outcome.code if outcome.started and outcome.code else 130
        case _:
            return 125


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command and its surroundings. `workdir` is an absolute path on the node (empty: a fresh directory);
    `bundle` is the hash of the manifest of what the caller shipped into it (empty: nothing); times are seconds
    (`time_limit` 0: none; `grace` is what a job gets between SIGTERM and SIGKILL). With a `boost` the command
    is made on the node: it starts a raylet for that."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    name: str = ""
    workdir: str = ""
    bundle: str = ""
    time_limit: Finite = 0.0
    grace: Finite = 5.0
    limits: JobLimits = JobLimits()
    boost: Boost | None = None


MOST_RETRIES = 100


class RetryOn(StrEnum):
    """What may have happened to a job that is to be run again."""

    LOST = "lost"
    FAILED = "failed"
    PREEMPTED = "preempted"
    OOM = "oom"


def parse_retries(words: Iterable[str], retries: int | None, memory: str | None = None) -> dict[str, Any]:
    """The fields `retry_on`, `retries` and `retry_memory` of a Request. Words may hold several, with commas; `retries`
    None: once if there are words, else never. A factor for the memory says `oom` by itself. Raises BadValue."""
    names = [name.strip().lower() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in [*RetryOn]:
            from difflib import get_close_matches

            near = get_close_matches(name, [*RetryOn], 1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise BadValue(f"unknown end {name!r} to retry on", hint=f"{meant}there are {', '.join(RetryOn)}")
    factor = parse_factor(memory) if memory is not None else 0
    if factor and RetryOn.OOM not in names:
        names.append(RetryOn.OOM)
    if retries is None:
        retries = 1 if names else 0
    if retries and not names:
        raise BadValue(f"{retries} retries after what?", hint="say it with --retry-on lost, failed, preempted or oom")
    if names and not 1 <= retries <= MOST_RETRIES:
        raise BadValue(f"{retries} retries cannot be asked for", hint=f"give a number from 1 to {MOST_RETRIES}")
    return {"retry_on": tuple(dict.fromkeys(map(RetryOn, names))), "retries": retries, "retry_memory": factor}


class Request(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """What a job needs. `nodes` are preferred, not required. `immediate`: end as not placed if it cannot start now.
    `retry_on`: after which ends it is run again, at most `retries` times; never unless its owner said so. `requeue`: it
    waits again, with its age, where the grid itself took its place back (preempted, recalled, drained); else it ends.
    `retry_memory`: after it ran out of the memory it was granted, it asks for this many thousandths of that (0: 1000).
    Without a `strategy` the grid's own decides; `constraints` say what its node has to be.
    """

    resources: Resources
    priority: Priority = Priority.MEDIUM
    nodes: tuple[str, ...] = ()
    immediate: bool = False
    retry_on: tuple[RetryOn, ...] = ()
    retries: Code = 0
    requeue: bool = True
    gang: Code = 0
    retry_memory: Code = 0
    strategy: Strategy | None = None
    local: Local | None = None
    constraints: Constraints | None = None
    ray: bool = False
    """Ray is to reserve it: the coordinator says this, not the client."""
    user: Word = ""
    """Whose it is, where that decides which nodes may run it (protocol/walls.py); the coordinator says this, not the
    client."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a job's story: when (grid time, seconds since the epoch), the state entered, and what happened."""

    at: Finite
    state: State
    text: str = ""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job waits: a short stable code (NoOffers, Resources, Priority, NeverFits, …) and a sentence."""

    code: str
    text: str = ""


class Suspension(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job is frozen since then (grid time), for that reason: its node's owner is back."""

    since: Finite
    why: str


class JobView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job as clients see it. Times are grid time: seconds since the epoch that never jump. `attempt` counts the
    allocations it was granted, `retried` how often it was run again after one had ended, `taken_back` how often the
    grid took its place back after it had begun. `suspended`: it is frozen now; `suspended_for`: seconds it was before
    that, in this attempt. `used` is of the last attempt; `unused` says what it holds and does not use, where that is
    so."""

    id: str
    user: str
    state: State
    spec: JobSpec
    request: Request
    submitted: Finite
    attempt: Count = 0
    allocation: str = ""
    node: str = ""
    grant: Grant | None = None
    started: Finite = 0.0
    ended: Finite = 0.0
    reason: Reason | None = None
    outcome: Outcome | None = None
    story: tuple[Step, ...] = ()
    retried: Count = 0
    taken_back: Count = 0
    group: str = ""
    index: Count = 0
    suspended: Suspension | None = None
    suspended_for: Finite = 0.0
    used: Used | None = None
    unused: str = ""
    after: tuple[Dependency, ...] = ()
    """What it waits for still."""
    begin: Finite = 0.0
    walls: str = ""
    """The walls behind which its last attempt runs or ran, as its node told."""


def next_attempt(allocation: str) -> str:
    """The id of the attempt after this one, if there was one."""
    job, _, number = allocation.rpartition(".")
    return f"{job}.{int(number) + 1}"
