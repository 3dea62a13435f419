"""What is wrong with a submission, whatever the grid's state: the shape of its command, surroundings and amounts."""

import math
from collections.abc import Callable, Iterable

from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.protocol import placement
from distributed_grid.protocol.bounds import LATEST
from distributed_grid.protocol.bundle import is_blob_hash
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import MOST_NODES, sound
from distributed_grid.protocol.jobs import (
    MOST_AFTER,
    MOST_FACTOR,
    MOST_RETRIES,
    JobSpec,
    Request,
    RetryOn,
    check_limits,
)
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.resources import MILLI, MOST_CPU, MOST_GPU, MOST_MEMORY, Resources

COMMAND_BYTES = 1 << 20
"""Arguments and environment of one job together. (The kernel takes 128 KiB in one string and 2 MiB in all.)"""
NAME_CHARS = 128
PATH_BYTES = 4095
"""What the kernel takes as a path."""
LONGEST = 10 * 366 * 86400.0


def complaint(submission: Submission, sound: Submission | None = None) -> BadValue | None:
    """What is wrong with it, for its sender; None if it can be taken. `sound` is one that can be: what the two have in
    common is not looked at again, as most of a long list is alike."""
    spec, request = submission.spec, submission.request
    if not 0 < len(submission.key) <= 128:
        return BadValue("a submission's key must have 1 to 128 characters")
    if (sound is None or spec != sound.spec) and (wrong := _about_command(spec) or _about_surroundings(spec)):
        return wrong
    if (sound is None or request != sound.request) and (wrong := about_request(request)):
        return wrong
    return _about_many(submission)


def about_request(request: Request) -> BadValue | None:
    """What is wrong with what a job needs, also where it is only asked about."""
    return (
        _about_amounts(request.resources) or _about_retries(request) or _about_placing(request) or _about_gang(request)
    )


def _about_gang(request: Request) -> BadValue | None:
    if not 0 <= request.gang <= MOST_NODES:
        return BadValue(f"a gang on {request.gang} nodes cannot be taken", why=f"{MOST_NODES} are the most")
    return None


def _about_command(spec: JobSpec) -> BadValue | None:
    if not spec.argv or not spec.argv[0]:
        return BadValue("there is no command", hint="name a program to run")
    text = "".join((*spec.argv, *spec.env, *spec.env.values()))
    if "\0" in text:
        return BadValue("the command or its environment has a zero byte", why="no program can be given one")
    if any(not name or "=" in name for name in spec.env):
        return BadValue("an environment variable has no name, or one with '='", hint="use -e NAME=VALUE")
    if (size := len(text.encode(errors="surrogatepass"))) > COMMAND_BYTES:
        return BadValue(
            f"the command and its environment have {size} bytes",
            why=f"more than {COMMAND_BYTES} are not taken",
            hint="put it into a file and ship that",
        )
    return None


def _about_surroundings(spec: JobSpec) -> BadValue | None:
    if len(spec.name) > NAME_CHARS or not spec.name.isprintable() or spec.name == "last":
        return BadValue(
            f"the name {spec.name[:40]!r} cannot be used", why=f"at most {NAME_CHARS} printable characters, not `last`"
        )
    if spec.workdir and (not spec.workdir.startswith("/") or "\0" in spec.workdir):
        return BadValue(f"the working directory {spec.workdir[:100]!r} is not an absolute path")
    if len(spec.workdir.encode(errors="surrogatepass")) > PATH_BYTES:
        return BadValue("the working directory's path is too long", why=f"{PATH_BYTES} bytes are the most")
    if spec.bundle and not is_blob_hash(spec.bundle):
        return BadValue("the shipped files are not named by a hash")
    for what, seconds in (("time limit", spec.time_limit), ("grace", spec.grace)):
        if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST:
            return BadValue(f"the {what} of {seconds:g} s cannot be used", hint="give seconds, not below zero")
    try:
        check_limits(spec.limits, spec.time_limit)
    except BadValue as wrong:
        return wrong
    return None


