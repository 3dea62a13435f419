"""What can be asked of a grid: each request once, for the asyncio and the blocking client.

A request is a generator (`Steps`): it yields messages, gets their answers, and returns what was asked for. The clients
run it; no connection, clock or thread is known here. Below it, what a job to submit is made of.
"""

import itertools
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from distributed_grid.protocol.boosts import DURATION
from distributed_grid.protocol.codec import BULK_BYTES, encode
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupView, parse_array, parse_gang
from distributed_grid.protocol.jobs import (
    JobLimits,
    JobSpec,
    JobView,
    OutputFull,
    Priority,
    Request,
    State,
    parse_after,
    parse_limits,
    parse_output_full,
    parse_priority,
    parse_retries,
)
from distributed_grid.protocol.messages import (
    AskWhy,
    Boosts,
    Cancel,
    DrainNodes,
    GetQuota,
    GetReceipts,
    GetShared,
    GetShares,
    GetStatus,
    Jobs,
    LabelNodes,
    ListBoosts,
    ListJobs,
    NewCertificate,
    Quotas,
    RequestBoost,
    SetRights,
    Shared,
    Shares,
    ShowJobs,
    SignalJob,
    Status,
    Submission,
    Submit,
    UndrainNodes,
    WantCertificate,
    Why,
    joined,
    next_page,
)
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.messages.rights import Whose, parse_rights
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.placement import Walls, parse_placing
from distributed_grid.protocol.resources import (
    GIB,
    MILLI,
    Resources,
    ResourceType,
    parse_cpu,
    parse_gpu,
    parse_memory,
)
from distributed_grid.protocol.text import parse_duration

_GROUP_BYTES, _GROUP_JOBS = BULK_BYTES // 4, 4000
T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""Yields a message, for its answer (it gets a number where its id is 0), or one of the steps below."""


class Once(msgspec.Struct, frozen=True):
    """A message that is not to be repeated on another connection, for its answer. ConnectionLost: nobody knows."""

    message: Any


class Post(msgspec.Struct, frozen=True):
    """A message that is not answered, for nothing, once it has left."""

    message: Any


class Together(msgspec.Struct, frozen=True):
    """Messages at once, for all their answers; `most`: so many are not answered at a time (0: any number)."""

    messages: Iterable[Any]
    most: int = 0


class Until(msgspec.Struct, frozen=True):
    """A job, for the first view of it that this is true of."""

    view: JobView
    reached: Callable[[JobView], bool]


class Returned(msgspec.Struct, frozen=True):
    """What a request returned."""

    value: Any


def advance(steps: Steps[Any], answer: Any, error: Exception | None) -> Any:
    """Go on with a request, with the answer to its last step or why there is none: the next step, or Returned."""
    try:
        return steps.send(answer) if error is None else steps.throw(error)
    except StopIteration as end:
        return Returned(end.value)


def pages(message: Any) -> Steps[Any]:
    """A list, over as many answers as it takes."""
    answer = page = yield message
    while (message := next_page(message, page, 0)) is not None:
        page = yield message
        answer = joined(answer, page)
    return answer


# --- jobs -------------------------------------------------------------------------------------------------------------


def submit(command: str | Sequence[str], **options: Any) -> Steps[str]:
    """Submit one job (options as in `describe_job`) and return its id, once it is on the coordinator's disk."""
    (group,) = _groups([describe_job(command, **options)])
    job: str = (yield Submit(id=0, jobs=group)).jobs[0]
    return job


def submit_many(jobs: Sequence[Submission]) -> Steps[list[str]]:
    """Submit jobs and return their ids in order. They travel in groups, each of which is accepted as a whole or not at
    all. If no job names another, a group leaves while the one before is stored: so where one is refused, the groups
    before it, and at most one behind it, are accepted. Under the same keys they can be submitted again."""
    groups = (Submit(id=0, jobs=group) for group in _groups(jobs))
    named = any(job.after or job.request.constraints for job in jobs)
    answers = yield Together(groups, most=1 if named else 2)
    return [one for answer in answers for one in answer.jobs]


def wait(job: str) -> Steps[JobView]:
    """The job (id, unique prefix, name or `last`) once it has ended."""
    view = yield from show(job)
    ended: JobView = yield Until(view, lambda one: one.state is State.ENDED)
    return ended


