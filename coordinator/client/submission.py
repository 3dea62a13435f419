"""Build a submission from a command and its options, as programs and the command line give them."""

import itertools
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import UnionType
from typing import Any

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, parse_array, parse_gang
from distributed_grid.protocol.jobs import (
    JobLimits,
    JobSpec,
    OutputFull,
    Priority,
    Request,
    parse_after,
    parse_limits,
    parse_output_full,
    parse_priority,
    parse_retries,
)
from distributed_grid.protocol.messages import (
    Submission,
)
from distributed_grid.protocol.placement import parse_placing
from distributed_grid.protocol.resources import (
    GIB,
    MILLI,
    Resources,
    parse_cpu,
    parse_gpu,
    parse_memory,
)
from distributed_grid.protocol.text import parse_duration

HOLD_DURATION = 3600.0
"""Default duration of a hold (s)."""
_OF_DAY = r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?"


def parse_begin(when: str | datetime, now: datetime) -> dict[str, Any]:
    """The field `begin` or `delay` of a Submission: `+30m` from when it is taken, a time of day (the next), or a date
    and time, also as in ISO 8601. What has no time zone is in that of `now`; where that has none, in this
    machine's, by the rules that hold at that moment and not now (summer time). Raises BadValue."""
    if isinstance(when, datetime):
        return {"begin": _seconds(when, now)}
    hint = "write it as +30m, 22:15 or 2030-01-31T22:15"
    if not isinstance(when, str):
        raise BadValue(f"the time {when!r:.80} cannot be read", hint=f"{hint}; or give a datetime")
    text = when.strip()
    if text.startswith("+"):
        return {"delay": parse_duration(text[1:])}
    if (match := re.fullmatch(_OF_DAY, text)) is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return {"begin": (at if at > now else at + timedelta(days=1)).timestamp()}
    try:
        return {"begin": _seconds(datetime.fromisoformat(text), now)}
    except ValueError:
        raise BadValue(f"the time {text!r} cannot be read", hint=hint) from None


