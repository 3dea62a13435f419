"""A job on the wire and on disk: its request and dependencies (`Dependency`), its limits (`JobLimits`), its state and
why it waits (`Reason`), what it uses (`Used`), and how it ended (`Outcome`)."""

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from enum import IntEnum, StrEnum
from typing import Annotated, Any

import msgspec

from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.placement import Constraints, Local, Strategy
from distributed_grid.protocol.resources import (
    MILLI,
    MOST_FINITE,
    Code,
    Count,
    Finite,
    Grant,
    Resources,
    Span,
    Text,
    Word,
)
from distributed_grid.protocol.text import parse_duration, suggestion

MOST_AFTER = 1000
"""Jobs that one job may wait for. An array counts as one."""


class After(StrEnum):
    """The condition on the other job: it has started; it has ended with exit code 0; it has ended."""

    STARTED = "after"
    OK = "after-ok"
    ENDED = "after-any"


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job waits for another one, or for all members of an array. `on` is an id, a unique beginning of one, a name or
    `last`; in a submission also the key or name of a job before it in the same submission."""

    on: Word
    kind: After


def parse_after(
    after: Iterable[str] = (), after_ok: Iterable[str] = (), after_any: Iterable[str] = ()
) -> dict[str, Any]:
    """The field `after` of a Submission. Raises BadValue."""
    found = [
        Dependency(on.strip(), kind)
        for kind, names in ((After.STARTED, after), (After.OK, after_ok), (After.ENDED, after_any))
        for on in names
    ]
    if any(not one.on for one in found):
        raise BadValue("a job to wait for has no name", hint="give an id, a name or `last`")
    if len(found) > MOST_AFTER:
        raise BadValue(f"a job cannot wait for {len(found)} others", hint=f"{MOST_AFTER} are the most; use an array")
    return {"after": tuple(dict.fromkeys(found))} if found else {}


SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18, "WINCH": 28}
"""Signals that a program can take as a warning, by their numbers on Linux."""
MOST_PIDS = 1 << 22
NODE_PIDS = 10_000
"""Processes and threads that any job may have on a node whose configuration says nothing else: a raylet of a large node
has thousands."""
MOST_FACTOR = 100 * MILLI


class JobLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """`warn_signal` is sent to the job `warn_before` seconds ahead of its time limit (0: none). `pids` is how many
    processes and threads it may have at once (0: what the node allows). `cpu`: it never gets more CPU time than it was
    granted, also where more is idle."""

    warn_signal: Count = 0
    warn_before: Finite = 0.0
    pids: Count = 0
    cpu: bool = False


def parse_limits(
    warn: str | None = None, pids: int | None = None, cpu: bool = False, *, time_limit: float = 0.0
) -> JobLimits:
    """The limits of a job by what a person says of them. Raises BadValue."""
    signal, before = _warning(warn) if warn is not None else (0, 0.0)
    if pids is not None and pids < 1:
        raise BadValue(f"{pids} processes are too few for any job", hint="give a number from 1 up")
    limits = JobLimits(signal, before, pids or 0, cpu)
    check_limits(limits, time_limit)
    return limits


def check_limits(limits: JobLimits, time_limit: float) -> None:
    """Raises BadValue for what makes no sense together, whoever says it."""
    if limits.pids > MOST_PIDS:
        raise BadValue(f"{limits.pids} processes are more than a machine can have", hint=f"give at most {MOST_PIDS}")
    if not limits.warn_signal and not limits.warn_before:
        return
    if limits.warn_signal not in SIGNALS.values():
        raise BadValue(f"signal {limits.warn_signal} cannot be a warning", hint=f"use one of {', '.join(SIGNALS)}")
    if not time_limit:
        raise BadValue(
            "a warning before which end?", why="the job has no time limit", hint="give one with --time, such as 1h"
        )
    if not 0 < limits.warn_before < time_limit:
        raise BadValue(
            f"a warning {limits.warn_before:g} s before a time limit of {time_limit:g} s cannot be given",
            hint="warn later, or give more time",
        )


def _warning(text: str) -> tuple[int, float]:
    """Parse a signal and the seconds before the end: `USR1@60` is SIGUSR1, a minute before."""
    name, at, before = text.partition("@")
    number = SIGNALS.get(name.strip().upper().removeprefix("SIG"))
    if number is None and name.strip().isdecimal():
        number = int(name)
    if number is None or not at:
        names = ", ".join(SIGNALS)
        raise BadValue(f"{text!r} is not a warning", hint=f"write SIGNAL@TIME, as USR1@60, with one of {names}")
    return number, parse_duration(before)


def parse_factor(text: str) -> int:
    """Parse a factor (`2x`, `1.5x` or `2`), in thousandths; above 1 and up to 100. Raises BadValue."""
    try:
        number = Decimal(text.strip().lower().removesuffix("x"))
    except InvalidOperation:
        raise BadValue(f"{text!r} is not a factor", hint="write it as 2x or 1.5x") from None
    if not number.is_finite() or not 1 < number <= MOST_FACTOR // MILLI:
        raise BadValue(f"the factor {text} cannot be used", why="it must be above 1 and at most 100", hint="try 2x")
    return int(number * MILLI)


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The utilisation of a GPU in percent: the mean of the samples, and the highest. If several jobs share it, it is
    the use by all of them."""

    uuid: Word
    mean: Finite = 0.0
    peak: Finite = 0.0


