"""Submissions: the checks that do not depend on the grid's state, and the jobs and groups that a submission makes, with
their ids: once, however often it is sent."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Set
from difflib import get_close_matches

import msgspec

from distributed_grid.coordinator.api.blobs.cache import Blobs
from distributed_grid.coordinator.api.idempotency import check_keys
from distributed_grid.coordinator.api.lookup import Lookup, Unanswerable
from distributed_grid.coordinator.core.commands import JobsSubmitted
from distributed_grid.coordinator.core.model import Condition, End, Group, HeldBack, Job
from distributed_grid.coordinator.core.placement.catalogue import Affinity
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.admission import which
from distributed_grid.coordinator.core.queue.dependencies import end_words, group_end
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.net.memory import Memory
from distributed_grid.protocol import placement
from distributed_grid.protocol.bundle import is_blob_hash
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import MOST_NODES, Array, GroupKind, count, indexes, member_id, sound
from distributed_grid.protocol.jobs import (
    MOST_AFTER,
    MOST_FACTOR,
    MOST_RETRIES,
    Cause,
    Dependency,
    JobSpec,
    Request,
    RetryOn,
    check_limits,
)
from distributed_grid.protocol.messages import Submission, Submit
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.placement import Local, Strategy
from distributed_grid.protocol.resources import LATEST, MILLI, MOST_CPU, MOST_GPU, MOST_MEMORY, Resources

APART = 1.0
"""Seconds by which grid time and the wall clock may differ and count as the same."""
COMMAND_BYTES = 1 << 20
"""Arguments and environment of one job together."""
STRING_BYTES = (128 << 10) - 1
"""What the kernel takes in one argument, or one variable with its name and `=`, where pages have 4 KiB."""
KERNEL_BYTES = (2 << 20) - (256 << 10)
"""What the kernel takes in all, with EACH for each string, without what a node adds to the environment."""
EACH = 9
"""Bytes for a string beyond its own: its end and a pointer."""
NAME_CHARS = 128
PATH_BYTES = 4095
"""Maximum length of a path in the kernel."""
LONGEST = 10 * 366 * 86400.0


def check(submission: Submission, sound: Submission | None = None) -> None:
    """Raise BadValue for what cannot be submitted. `sound` passed before: what the two have in common is not checked
    again, as most of a long list is alike."""
    spec, request = submission.spec, submission.request
    if not 0 < len(submission.key) <= 128:
        raise BadValue("a submission's key must have 1 to 128 characters")
    if sound is None or spec != sound.spec:
        _check_command(spec)
        _check_surroundings(spec)
    if sound is None or request != sound.request:
        check_request(request)
    _check_many(submission)
    if submission.spec.hold:
        _check_hold(submission)
    elif submission.request.within and submission.spec.boost is not None:
        raise BadValue("a boost cannot be lent out of a hold")


def check_request(request: Request) -> None:
    """Raise BadValue for what no job can ask for, also where it is only asked about."""
    _check_amounts(request.resources)
    _check_retries(request)
    _check_placing(request)
    if not 0 <= request.gang <= MOST_NODES:
        raise BadValue(f"a gang on {request.gang} nodes cannot be taken", why=f"{MOST_NODES} are the most")
    if request.gang and request.within:
        raise BadValue("a gang cannot run in a hold", why="a hold is on one node, each member of a gang on its own")


def _check_command(spec: JobSpec) -> None:
    if not spec.argv or not spec.argv[0]:
        raise BadValue("there is no command", hint="name a program to run")
    text = "".join((*spec.argv, *spec.env, *spec.env.values()))
    if "\0" in text:
        raise BadValue("the command or its environment has a zero byte", why="no program can be given one")
    if any(not name or "=" in name for name in spec.env):
        raise BadValue("an environment variable has no name, or one with '='", hint="use -e NAME=VALUE")
    if (size := len(text.encode(errors="surrogatepass"))) > COMMAND_BYTES:
        raise BadValue(
            f"the command and its environment have {size} bytes",
            why=f"more than {COMMAND_BYTES} are not taken",
            hint=_SHIP,
        )
    if size > STRING_BYTES:
        _check_strings(spec)
    if (whole := size + EACH * (len(spec.argv) + len(spec.env))) > KERNEL_BYTES:
        raise BadValue(
            f"the command has {len(spec.argv)} arguments and {len(spec.env)} variables, {whole} bytes for the kernel",
            why=f"it starts no program with more than {KERNEL_BYTES}",
            hint=_SHIP,
        )


_SHIP = "put it into a file, ship that, and have the program read it"


def _check_strings(spec: JobSpec) -> None:
    strings = [(f"argument {number}", word) for number, word in enumerate(spec.argv)]
    strings += [(f"the variable {name[:40]}", f"{name}={value}") for name, value in spec.env.items()]
    for what, text in strings:
        if (size := len(text.encode(errors="surrogatepass"))) > STRING_BYTES:
            why = f"the kernel starts no program with more than {STRING_BYTES} in one"
            raise BadValue(f"{what} of the command has {size} bytes", why=why, hint=_SHIP)


def _check_surroundings(spec: JobSpec) -> None:
    if len(spec.name) > NAME_CHARS or not spec.name.isprintable() or spec.name == "last":
        raise BadValue(
            f"the name {spec.name[:40]!r} cannot be used", why=f"at most {NAME_CHARS} printable characters, not `last`"
        )
    if spec.workdir and (not spec.workdir.startswith("/") or "\0" in spec.workdir):
        raise BadValue(f"the working directory {spec.workdir[:100]!r} is not an absolute path")
    if len(spec.workdir.encode(errors="surrogatepass")) > PATH_BYTES:
        raise BadValue("the working directory's path is too long", why=f"{PATH_BYTES} bytes are the most")
    if spec.bundle and not is_blob_hash(spec.bundle):
        raise BadValue("the shipped files are not named by a hash")
    for what, seconds in (("time limit", spec.time_limit), ("grace", spec.grace)):
        if not math.isfinite(seconds) or not 0 <= seconds <= LONGEST:
            raise BadValue(f"the {what} of {seconds:g} s cannot be used", hint="give seconds, not below zero")
    check_limits(spec.limits, spec.time_limit)


def _check_hold(submission: Submission) -> None:
    """Raise BadValue for a hold that cannot be: it runs nothing, and ends by itself."""
    spec, request = submission.spec, submission.request
    if not spec.time_limit:
        raise BadValue(
            "a hold needs a time", why="what is held and never used would be lost to all", hint="say --time 1h"
        )
    runs = spec.boost is not None or spec.stdin or spec.bundle or request.retries or request.within
    if runs or submission.array is not None or request.gang:
        raise BadValue(
            "a hold is capacity of one node, in which nothing runs by itself", hint="submit jobs into it: --in"
        )


def _check_amounts(wanted: Resources) -> None:
    if not wanted:
        raise BadValue("nothing is asked for", hint="ask for at least one cpu, some memory or a gpu")
    if wanted.cpu > MOST_CPU or wanted.memory > MOST_MEMORY or wanted.gpu > MOST_GPU:
        raise BadValue(f"{wanted} is more than can be asked for")
    if wanted.gpu > MILLI and wanted.gpu % MILLI:
        raise BadValue(f"{wanted} cannot be granted", why="above 1 only whole GPUs can be asked for")


def _check_many(submission: Submission) -> None:
    array, gang = submission.array, submission.request.gang
    if gang and array is not None:
        raise BadValue(f"a gang on {gang} nodes cannot be taken", why="an array of gangs cannot be made")
    if array is not None and (problem := sound(array)):
        raise problem
    if submission.spec.stdin and (gang or array is not None or submission.spec.boost is not None):
        raise BadValue(
            "many jobs cannot have one standard input", hint="leave it out (--no-stdin), or ship it as a file"
        )
    if len(submission.after) > MOST_AFTER:
        raise BadValue(f"a job cannot wait for {len(submission.after)} others", hint=f"{MOST_AFTER} are the most")
    later = submission.begin or submission.delay
    if not math.isfinite(later) or min(submission.begin, submission.delay) < 0 or submission.delay > LONGEST:
        raise BadValue(f"a job cannot begin {later:g} s from now or then", hint="give a time that comes")
    if submission.begin > LATEST:
        raise BadValue("a job cannot begin so late", why="the time of --begin is beyond the year 9998")
    if submission.request.immediate and (submission.after or later):
        raise BadValue(
            "a job that must not wait cannot wait for others or a time",
            hint="leave out --immediate, or --after and --begin",
        )
    if array is not None and array.most and submission.request.immediate:
        raise BadValue(
            "a job that must not wait cannot be held back by its array",
            why=f"at most {array.most} of it run at once",
            hint="leave out --immediate, or the % of the array",
        )


def _check_retries(request: Request) -> None:
    if not 0 <= request.retries <= MOST_RETRIES:
        raise BadValue(f"{request.retries} retries cannot be asked for", hint=f"give 0 to {MOST_RETRIES}")
    if bool(request.retries) != bool(request.retry_on):
        raise BadValue(
            "retries need both: after what a job is to be run again, and how often",
            hint="use --retry-on lost|failed|preempted|oom with --retries N",
        )
    if not request.retry_memory:
        return
    if not MILLI < request.retry_memory <= MOST_FACTOR or RetryOn.OOM not in request.retry_on:
        raise BadValue("more memory for the next attempt needs a factor above 1, and oom among what it is retried on")
    if not request.resources.memory:
        raise BadValue(
            "more memory than what, for the next attempt?",
            why="the job asks for none, so it has no limit that it could run into",
            hint="ask for some with --mem, such as --mem 4G",
        )


def _check_placing(request: Request) -> None:
    if len(request.nodes) > placement.NODES_MOST or any(len(name) > placement.WORD_CHARS for name in request.nodes):
        raise BadValue(
            f"at most {placement.NODES_MOST} nodes of at most {placement.WORD_CHARS} characters can be preferred"
        )
    asked = request.constraints
    if asked is not None and (problem := placement.complaint(asked, request.resources.gpu)):
        raise problem


def resolved(request: Request, host: str, bundle: str, policy: Policy) -> Request:
    """The request with what only the coordinator knows. `host` is the machine that it comes from, `bundle` what is
    shipped with it: they matter only to local-first, and would else keep equal requests apart."""
    first = (request.strategy or policy.strategy) is Strategy.LOCAL_FIRST
    local = Local(host, bundle) if first and (host or bundle) else None
    return request if request.local == local else msgspec.structs.replace(request, local=local)


def neighbours(
    request: Request, visibility: Visibility, own: str, affinity: Affinity, beside: Mapping[str, str]
) -> Request:
    """The request with ids in place of names: near to the newest live job of a name, apart from all that bear it. `own`
    is the name of the request's own job, `beside` are jobs submitted with it, by name. Raises BadValue for a job that
    does not exist or may not be seen."""
    asked = request.constraints
    if asked is None or not (asked.near or asked.apart):
        return request

    user = visibility.user

    def lives(word: str) -> bool:
        whose, named, _ = word.partition("/")
        return affinity.lives(word) and (visibility.sees(whose) if named else visibility.names(word))

    def find(word: str) -> str:
        if lives(word):
            return word
        return beside.get(word) or affinity.newest(f"{user}/{word}")

    for word in (*asked.near, *asked.apart):
        if word != own and not find(word):
            names = [*affinity.names(user), *beside]
            close = get_close_matches(word, names, 1)
            hint = f"did you mean {close[0]}?" if close else "give the whole id or the name of a job that has not ended"
            raise BadValue(f"no job of yours called {word!r} waits or runs", hint=hint)
    near = (find(word) for word in asked.near)
    apart = (word if lives(word) else f"{user}/{word}" for word in asked.apart)
    ids = tuple(dict.fromkeys(filter(None, near)))
    return msgspec.structs.replace(
        request, constraints=msgspec.structs.replace(asked, near=ids, apart=tuple(dict.fromkeys(apart)))
    )


def in_hold(request: Request, visibility: Visibility, lookup: Lookup) -> Request:
    """The request with the id of the hold that it names. Raises GridError for one that does not exist or may not be
    seen."""
    if not request.within:
        return request
    try:
        name = lookup.hold(visibility, request.within)
    except Unanswerable as error:
        if error.code != "unknown-job":
            raise
        hint = "`grid hold list` shows yours; grid hold request makes one"
        raise Unanswerable(error.code, error.what.replace("no job", "no hold", 1), error.why, hint) from None
    return msgspec.structs.replace(request, within=name)


class NewJobs:
    """The result of a submission: `known` are the ids of earlier submissions, by key; `jobs` and `groups` are new,
    where a job with a group's id stands for all of its members."""

    def __init__(self, known: dict[str, str]) -> None:
        self.known = known
        self.jobs: dict[str, Job] = {}
        self.groups: list[Group] = []

    def names(self) -> list[str]:
        """The ids of all new jobs, members too."""
        names: list[str] = []
        arrays = {group.id: group.array for group in self.groups}
        for job in self.jobs.values():
            array = arrays.get(job.id)
            names += [job.id] if array is None else [member_id(job.id, index) for index in indexes(array.parts)]
        return names

    def event(self, token: int) -> JobsSubmitted:
        """The event for the ledger."""
        return JobsSubmitted(token, tuple(self.jobs.values()), tuple(self.groups))