def show(job: str) -> Steps[JobView]:
    """A job as it stands, with its story."""
    answer: Jobs = yield ShowJobs(id=0, jobs=(job,))
    if answer.groups:
        raise BadValue(f"{answer.groups[0].id} is many jobs", why="this is for one", hint="name one of its members")
    return answer.jobs[0]


def jobs(
    *, ended: bool = False, states: Iterable[State] = (), user: str = "", limit: int = 1000
) -> Steps[list[JobView]]:
    """Jobs, at most `limit`: those that live, the newest first, then with `ended` the others, the newest end first."""
    answer = yield from pages(ListJobs(id=0, ended=ended, states=tuple(states), user=user, limit=limit))
    return list(answer.jobs)


def arrays(*, ended: bool = False, user: str = "", limit: int = 1000) -> Steps[list[GroupView]]:
    """Arrays as wholes, at most `limit`: those that live, then with `ended` the others."""
    return list((yield ListJobs(id=0, ended=ended, user=user, limit=limit, fold=True)).groups)


def show_array(array: str) -> Steps[GroupView]:
    """An array as it stands."""
    answer: Jobs = yield ShowJobs(id=0, jobs=(array,))
    if not answer.groups:
        raise BadValue(f"{array} is no array", hint="`show` is for single jobs")
    return answer.groups[0]


def members(array: str) -> Steps[list[JobView]]:
    """The jobs of an array as they stand, in short."""
    return list((yield ShowJobs(id=0, jobs=(array,), members=True)).jobs)


def cancel(*jobs: str, reason: str = "", grace: float | None = None) -> Steps[None]:
    """End these jobs: SIGTERM, `grace` seconds (none: each job's own), SIGKILL. Returns once that is on disk."""
    yield Cancel(id=0, jobs=jobs, reason=reason, grace=-1.0 if grace is None else grace)


def signal(job: str, signum: int) -> Steps[None]:
    """Send a signal to a running job, once. Raises ConnectionLost where it is not known whether that was done."""
    yield Once(SignalJob(id=0, job=job, signal=signum))


def why(job: str = "", request: Request | None = None) -> Steps[Why]:
    """Why a job is where it is, or where a request would go."""
    answer: Why = yield AskWhy(id=0, job=job, request=request)
    return answer


def _groups(jobs: Sequence[Submission]) -> Iterator[tuple[Submission, ...]]:
    """The jobs in groups that each fit a frame."""
    for at in range(0, len(jobs), _GROUP_JOBS):
        yield from _halved(jobs[at : at + _GROUP_JOBS])


def _halved(jobs: Sequence[Submission]) -> Iterator[tuple[Submission, ...]]:
    length, half = len(encode(0, [*jobs])), len(jobs) // 2
    if length <= (_GROUP_BYTES if half else BULK_BYTES - 1024):
        yield tuple(jobs)
    elif half:
        yield from (*_halved(jobs[:half]), *_halved(jobs[half:]))
    else:
        raise BadValue("a job is too large to submit", why=f"its command and environment have {length} bytes")


# --- boosts -----------------------------------------------------------------------------------------------------------


def request_boost(
    target: str,
    kind: ResourceType,
    amount: float,
    *,
    priority: Priority = Priority.NORMAL,
    duration: float = DURATION,
    source: str = "",
    only_source: str = "",
    exclusive: bool = False,
    walls: Walls = Walls.NONE,
) -> Steps[str]:
    """Ask for a boost of so many cores, GPUs or GB for `duration` seconds, and return its id, once it is on the
    coordinator's disk. It is a job: `follow` tells how it goes on, and it is lent once it runs. `source` is preferred,
    `only_source` the only node asked. `exclusive`: for programs that use its placement group alone. `walls`: from a
    node with this level or a stronger one."""
    answer = yield RequestBoost(
        id=0,
        key=secrets.token_hex(16),
        target=target,
        kind=kind,
        amount=amount,
        priority=priority,
        duration=duration,
        source=source,
        only_source=only_source,
        exclusive=exclusive,
        walls=walls,
    )
    job: str = answer.jobs[0]
    return job


def boosts(target: str = "") -> Steps[Boosts]:
    """The boosts that have not ended, for all nodes or one, and what Ray shows."""
    answer: Boosts = yield from pages(ListBoosts(id=0, target=target))
    return answer


# --- the grid ---------------------------------------------------------------------------------------------------------