def _about_amounts(wanted: Resources) -> BadValue | None:
    if not wanted:
        return BadValue("nothing is asked for", hint="ask for at least one cpu, some memory or a gpu")
    if wanted.cpu > MOST_CPU or wanted.memory > MOST_MEMORY or wanted.gpu > MOST_GPU:
        return BadValue(f"{wanted} is more than can be asked for")
    if wanted.gpu > MILLI and wanted.gpu % MILLI:
        return BadValue(f"{wanted} cannot be granted", why="above 1 only whole GPUs can be asked for")
    return None


def _about_many(submission: Submission) -> BadValue | None:
    array, gang = submission.array, submission.request.gang
    if gang and array is not None:
        return BadValue(f"a gang on {gang} nodes cannot be taken", why="an array of gangs cannot be made")
    if array is not None and (problem := sound(array)):
        return problem
    if len(submission.after) > MOST_AFTER:
        return BadValue(f"a job cannot wait for {len(submission.after)} others", hint=f"{MOST_AFTER} are the most")
    later = submission.begin or submission.delay
    if not math.isfinite(later) or min(submission.begin, submission.delay) < 0 or submission.delay > LONGEST:
        return BadValue(f"a job cannot begin {later:g} s from now or then", hint="give a time that comes")
    if submission.begin > LATEST:
        return BadValue(f"a job cannot begin at {submission.begin:g}", why="that is beyond the year 9998")
    if submission.request.immediate and (submission.after or later):
        return BadValue(
            "a job that must not wait cannot wait for others or a time",
            hint="leave out --immediate, or --after and --begin",
        )
    if array is not None and array.most and submission.request.immediate:
        return BadValue(
            "a job that must not wait cannot be held back by its array",
            why=f"at most {array.most} of it run at once",
            hint="leave out --immediate, or the % of the array",
        )
    return None


def _about_retries(request: Request) -> BadValue | None:
    if not 0 <= request.retries <= MOST_RETRIES:
        return BadValue(f"{request.retries} retries cannot be asked for", hint=f"give 0 to {MOST_RETRIES}")
    if bool(request.retries) != bool(request.retry_on):
        return BadValue(
            "retries need both: after what a job is to be run again, and how often",
            hint="use --retry-on lost|failed|preempted|oom with --retries N",
        )
    if not request.retry_memory:
        return None
    if not MILLI < request.retry_memory <= MOST_FACTOR or RetryOn.OOM not in request.retry_on:
        return BadValue("more memory for the next attempt needs a factor above 1, and oom among what it is retried on")
    if not request.resources.memory:
        return BadValue(
            "more memory than what, for the next attempt?",
            why="the job asks for none, so it has no limit that it could run into",
            hint="ask for some with --mem, such as --mem 4G",
        )
    return None


def _about_placing(request: Request) -> BadValue | None:
    if len(request.nodes) > placement.NODES_MOST or any(len(name) > placement.WORD_CHARS for name in request.nodes):
        return BadValue(
            f"at most {placement.NODES_MOST} nodes of at most {placement.WORD_CHARS} characters can be preferred"
        )
    return placement.complaint(request.constraints, request.resources.gpu) if request.constraints is not None else None


def same_jobs(
    jobs: Iterable[Submission], named: Callable[[str], str | None], job: Callable[[str], Job | Group | None]
) -> None:
    """A key that was used stands for its job: with another command it would be a job that silently never runs. Raises
    BadValue. `named` says which job has a key, `job` what that is."""
    said: dict[str, JobSpec] = {}
    for one in jobs:
        spec = said.setdefault(one.key, one.spec)
        there = named(one.key)
        if there is not None:
            before = job(there)
            spec = before.spec if before is not None else spec
        if spec != one.spec:
            raise BadValue(
                f"the key {one.key!r} was used for another command",
                why=f"{there or 'another job of this call'} has it, and one key is one job",
                hint="give each job a key of its own",
            )