def _seconds(at: datetime, now: datetime) -> float:
    """A moment in seconds since the epoch; one before that is 0."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)
    try:
        return max(0.0, at.timestamp())
    except (ValueError, OverflowError):  # at either end of the calendar nobody knows an hour of a place
        return max(0.0, at.replace(tzinfo=UTC).timestamp())


def finish_at(when: str | datetime) -> float:
    """The time by which a job should be over (grid time), written as for `begin`. Raises BadValue."""
    now = datetime.now()
    found = parse_begin(when, now)
    return float(found["begin"] if "begin" in found else now.timestamp() + found["delay"])


def describe_job(
    command: str | Sequence[str],
    *,
    cpus: float | str | None = None,
    memory: float | str | None = None,
    gpus: float | str | None = None,
    resources: Resources | None = None,
    priority: str | Priority = Priority.MEDIUM,
    nodes: str | Iterable[str] | int = (),
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
    only: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    labels: str | Iterable[str] = (),
    gpu_model: str = "",
    gpu_memory: float | str | None = None,
    near: str | Iterable[str] = (),
    apart: str | Iterable[str] = (),
    walls: str | None = None,
    retry_on: str | Iterable[str] = (),
    retries: int | None = None,
    retry_memory: float | str | None = None,
    requeue: bool = True,
    revocable: bool = False,
    keep_all: bool = False,
    array: str | Array | None = None,
    max_fails: int | None = None,
    after: str | Iterable[str] = (),
    after_ok: str | Iterable[str] = (),
    after_any: str | Iterable[str] = (),
    begin: str | datetime | None = None,
    within: str = "",
    stdin: bool = False,
    attached: bool = False,
    output_full: str = OutputFull.WAIT.value,
    key: str = "",
    features: Mapping[str, float] | None = None,
    finish_by: str | datetime | None = None,
) -> Submission:
    """Return a job to submit. Raises BadValue for an invalid option.

    A command given as text is split as a shell would split it, but no shell runs it: one with a pipe or a redirection
    is refused, and is written as `["sh", "-c", "…"]`. As a sequence it is taken as is. `memory` without a unit is in GB
    (`4`, `"512M"`); `time_limit` is seconds or text such as `"1h30m"`, and `warn_signal` (`"USR1@60"`) what the job
    gets so many seconds before it; `pids_limit` is how many processes and threads it may have at once, and with
    `cpu_limit` it never gets more CPU time than granted. Without `cpus` a job gets one core.

    `retry_on` names after which ends (lost, failed, preempted, oom) it is run again, at most `retries` times (once, if
    that is not said), after its own oom with `retry_memory` times the memory; without `requeue` it ends, rather than
    wait again, where the grid takes its place back. `revocable`: it may also run on cores that another job holds and
    does not use, until that one wants them; `keep_all`: what it holds itself is lent to nobody so. `key` makes
    submitting it again safe across processes: per user, one key is one job, ever.

    Options that name several, such as `nodes` and `after_ok`, take a string for one.

    `strategy` says how the node is chosen; without it the grid's own does. `nodes` names those preferred; a number asks
    for a gang: the command runs on so many nodes at once, as one group. The node has to be one of `only`, none of
    `exclude`, with `labels` (`"K=V"`, `"K!=V"`, `"K"`), and GPUs of `gpu_model` (a part of the name, or a glob) with
    `gpu_memory` free (GB, or text); where each of the jobs `near` (ids, or names) is, and none of those `apart`; with
    `walls` of that level (`"user"`, `"namespace"`, `"landlock"`) or a stronger one.

    `array` (`"0-99%8"`) makes many jobs of it, each with its own GRID_ARRAY_INDEX; if more than `max_fails` of them
    fail, the rest is ended. Nothing is placed before all jobs (or arrays) in `after` have started, those in `after_ok`
    have exited with 0, those in `after_any` have ended, and the time `begin` (`"+30m"`, `"22:15"`, ISO 8601 or a
    datetime) has come. `within` a hold (its id or name): it takes what it needs of that. `stdin`: its standard input is
    sent while it runs, as `run(…, stdin=…)` of the clients does.

    `attached`: its output is read from the beginning on, by `stream`. A job that is further ahead of whoever reads its
    output than its node keeps waits, or with `output_full="drop"` the middle of its output is dropped.

    `features` are numbers by name by which its needs may grow, such as a batch size; `finish_by` (as `begin`) is when
    it is wanted to be over: `why` tells how likely that is, and nothing is refused by it (docs/needs.md).
    """
    check("grace", grace, int | float, "seconds, such as 5.0")
    for option, given in (("stdin", stdin), ("attached", attached), ("keep_all", keep_all)):
        check(option, given, bool, _EITHER)
    limit, limits = _kept(_limits, time_limit, warn_signal, pids_limit, cpu_limit)
    spec = JobSpec(
        argv=as_argv(command),
        env=pairs("env", env, '{"SEED": "7"}'),
        name=name,
        workdir=workdir,
        bundle=bundle,
        time_limit=limit,
        grace=grace,
        limits=limits,
        stdin=stdin,
        attached=attached,
        output_full=parse_output_full(output_full),
        features=pairs("features", features, '{"batch_size": 64}'),
        keep_all=keep_all,
        finish_by=finish_at(finish_by) if finish_by is not None else 0.0,
    )
    request = _kept(
        _request, cpus, memory, gpus, resources, priority, nodes if isinstance(nodes, int) else _each(nodes),
        immediate, strategy, _each(only), _each(exclude), _each(labels), gpu_model, gpu_memory, _each(near),
        _each(apart), walls, _each(retry_on), retries, retry_memory, requeue, within,
        revocable,
    )  # fmt: skip
    if max_fails is not None and not isinstance(array, str):
        raise BadValue(f"{max_fails} max_fails of what?", hint='give an array, such as array="0-99"')
    check("max_fails", max_fails, int | None, "a number of jobs, such as 3")
    many = parse_array(array, max_fails) if isinstance(array, str) else array
    before = parse_after(_each(after), _each(after_ok), _each(after_any))
    if begin is not None:
        before |= parse_begin(begin, datetime.now())
    return Submission(key=key or _new_key(), spec=spec, request=request, array=many, **before)


def describe_hold(
    *, duration: float | str = HOLD_DURATION, immediate: bool = True, nodes: str | Iterable[str] = (), **options: Any
) -> Submission:
    """A hold to submit: capacity of one node, kept for `duration` (seconds, or text such as `"30m"`) for jobs of this
    user that say `within`. Unless it is `immediate`, it waits where no node has it now. `options` are those of
    `describe_job` that say what is needed and where. Raises BadValue."""
    described = describe_job(
        ("hold",), immediate=immediate, nodes=_each(nodes), time_limit=duration, grace=0.0, requeue=False, **options
    )
    return msgspec.structs.replace(described, spec=msgspec.structs.replace(described.spec, hold=True))


_EITHER = "True or False"
KEPT = 256
"""Requests kept by what was asked: most jobs of a long list ask for the same."""


def pairs(option: str, given: Mapping[str, Any] | None, example: str) -> dict[str, Any]:
    """The values by name that were given as this option; `example` is such a dict. Raises BadValue."""
    check(option, given, Mapping | None, f"a dict, such as {example}")
    return dict(given or {})


def check(option: str, given: Any, kind: type | UnionType, wanted: str) -> None:
    """Raise BadValue for a value of this option that is not of this kind; True and False are no numbers."""
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise BadValue(f"{option} cannot be {given!r:.80}", hint=f"give {wanted}")


def _each(words: str | Iterable[str]) -> tuple[str, ...]:
    """The words of an option that takes several; text is one of them. Raises BadValue."""
    if isinstance(words, str):
        return (words,) if words else ()
    if not words:
        return ()
    several = tuple(words) if isinstance(words, Iterable) else (words,)
    if not all(isinstance(word, str) for word in several):
        raise BadValue(f"{words!r:.80} are no names", hint="give a string, or a list of strings")
    return several


def _kept(function: Any, *asked: Any) -> Any:
    """Call a cached function, bypassing its cache for arguments that cannot be hashed."""
    try:
        return function(*asked)
    except TypeError:
        return function.__wrapped__(*asked)


@lru_cache(KEPT, typed=True)
def _limits(
    time_limit: float | str | None, warn_signal: str | None, pids_limit: int | None, cpu_limit: bool
) -> tuple[float, JobLimits]:
    check("warn_signal", warn_signal, str | None, 'text, such as "USR1@60"')
    check("pids_limit", pids_limit, int | None, "a number of processes, such as 100")
    check("cpu_limit", cpu_limit, bool, _EITHER)
    limit = parse_duration(str(time_limit)) if time_limit is not None else 0.0
    return limit, parse_limits(warn_signal, pids_limit, cpu_limit, time_limit=limit)


@lru_cache(KEPT, typed=True)
def _request(
    cpus: float | str | None,
    memory: float | str | None,
    gpus: float | str | None,
    resources: Resources | None,
    priority: str | Priority,
    nodes: tuple[str, ...] | int,
    immediate: bool,
    strategy: str | None,
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    labels: tuple[str, ...],
    gpu_model: str,
    gpu_memory: float | str | None,
    near: tuple[str, ...],
    apart: tuple[str, ...],
    walls: str | None,
    retry_on: tuple[str, ...],
    retries: int | None,
    retry_memory: float | str | None,
    requeue: bool,
    within: str,
    revocable: bool,
) -> Request:
    """The request of these options of `describe_job`."""
    check("resources", resources, Resources | None, "Resources, or say it with cpus, memory and gpus")
    check("gpu_model", gpu_model, str | None, 'text, such as "A100"')
    check("retries", retries, int | None, "a number, such as 3")
    check("nodes", nodes, tuple | int, "names of nodes, or a number of them")
    for option, given in (("immediate", immediate), ("requeue", requeue), ("revocable", revocable)):
        check(option, given, bool, _EITHER)
    wanted = resources or Resources(
        cpu=parse_cpu(str(cpus)) if cpus is not None else 0,
        memory=parse_memory(str(memory), bare=GIB) if memory is not None else 0,
        gpu=parse_gpu(str(gpus)) if gpus is not None else 0,
    )
    if not wanted.cpu:
        wanted = msgspec.structs.replace(wanted, cpu=MILLI)
    level = priority if isinstance(priority, Priority) else parse_priority(priority)
    named, gang = ((), parse_gang(nodes)) if isinstance(nodes, int) else (nodes, 0)
    if not all(named):
        raise BadValue("--node names no node", why="it is empty", hint="leave it out for any")
    request = Request(
        resources=wanted,
        priority=level,
        nodes=named,
        immediate=immediate,
        requeue=requeue,
        gang=gang,
        within=within,
        revocable=revocable,
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
    at a fraction of the cost of random ones. A forked child draws its own random bits."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._mine = secrets.token_hex(12)
        self._numbers = itertools.count()

    def __call__(self) -> str:
        return f"{self._mine}{next(self._numbers):08x}"


_new_key = _Keys()


_WORD = r"""(?s)(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+"""
_FOR_SHELLS = r"(?s)\|\|?|&&?|;;?|\d*[<>].*|&>.*|.*[^\\];"
"""A word, with its quotes, and those words that mean something to a shell only: operators and redirections."""


def as_argv(command: str | Sequence[str]) -> tuple[str, ...]:
    """The argv of a command given as words, or as text, which is split as a shell would. Raises BadValue."""
    if isinstance(command, str):
        import shlex  # commands have words

        try:
            argv = tuple(shlex.split(command))
        except ValueError as error:
            raise BadValue(f"the command {command!r} cannot be split into words", why=str(error)) from None
        if word := next((one for one in re.findall(_WORD, command) if re.fullmatch(_FOR_SHELLS, one)), ""):
            from json import dumps

            raise BadValue(
                f"{word!r} in {command!r} is for a shell, and no shell runs the command",
                why=f"{argv[0]} would get it as an argument",
                hint=f"give {dumps(['sh', '-c', command], ensure_ascii=False)}, or quote what is an argument",
            )
    else:
        argv = tuple(command) if isinstance(command, Iterable) else ()
        if not isinstance(command, Iterable) or not all(isinstance(word, str) for word in argv):
            raise BadValue(f"{command!r:.80} is not a command", hint="give a string, or a list of strings")
    if not argv or not argv[0]:
        raise BadValue("the command is empty", hint="give a program and its arguments")
    return argv
