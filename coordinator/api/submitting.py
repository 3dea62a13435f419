"""What becomes of a submission: jobs and groups with ids, made once, however often it is said. What it says of where it
may go is put into the words of this grid: what only the coordinator knows is filled in.
"""

import secrets
from collections.abc import Callable, Mapping
from difflib import get_close_matches

import msgspec

from distributed_grid.coordinator.api.blobs import Blobs
from distributed_grid.coordinator.api.lookup import Lookup, Unanswerable
from distributed_grid.coordinator.api.submissions import complaint, same_jobs
from distributed_grid.coordinator.core.model import Group, Job, JobsSubmitted
from distributed_grid.coordinator.core.placement.affinity import Homes
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.admission import which
from distributed_grid.coordinator.core.queue.dependencies import end_words, group_end
from distributed_grid.coordinator.core.records import Condition, End
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.visibility import Sight
from distributed_grid.coordinator.driver import Driver
from distributed_grid.coordinator.net.memory import Memory
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupKind, count, indexes, member_id
from distributed_grid.protocol.jobs import Cause, Dependency, Request
from distributed_grid.protocol.messages import Submission, Submit
from distributed_grid.protocol.placement import Local, Strategy


def resolved(request: Request, host: str, bundle: str, policy: Policy) -> Request:
    """The request as the ledger takes it. `host` is the machine that it comes from, `bundle` what is shipped with it:
    both matter only where local goes first, and would else keep equal requests apart."""
    first = (request.strategy or policy.strategy) is Strategy.LOCAL_FIRST
    local = Local(host, bundle) if first and (host or bundle) else None
    return request if request.local == local else msgspec.structs.replace(request, local=local)


def neighbours(request: Request, sight: Sight, own: str, homes: Homes, beside: Mapping[str, str]) -> Request:
    """The request with ids for the jobs that it is to be near to: of a name, the newest of the user's that live. Apart
    from a name it stays, whoever bears it then. `own` is the name of the request's own job, `beside` are jobs that are
    submitted with it, by name. Raises BadValue for who is not there, to be seen by who asks."""
    asked = request.constraints
    if asked is None or not (asked.near or asked.apart):
        return request

    user = sight.user

    def lives(word: str) -> bool:
        whose, named, _ = word.partition("/")
        return homes.lives(word) and (sight.sees(whose) if named else sight.names(word))

    def find(word: str) -> str:
        if lives(word):
            return word
        return beside.get(word) or homes.newest(f"{user}/{word}")

    for word in (*asked.near, *asked.apart):
        if word != own and not find(word):
            names = [*homes.names(user), *beside]
            close = get_close_matches(word, names, 1)
            hint = f"did you mean {close[0]}?" if close else "give the whole id or the name of a job that has not ended"
            raise BadValue(f"no job of yours called {word!r} waits or runs", hint=hint)
    near = (find(word) for word in asked.near)
    apart = (word if lives(word) else f"{user}/{word}" for word in asked.apart)
    ids = tuple(dict.fromkeys(filter(None, near)))
    return msgspec.structs.replace(
        request, constraints=msgspec.structs.replace(asked, near=ids, apart=tuple(dict.fromkeys(apart)))
    )


class Sorted:
    """A submission sorted out: `known` are the ids of what was submitted before, by key; `jobs` and `groups` are to be
    made, where a job with a group's id stands for all of its members."""

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
        """What the ledger is told."""
        return JobsSubmitted(token, tuple(self.jobs.values()), tuple(self.groups))