class Use(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one allocation used in the last `seconds`: cores' worth of CPU time (mean, and the highest sample), and the
    most resident memory in bytes. `gpu_memory`: the most bytes that its processes had on one GPU at once (0: unknown,
    as with drivers that name no processes). `usual`: the cores' worth that it did not exceed in 99 of 100 samples of
    the last `usual_for` seconds, ten minutes at most (0: unknown)."""

    allocation: Word
    seconds: Span
    cpu: Finite = 0.0
    cpu_peak: Finite = 0.0
    memory: Count = 0
    gpus: tuple[GpuUse, ...] = ()
    usual: Finite = 0.0
    usual_for: Span = 0.0
    gpu_memory: Count = 0


class Used(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The resources that an attempt of a job used, as far as they were reported, over `seconds`: CPU time in
    core-seconds and the most cores at once, the most memory, and GPU-seconds (utilisation times seconds, over all its
    GPUs); `gpu_memory`: the most bytes on one GPU (0: unknown)."""

    allocation: str
    seconds: Finite = 0.0
    cpu_seconds: Finite = 0.0
    cpu_peak: Finite = 0.0
    memory: Count = 0
    gpu_seconds: Finite = 0.0
    gpu_memory: Count = 0

    @property
    def cpu(self) -> float:
        """Cores, in the mean."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0

    @property
    def gpu(self) -> float:
        """GPUs, in the mean."""
        return self.gpu_seconds / self.seconds if self.seconds else 0.0

    def plus(self, use: Use) -> "Used":
        """Add a report. Sums stay within the bounds of their fields whatever a node reports: a job beyond them could
        not be decoded, not even at the next start of the coordinator."""
        return Used(
            allocation=self.allocation,
            seconds=_sum(self.seconds, use.seconds),
            cpu_seconds=_sum(self.cpu_seconds, use.cpu * use.seconds),
            cpu_peak=max(self.cpu_peak, use.cpu_peak),
            memory=max(self.memory, use.memory),
            gpu_seconds=_sum(self.gpu_seconds, sum(gpu.mean for gpu in use.gpus) / 100 * use.seconds),
            gpu_memory=max(self.gpu_memory, use.gpu_memory),
        )


def _sum(before: float, more: float) -> float:
    return min(MOST_FINITE, max(0.0, before + more))


PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TZ", "TMPDIR", "SHELL")
"""What a job gets of its agent's own environment, if nothing else is said."""


class Priority(IntEnum):
    """Priorities in ascending order, with a second vocabulary: `medium` is also called normal, `urgent` also
    critical."""

    LOW = 0
    MEDIUM = 1
    NORMAL = 1
    HIGH = 2
    URGENT = 3
    CRITICAL = 3

    @property
    def word(self) -> str:
        """Its printed name."""
        return self.name.lower()


_PRIORITY_WORDS = {name.lower(): one for name, one in Priority.__members__.items()}


def parse_priority(text: str) -> Priority:
    """A priority by any of its names. Raises BadValue."""
    try:
        return _PRIORITY_WORDS[str(text).strip().lower()]
    except KeyError:
        names = "low, medium (or normal), high, urgent (or critical)"
        raise BadValue(f"unknown priority {text!r}", hint=f"use one of {names}") from None


class ServiceOrder(StrEnum):
    """The order in which the waiting jobs of a class are served (docs/shares.md)."""

    WAITING = "waiting"
    """By precedence: the longer a job waits against its time limit and its user's share, the sooner."""
    SHARE = "share"
    """By the share of the user, then by age."""


def parse_order(text: str) -> ServiceOrder:
    """An order of service by its name. Raises BadValue."""
    try:
        return ServiceOrder(text.strip().lower())
    except ValueError:
        names = [one.value for one in ServiceOrder]
        hint = f"{suggestion(text, names)}use one of {', '.join(names)}"
        raise BadValue(f"unknown order of service {text!r}", hint=hint) from None


class LimitBy(StrEnum):
    """The source of the run time at which a job is compared with others."""

    LIMIT = "limit"
    """Its time limit, with its grace."""
    USER = "user"
    """The median run time of its user's last jobs."""
    EVERYONE = "everyone"
    """The median run time of the last jobs of all users."""
    DEFAULT = "default"
    """A default, since nothing has run yet."""


class Precedence(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job stands in the order of service by waiting time (docs/shares.md): how long it has waited, the `limit`
    that it is compared by (s) and what that is, its `value`, of which the highest is served next, and seconds until it
    is overdue (0: it is), from when on it comes first. `credit`: the amount by which its user's loans lower their
    share."""

    waited: Finite
    limit: Finite
    by: LimitBy
    value: Finite
    overdue_in: Finite = 0.0
    credit: Finite = 0.0


class State(StrEnum):
    """The state of a job or its allocation. STARTING, RUNNING, STOPPING and LOST hold resources."""

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
    INPUT_LOST = "input-lost"
    NOT_JOINED = "not-joined"
    WITHDRAWN = "withdrawn"
    DISK_FAILED = "disk-failed"


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How a job ended. `code` is its exit code, `signal` what ended it (0: none); `text` says the cause in words.

    `started`: false only if the command certainly never ran. Sizes are bytes of output ever written; `stdout_tail` and
    `stderr_tail` hold the last bytes of each (at most TAIL_BYTES), so that they are known when the node is gone.
    `suspended`: the part of its `seconds` for which it was frozen because the node's owner was active. `cpu_seconds`
    and `peak_memory` (bytes) are the whole process tree's as far as the kernel told.
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
TEXT_CHARS = 2000


def bounded(outcome: Outcome) -> Outcome:
    """Return an outcome with its text and tails cut to what is kept; the agents of this grid send no longer ones."""
    long = max(len(outcome.stdout_tail), len(outcome.stderr_tail)) > TAIL_BYTES
    if not long and len(outcome.text) <= TEXT_CHARS:
        return outcome
    return msgspec.structs.replace(
        outcome,
        text=outcome.text[:TEXT_CHARS],
        stdout_tail=outcome.stdout_tail[-TAIL_BYTES:],
        stderr_tail=outcome.stderr_tail[-TAIL_BYTES:],
    )


def has_failed(outcome: Outcome) -> bool:
    """Whether it did not exit with 0, and was not cancelled."""
    return (outcome.cause is not Cause.EXITED or outcome.code != 0) and outcome.cause is not Cause.CANCELLED


GRID_FAILED = 125
"""The exit code where the grid, not a job, is at fault."""


def exit_status(outcome: Outcome, grid_failed: int = GRID_FAILED) -> int:
    """Return the exit code of `grid run-shared`: the job's own code, 128+N for signal N, or one of the grid's own
    codes; `grid_failed` if the grid is at fault."""
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
            return grid_failed


class OutputFull(StrEnum):
    """What happens to a job that is further ahead of the reader of its output than its node keeps: it waits, as at a
    pipe, or the middle of its output is dropped."""

    WAIT = "wait"
    DROP = "drop"


def parse_output_full(text: str) -> OutputFull:
    """`wait` or `drop`. Raises BadValue."""
    try:
        return OutputFull(text)
    except ValueError:
        raise BadValue(f"output_full {text!r} is not known", hint="say wait or drop") from None


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command and its surroundings. `workdir` is an absolute path on the node (empty: a fresh directory); `bundle`
    is the hash of the manifest of what the caller shipped into it (empty: nothing); times are seconds (`time_limit` 0:
    none; `grace` is what a job gets between SIGTERM and SIGKILL). With a `boost` the command is made on the node: it
    starts a raylet for that. `stdin`: its standard input is a pipe that its submitter fills while it runs (PutInput);
    else it is empty. `attached`: its submitter reads its output from the beginning on; `output_full` is for whoever
    reads it as it runs. `hold`: nothing is run; what is granted is kept for other jobs of its submitter, until its time
    limit. `features`: numbers by which its needs may grow, by name. `keep_all`: unused cores that it holds are not
    lent. `finish_by`: the time when its submitter wants it to be over (grid time; 0: none)."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    name: str = ""
    workdir: str = ""
    bundle: str = ""
    time_limit: Finite = 0.0
    grace: Finite = 5.0
    limits: JobLimits = JobLimits()
    boost: Boost | None = None
    stdin: bool = False
    attached: bool = False
    output_full: OutputFull = OutputFull.WAIT
    hold: bool = False
    features: Annotated[dict[Word, Finite], msgspec.Meta(max_length=16)] = {}
    keep_all: bool = False
    finish_by: Finite = 0.0


MOST_RETRIES = 100


class RetryOn(StrEnum):
    """The ends after which a job is run again."""

    LOST = "lost"
    FAILED = "failed"
    PREEMPTED = "preempted"
    OOM = "oom"


def parse_retries(words: Iterable[str], retries: int | None, memory: str | None = None) -> dict[str, Any]:
    """The fields `retry_on`, `retries` and `retry_memory` of a Request. Words may hold several, with commas; `retries`
    None: once if there are words, else never. A factor for the memory says `oom` by itself. Raises BadValue."""
    words = (*words,)
    if not all(word.strip() for word in words):
        raise BadValue("--retry-on names no end", why="it is empty", hint=f"there are {', '.join(RetryOn)}")
    names = [name.strip().lower() for word in words for name in word.split(",") if name.strip()]
    for name in names:
        if name not in [*RetryOn]:
            hint = f"{suggestion(name, [*RetryOn])}there are {', '.join(RetryOn)}"
            raise BadValue(f"unknown end {name!r} to retry on", hint=hint)
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
    `retry_on`: after which ends it is run again, at most `retries` times; never unless its owner allows it. `requeue`:
    it waits again, with its age, after an eviction (preempted, recalled, drained); else it ends. `retry_memory`: after
    it ran out of the memory it was granted, it asks for this many thousandths of that (0: 1000). Without a `strategy`
    the grid's own decides; `constraints` restrict its node. `revocable`: it may also run on cores that another
    allocation holds and does not use, until that one wants them (docs/unused.md)."""

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
    within: Word = ""
    """It takes what it needs of this hold of its submitter, and waits for room there; its name, until the coordinator
    knows the id."""
    ray: bool = False
    """Ray is to reserve it: the coordinator says this, not the client."""
    user: Word = ""
    """Whose it is, where that decides which nodes may run it (protocol/placement.py); the coordinator says this, not
    the client."""
    revocable: bool = False
    hold: bool = False
    """It is of a hold (`JobSpec.hold`), which a node without agent takes; the coordinator says this of a submission."""
    joins: Word = ""
    """It is a boost for the Ray cluster at this address, and goes to no node where one for that failed a short while
    ago; the coordinator says this. Empty: it is none, or is to be tried at once on the one node that it names."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One line of a job's story: when (grid time, seconds since the epoch), the state entered, and a text."""

    at: Finite
    state: State
    text: str = ""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a job waits: a short stable code (docs/why.md names them all) and a sentence."""

    code: str
    text: str = ""


class Suspension(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job is frozen since then (grid time), for that reason. `by_holder`: for the job on whose cores it runs."""

    since: Finite
    why: str
    by_holder: bool = False


class JobView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job as clients see it. Times are grid time: seconds since the epoch that never jump. `attempt` counts the
    allocations it was granted, `retried` how often it was run again after one had ended, `evicted` how often the
    grid evicted it after it had begun. `suspended`: it is frozen now, as its node's owner is back;
    `suspended_for`: seconds it was before that, in this attempt. `awaits_reader`: it is frozen now until the reader of
    its output has read more. `used` is of the last attempt; `unused` says what it holds and does not use, where that is
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
    evicted: Count = 0
    group: str = ""
    index: Count = 0
    suspended: Suspension | None = None
    suspended_for: Finite = 0.0
    awaits_reader: Suspension | None = None
    used: Used | None = None
    unused: str = ""
    after: tuple[Dependency, ...] = ()
    """What it waits for still."""
    begin: Finite = 0.0
    walls: str = ""
    """The walls behind which its last attempt runs or ran, as its node told."""
    next_after: Word = ""
    """It starts on its node as soon as this job has ended there."""


def next_attempt(allocation: str) -> str:
    """The id of the attempt after this one, if there was one."""
    job, _, number = allocation.rpartition(".")
    return f"{job}.{int(number) + 1}"