def status() -> Steps[Status]:
    """How the grid is."""
    answer: Status = yield from pages(GetStatus(id=0))
    return answer


def nodes() -> Steps[list[NodeView]]:
    """The nodes."""
    return list((yield from status()).nodes)


def shared(node: str = "") -> Steps[Shared]:
    """What is offered and what is lent, on all nodes or one."""
    answer: Shared = yield from pages(GetShared(id=0, node=node))
    return answer


def shares() -> Steps[Shares]:
    """Who holds how much, and who is next (docs/shares.md)."""
    answer: Shares = yield GetShares(id=0)
    return answer


def quota(user: str = "") -> Steps[Quotas]:
    """What one may have, and has (docs/rights.md); for operators those of a `user`, or of all users and groups."""
    answer: Quotas = yield GetQuota(id=0, user=user)
    return answer


def set_rights(name: str = "", *, whose: str = "user", **rights: Any) -> Steps[str]:
    """Grant rights to a user, a `group`, or by `default` to everybody: `highest_priority`, `cores`, `memory` (GB, or
    text), `gpus`, `core_hours`, `gpu_hours`, `jobs_waiting` (each a number, or "unlimited"), `exclusive_boosts`,
    `reservations`. What is not named stays as it is. Returns what holds then, once it is on disk."""
    return str((yield SetRights(id=0, whose=Whose(whose), name=name, rights=parse_rights(rights))).text)


def unset_rights(name: str = "", *, whose: str = "user") -> Steps[str]:
    """Take back all rights that operators have granted so: the configuration holds again."""
    return str((yield SetRights(id=0, whose=Whose(whose), name=name, rights=None)).text)


def drain(*nodes: str, reason: str = "", deadline: float | str | None = None) -> Steps[str]:
    """Give these nodes no new job; what still runs there after `deadline` (seconds or text such as `"30m"`; 0: now) is
    taken back. Returns what came of it, once it is on disk."""
    seconds = -1.0 if deadline is None else parse_duration(str(deadline), zero=True)
    return str((yield DrainNodes(id=0, nodes=nodes, reason=reason, deadline=seconds)).text)


def undrain(*nodes: str) -> Steps[str]:
    """Give these nodes jobs again."""
    return str((yield UndrainNodes(id=0, nodes=nodes)).text)


def label(*nodes: str, labels: Mapping[str, str | None]) -> Steps[str]:
    """Give these nodes these labels; None removes one."""
    return str((yield LabelNodes(id=0, nodes=nodes, labels=dict(labels))).text)


def receipts(job: str = "", node: str = "", limit: int = 100) -> Steps[list[Receipt]]:
    """What was preempted, the newest first: where this job took a place or gave one, or on this node."""
    return list((yield GetReceipts(id=0, job=job, node=node, limit=limit)).receipts)


def renew(identity: Path) -> Steps[float]:
    """Have a new certificate for the identity in this folder; when to do that next, in seconds since the epoch (0: none
    was given)."""
    from distributed_grid.identity.enrollment import RenewalRequest, renewal_time

    asked = RenewalRequest(identity)
    answer: NewCertificate = yield WantCertificate(id=0, request=asked.request)
    if not answer.certificate:
        return 0.0
    asked.keep(answer.certificate)
    return renewal_time(identity)


# --- what a job is made of --------------------------------------------------------------------------------------------

_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def parse_begin(text: str, now: datetime) -> dict[str, Any]:
    """The field `begin` or `delay` of a Submission: `+30m` from when it is taken, a time of day (the next), or a date
    and time as in ISO 8601. What has no time zone is in that of `now`. Raises BadValue."""
    text = text.strip()
    if text.startswith("+"):
        return {"delay": parse_duration(text[1:])}
    if (match := _OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return {"begin": (at if at > now else at + timedelta(days=1)).timestamp()}
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        hint = "write it as +30m, 22:15 or 2030-01-31T22:15"
        raise BadValue(f"the time {text!r} cannot be read", hint=hint) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)
    return {"begin": max(0.0, at.timestamp())}