def _not_sent() -> Unanswerable:
    return Unanswerable("unavailable", "the shipped files are not here (any more)", hint="send them again, then submit")


class Submissions:
    """Turns submissions into jobs."""

    def __init__(self, lookup: Lookup, blobs: Blobs, clock: Callable[[], float], memory: Memory) -> None:
        self._lookup = lookup
        self._state, self._store, self._driver = lookup.state, lookup.store, lookup.driver
        self._blobs = blobs
        self._clock = clock
        self._memory = memory

    async def claim(self, user: str, message: Submit) -> set[str]:
        """Count the shipped files of new jobs for their user; returns their manifests. Each job may have one of its own
        that names a hundred thousand files: other tasks get a turn after each, for as long as it took. Raises GridError
        if the user has not sent a named blob, or is above the quota."""
        keys = list(dict.fromkeys(one.key for one in message.jobs if one.spec.bundle))
        known = self._store.known(user, keys) if keys else {}
        claimed: set[str] = set()
        for one in message.jobs:
            bundle = one.spec.bundle
            if bundle in claimed or one.key in known or (user, one.key) in self._state.keys or not is_blob_hash(bundle):
                continue
            began = time.thread_time()
            if not (self._blobs.has(bundle) and await self._blobs.quota.owns_all(user, bundle)):
                raise _not_sent()
            await self._blobs.quota.submits(user, bundle)
            claimed.add(bundle)
            if (took := time.thread_time() - began) > 0.001:
                await asyncio.sleep(took)
        return claimed

    def prepare(self, visibility: Visibility, host: str, message: Submit, claimed: Set[str] = frozenset()) -> NewJobs:
        """The jobs of a submission, those that are new and those that are known; `claimed` by it are the manifests of
        the new ones. Raises GridError where one of them cannot be taken: then none is."""
        user = visibility.user
        sound: Submission | None = None
        for number, submission in enumerate(message.jobs, 1):
            try:
                check(submission, sound)
            except BadValue as error:
                what = which(number, len(message.jobs), submission.spec.name) + error.what
                raise BadValue(what, error.why, error.hint) from None
            sound = submission
        keys = list(dict.fromkeys(submission.key for submission in message.jobs))
        # Keys that are not on disk yet are known to the ledger, which answers with the jobs that are there.
        known = self._store.known(user, keys)
        new = [one for one in message.jobs if one.key not in known and (user, one.key) not in self._state.keys]
        if {one.spec.bundle for one in new} - claimed - {""}:
            raise _not_sent()
        if any((user, key) not in self._state.keys for key in keys if key not in known):
            self._driver.trouble.refuse_new()
            self._memory.refuse()
        if len(new) < len(message.jobs) or len(keys) < len(message.jobs):
            check_keys(message.jobs, lambda key: known.get(key) or self._state.keys.get((user, key)), self._lookup.job)
        now = self._clock()
        found = NewJobs(known)
        # Ascending, so that the order of a call is that of its ids: a restart finds it, and rows are stored in a row.
        ids = iter(sorted(new_ids(len(keys) - len(known))))
        # Equal requests are one from here on: it is one line of the queue, and what is worked out of it is once.
        requests: dict[Request, Request] = {}
        asked: tuple[Request, str] | None = None
        before: dict[str, str] = {}  # those before it in this call, by their key and name
        for one in message.jobs:
            if one.key not in known and one.key not in found.jobs:
                # Alike as most of a long list are, and names in it mean the same as before.
                if asked != (one.request, one.spec.bundle) or one.request.constraints is not None:
                    asked = one.request, one.spec.bundle
                    request = resolved(one.request, host, one.spec.bundle, self._state.policy)
                    request = in_hold(request, visibility, self._lookup)
                    request = neighbours(request, visibility, one.spec.name, self._state.index.affinity, before)
                    request = requests.setdefault(request, request)
                job = Job(id=next(ids), key=one.key, user=user, spec=one.spec, request=request, submitted=now)
                job.by_operator = visibility.reach is Reach.ALL
                if one.after:
                    job.phase = HeldBack(after=tuple(self._condition(visibility, each, before) for each in one.after))
                job.begin = now + one.delay if one.delay else one.begin and self._grid_time(one.begin)
                found.jobs[one.key] = job
                if one.array is not None:
                    found.groups.append(_group(job, GroupKind.ARRAY, one.array))
                elif one.request.gang:
                    ranks = Array(((0, one.request.gang - 1, 1),))
                    found.groups.append(_group(job, GroupKind.GANG, ranks))
            before[one.key] = before[one.spec.name] = known.get(one.key) or found.jobs[one.key].id
        return found

    def _grid_time(self, at: float) -> float:
        """The moment at which the wall clock will say `at`. Grid time is another one where that clock was set since the
        coordinator started, or was ahead at an earlier start."""
        apart = self._clock() - time.time()
        return at if abs(apart) < APART else min(max(at + apart, 0.0), LATEST)

    def again(self, visibility: Visibility, key: str) -> Submission | None:
        """Return the earlier submission of this user under this key, to be submitted again; None: there is none."""
        name = self._state.keys.get((visibility.user, key)) or self._store.known(visibility.user, (key,)).get(key)
        job = self._lookup.job(name) if name is not None else None
        return Submission(key, job.spec, job.request) if isinstance(job, Job) else None

    def _by_key(self, visibility: Visibility, key: str) -> str | None:
        """Return the id of the earlier submission under this key: a long list of jobs comes in several calls."""
        if (key in self._state.jobs or key in self._state.groups) and visibility.names(key):
            return key
        return self._state.keys.get((visibility.user, key)) or self._store.known(visibility.user, (key,)).get(key)

    def _condition(self, visibility: Visibility, dependency: Dependency, before: dict[str, str]) -> Condition:
        """A dependency with its job resolved. Raises GridError where there is no such job."""
        on = dependency.on
        name = before.get(on) or self._by_key(visibility, on) or self._lookup.resolve_one(visibility, on)
        other = self._lookup.job(name)
        end = None
        if (
            name not in self._state.jobs
            and name not in self._state.groups
            and name not in self._state.dependencies.ends
        ):
            end = _end(other) if other is not None else None
        return Condition(name, dependency.kind, other.spec.name if other is not None else "", end)


def _end(other: Job | Group) -> End | None:
    """Return how a job or group ended, from the store; None: it is in the ledger."""
    if isinstance(other, Group):
        return group_end(other) if other.ended else None
    outcome = other.outcome
    if outcome is None:
        return None
    ok = outcome.cause is Cause.EXITED and outcome.code == 0
    return End(ok, outcome.started or other.has_begun, end_words(outcome))


def _group(template: Job, kind: GroupKind, array: Array) -> Group:
    return Group(
        id=template.id,
        key=template.key,
        user=template.user,
        kind=kind,
        spec=template.spec,
        request=template.request,
        submitted=template.submitted,
        count=count(array.parts),
        array=array,
        after=template.after,
        begin=template.begin,
    )


_LETTERS = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in range(256))


def new_ids(count: int) -> list[str]:
    """Ids of jobs: `j-` and 60 random bits each."""
    text = secrets.token_bytes(12 * count).translate(_LETTERS).decode()
    return ["j-" + text[at : at + 12] for at in range(0, len(text), 12)]