class Submissions:
    """Makes jobs of submissions."""

    def __init__(
        self,
        state: GridState,
        store: Store,
        driver: Driver,
        blobs: Blobs,
        lookup: Lookup,
        clock: Callable[[], float],
        memory: Memory,
    ) -> None:
        self._memory = memory
        self._state = state
        self._store = store
        self._driver = driver
        self._blobs = blobs
        self._lookup = lookup
        self._clock = clock

    def sort_out(self, sight: Sight, host: str, message: Submit) -> Sorted:
        """What is new in it and what is known. Raises GridError where one of it cannot be taken: then none is."""
        user = sight.user
        sound: Submission | None = None
        for number, submission in enumerate(message.jobs, 1):
            if problem := complaint(submission, sound):
                what = which(number, len(message.jobs), submission.spec.name) + problem.what
                raise BadValue(what, problem.why, problem.hint)
            sound = submission
        keys = list(dict.fromkeys(submission.key for submission in message.jobs))
        # Keys that are not on disk yet are known to the ledger, which answers with the jobs that are there.
        known = self._store.known(user, keys)
        new = [one for one in message.jobs if one.key not in known and (user, one.key) not in self._state.keys]
        for bundle in {one.spec.bundle for one in new if one.spec.bundle}:
            if not (self._blobs.has(bundle) and self._blobs.quota.owns_all(user, bundle)):
                raise Unanswerable(
                    "unavailable", "the shipped files are not here (any more)", hint="send them again, then submit"
                )
            self._blobs.quota.submits(user, bundle)
        if any((user, key) not in self._state.keys for key in keys if key not in known):
            self._driver.trouble.refuse_new()
            self._memory.refuse()
        same_jobs(message.jobs, lambda key: known.get(key) or self._state.keys.get((user, key)), self._lookup.job)
        now = self._clock()
        found = Sorted(known)
        # Ascending, so that the order of a call is that of its ids: a restart finds it, and rows are stored in a row.
        ids = iter(sorted(new_ids(len(keys) - len(known))))
        # Equal requests are one from here on: it is one line of the queue, and what is worked out of it is once.
        requests: dict[Request, Request] = {}
        before: dict[str, str] = {}  # those before it in this call, by their key and name
        for one in message.jobs:
            if one.key not in known and one.key not in found.jobs:
                request = resolved(one.request, host, one.spec.bundle, self._state.policy)
                request = neighbours(request, sight, one.spec.name, self._state.index.homes, before)
                request = requests.setdefault(request, request)
                job = Job(id=next(ids), key=one.key, user=user, spec=one.spec, request=request, submitted=now)
                if one.after:
                    job.after = tuple(self._condition(sight, dependency, before) for dependency in one.after)
                job.begin = now + one.delay if one.delay else one.begin
                found.jobs[one.key] = job
                if one.array is not None:
                    found.groups.append(_group(job, GroupKind.ARRAY, one.array))
                elif one.request.gang:
                    ranks = Array(((0, one.request.gang - 1, 1),))
                    found.groups.append(_group(job, GroupKind.GANG, ranks))
            before[one.key] = before[one.spec.name] = known.get(one.key) or found.jobs[one.key].id
        return found

    def again(self, sight: Sight, key: str) -> Submission | None:
        """What this user submitted under this key before, to be said again; None: nothing."""
        name = self._state.keys.get((sight.user, key)) or self._store.known(sight.user, (key,)).get(key)
        job = self._lookup.job(name) if name is not None else None
        return Submission(key, job.spec, job.request) if isinstance(job, Job) else None

    def _by_key(self, sight: Sight, key: str) -> str | None:
        """What was submitted under this key before: a long list of jobs comes in several calls."""
        if (key in self._state.jobs or key in self._state.groups) and sight.names(key):
            return key
        return self._state.keys.get((sight.user, key)) or self._store.known(sight.user, (key,)).get(key)

    def _condition(self, sight: Sight, dependency: Dependency, before: dict[str, str]) -> Condition:
        """What it waits for, found. Raises GridError where there is no such job."""
        on = dependency.on
        name = before.get(on) or self._by_key(sight, on) or self._lookup.resolve_one(sight, on)
        other = self._lookup.job(name)
        end = None
        if name not in self._state.jobs and name not in self._state.groups and name not in self._state.held.ends:
            end = _end(other) if other is not None else None
        return Condition(name, dependency.kind, other.spec.name if other is not None else "", end)


def _end(other: Job | Group) -> End | None:
    """How it had ended, as the store says; None: it does not, so the ledger will."""
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