def describe_job(
    command: str | Sequence[str],
    *,
    cpus: float | str | None = None,
    memory: float | str | None = None,
    gpus: float | str | None = None,
    resources: Resources | None = None,
    priority: str | Priority = Priority.MEDIUM,
    nodes: Iterable[str] | int = (),
    name: str = "",
    env: Mapping[str, str] | None = None,
    workdir: str = "",
    bundle: str = "",
    time_limit: float | str | None = None,
    grace: float = 5.0,
    warn_signal: str | None = None,
    pids_limit: int | None = None,
    cpu_limit: bool = False,
    immediate: bool = False,
    strategy: str | None = None,
    only: Iterable[str] = (),
    exclude: Iterable[str] = (),
    labels: Iterable[str] = (),
    gpu_model: str = "",
    gpu_memory: float | str | None = None,
    near: Iterable[str] = (),
    apart: Iterable[str] = (),
    walls: str | None = None,
    retry_on: Iterable[str] = (),
    retries: int | None = None,
    retry_memory: float | str | None = None,
    requeue: bool = True,
    array: str | Array | None = None,
    max_fails: int | None = None,
    after: Iterable[str] = (),
    after_ok: Iterable[str] = (),
    after_any: Iterable[str] = (),
    begin: str | datetime | None = None,
    stdin: bool = False,
    attached: bool = False,
    output_full: str = OutputFull.WAIT.value,
    key: str = "",
) -> Submission:
    """A job to submit. Raises BadValue for what cannot be asked.

    A command given as text is split as a shell would split it, but no shell runs it: one with a pipe or a redirection
    is refused, and is written as `["sh", "-c", "…"]`. As a sequence it is taken as is.
    `memory` without a unit is in GB (`4`, `"512M"`); `time_limit` is seconds or text such as `"1h30m"`, and
    `warn_signal` (`"USR1@60"`) what the job gets so many seconds before it; `pids_limit` is how many processes and
    threads it may have at once, and with `cpu_limit` it never gets more CPU time than granted. Without `cpus` a job
    gets one core.

    `retry_on` names after which ends (lost, failed, preempted, oom) it is run again, at most `retries` times (once, if
    that is not said), after its own oom with `retry_memory` times the memory; without `requeue` it ends, rather than
    wait again, where the grid takes its place back. `key` makes submitting it again safe across processes: per user,
    one key is one job, ever.

    `strategy` says how the node is chosen; without it the grid's own does. `nodes` names those preferred; a number asks
    for a gang: the command runs on so many nodes at once, as one group. The node has to be one of `only`, none of
    `exclude`, with `labels` (`"K=V"`, `"K!=V"`, `"K"`), and GPUs of `gpu_model` (a part of the name, or a glob) with
    `gpu_memory` free (GB, or text); where each of the jobs `near` (ids, or names) is, and none of those `apart`; with
    `walls` of that level (`"user"`, `"namespace"`, `"landlock"`) or a stronger one.

    `array` (`"0-99%8"`) makes many jobs of it, each with its own GRID_ARRAY_INDEX; if more than `max_fails` of them
    fail, the rest is ended. Nothing is placed before all jobs (or arrays) in `after` have started, those in `after_ok`
    have exited with 0, those in `after_any` have ended, and the time `begin` (`"+30m"`, `"22:15"`, ISO 8601 or a
    datetime) has come. `stdin`: its standard input is sent while it runs, as `run(…, stdin=…)` of the clients does.

    `attached`: its output is read from the beginning on, by `stream`. A job that is further ahead of whoever reads its
    output than its node keeps waits, or with `output_full="drop"` the middle of its output is dropped.
    """
    limit, limits = _kept(_limits, time_limit, warn_signal, pids_limit, cpu_limit)
    spec = JobSpec(
        argv=_argv(command),
        env=dict(env or {}),
        name=name,
        workdir=workdir,
        bundle=bundle,
        time_limit=limit,
        grace=grace,
        limits=limits,
        stdin=stdin,
        attached=attached,
        output_full=_OUTPUT_FULL.get(output_full) or parse_output_full(output_full),
    )
    request = _kept(
        _request, cpus, memory, gpus, resources, priority, nodes if isinstance(nodes, int) else _fixed(nodes),
        immediate, strategy, _fixed(only), _fixed(exclude), _fixed(labels), gpu_model, gpu_memory, _fixed(near),
        _fixed(apart), walls, _fixed(retry_on), retries, retry_memory, requeue,
    )  # fmt: skip
    many = parse_array(array, max_fails) if isinstance(array, str) else array
    before = parse_after(after, after_ok, after_any) if after or after_ok or after_any else {}
    if isinstance(begin, datetime):
        before["begin"] = begin.timestamp()
    elif begin is not None:
        before |= parse_begin(begin, datetime.now().astimezone())
    return Submission(key=key or _new_key(), spec=spec, request=request, array=many, **before)


KEPT = 256
"""Requests kept by what was asked: most jobs of a long list ask for the same."""
_OUTPUT_FULL = {one.value: one for one in OutputFull}


def _fixed(words: Iterable[str]) -> str | tuple[str, ...]:
    return words if isinstance(words, str) else tuple(words)


def _kept(function: Any, *asked: Any) -> Any:
    """What a cached function returns, also for arguments that have no hash."""
    try:
        return function(*asked)
    except TypeError:
        return function.__wrapped__(*asked)


@lru_cache(KEPT, typed=True)
def _limits(
    time_limit: float | str | None, warn_signal: str | None, pids_limit: int | None, cpu_limit: bool
) -> tuple[float, JobLimits]:
    limit = parse_duration(str(time_limit)) if time_limit is not None else 0.0
    return limit, parse_limits(warn_signal, pids_limit, cpu_limit, time_limit=limit)


@lru_cache(KEPT, typed=True)
def _request(
    cpus: float | str | None,
    memory: float | str | None,
    gpus: float | str | None,
    resources: Resources | None,
    priority: str | Priority,
    nodes: Iterable[str] | int,
    immediate: bool,
    strategy: str | None,
    only: Iterable[str],
    exclude: Iterable[str],
    labels: Iterable[str],
    gpu_model: str,
    gpu_memory: float | str | None,
    near: Iterable[str],
    apart: Iterable[str],
    walls: str | None,
    retry_on: Iterable[str],
    retries: int | None,
    retry_memory: float | str | None,
    requeue: bool,
) -> Request:
    """The request of these options of `describe_job`."""
    wanted = resources or Resources(
        cpu=parse_cpu(str(cpus)) if cpus is not None else 0,
        memory=parse_memory(str(memory), bare=GIB) if memory is not None else 0,
        gpu=parse_gpu(str(gpus)) if gpus is not None else 0,
    )
    if not wanted.cpu:
        wanted = msgspec.structs.replace(wanted, cpu=MILLI)
    level = priority if isinstance(priority, Priority) else parse_priority(priority)
    named, gang = ((), parse_gang(nodes)) if isinstance(nodes, int) else (nodes, 0)
    request = Request(
        resources=wanted, priority=level, nodes=tuple(named), immediate=immediate, requeue=requeue, gang=gang
    )
    where = parse_placing(
        gpu=wanted.gpu,
        strategy=strategy,
        only=only,
        exclude=exclude,
        labels=labels,
        gpu_model=gpu_model,
        gpu_memory=gpu_memory,
        near=near,
        apart=apart,
        walls=walls,
    )
    more = str(retry_memory) if retry_memory is not None else None
    return msgspec.structs.replace(request, **where, **parse_retries(retry_on, retries, more))


class _Keys:
    """Keys for submissions: 96 random bits of this process and a running number. Keys that follow each other are stored
    at a fraction of the cost of random ones. A forked child begins with bits of its own."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._mine = secrets.token_hex(12)
        self._numbers = itertools.count()

    def __call__(self) -> str:
        return f"{self._mine}{next(self._numbers):08x}"


_new_key = _Keys()


_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL)
_FOR_SHELLS = re.compile(r"\|\|?|&&?|;;?|\d*[<>].*|&>.*|.*[^\\];", re.DOTALL)
"""A word, with its quotes, and those words that mean something to a shell only: operators and redirections."""


def _argv(command: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        try:
            argv = tuple(shlex.split(command))
        except ValueError as error:
            raise BadValue(f"the command {command!r} cannot be split into words", why=str(error)) from None
        if word := next((one for one in _WORD.findall(command) if _FOR_SHELLS.fullmatch(one)), ""):
            raise BadValue(
                f"{word!r} in {command!r} is for a shell, and no shell runs the command",
                why=f"{argv[0]} would get it as an argument",
                hint=f"give {json.dumps(['sh', '-c', command], ensure_ascii=False)}, or quote what is an argument",
            )
    else:
        try:
            argv = tuple(command)
        except TypeError:
            raise BadValue(f"{command!r} is not a command", hint="give a string, or a list of strings") from None
    if not argv or not argv[0]:
        raise BadValue("the command is empty", hint="give a program and its arguments")
    return argv
