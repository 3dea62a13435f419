"""Jobs as clients see them: found by a reference (an id, the beginning of one, a name, `last`), listed in pages, and
watched. Live jobs come from the ledger's state, ended ones from the store."""

import asyncio
import difflib
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

import msgspec

from distributed_grid.coordinator.api.relay import Client
from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import Over, RecordGroup, RecordJob
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.coordinator.core.queue import groups
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.trends.statistics import Histogram
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.driver import Driver
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.codec import BULK_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.groups import GroupView, indexes, member_id, parse_array
from distributed_grid.protocol.history.summary import core_seconds
from distributed_grid.protocol.jobs import Cause, JobView, State
from distributed_grid.protocol.messages import (
    BalancingStatus,
    Boosts,
    BoostView,
    Cancel,
    GetBalancing,
    GroupUpdate,
    Jobs,
    JobUpdate,
    ListJobs,
    RayNode,
    Shared,
    ShowJobs,
)
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView
from distributed_grid.protocol.resources import MOST_FINITE

ANSWER_BYTES = BULK_BYTES - (64 << 10)
"""Maximum size of one answer."""
LIST_BYTES = 64 << 10
"""Size of an answer with a part of a list; the rest is asked for behind it, so that others have their turn between."""
LIST_JOBS = 250
"""Maximum number of jobs in such an answer."""
REF_CHARS = 150
"""Maximum length of a reference; a longer one is not looked up."""
REFS = 1000
"""Jobs one request may name."""


class Unanswerable(GridError):
    """A request that is answered by Failed; `code` is its short word."""

    def __init__(self, code: str, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.code = code


class Lookup:
    """Resolves references and answers questions about jobs."""

    def __init__(self, state: GridState, store: Store, driver: Driver) -> None:
        self.state = state
        self.store = store
        self.driver = driver

    def owner(self, name: str) -> str:
        """Return the user of a job or group, by its id; empty: there is none."""
        found = self.job(name)
        return found.user if found is not None else ""

    def resolve(self, visibility: Visibility, refs: tuple[str, ...], live: bool = False) -> list[str]:
        """The ids (of jobs or groups) that the references mean, without doubles; `live`: as `live_one` finds them.
        Raises Unanswerable for the first that means none or several."""
        if len(refs) > REFS:
            raise Unanswerable("bad-value", f"{len(refs)} jobs in one request", why=f"{REFS} are the most")
        one = self.live_one if live else self.resolve_one
        found = [self._some(visibility, ref) or [one(visibility, ref)] for ref in refs]
        return list(dict.fromkeys(itertools.chain.from_iterable(found)))

    def _some(self, visibility: Visibility, ref: str) -> list[str]:
        """The members named by `ARRAY_3-7,9`; none: the reference is something else."""
        group, _, which = ref.rpartition("_")
        if not group or not {"-", ","} & {*which} or self._find(visibility, ref):
            return []
        try:
            wanted = parse_array(which)
        except BadValue:
            return []
        name = self.resolve_one(visibility, group)
        there = set(self.members([name]))
        names = [member_id(name, index) for index in indexes(wanted.parts)]
        if missing := [one for one in names if one not in there]:
            raise Unanswerable("unknown-job", f"no job {missing[0]!r}", hint=f"see: grid job show {name}")
        return names

    def to_cancel(self, visibility: Visibility, message: Cancel) -> list[str]:
        """The live jobs and groups that a cancel means. Raises Unanswerable."""
        if visibility.only and not message.jobs and (message.every or message.user != visibility.only):
            raise Unanswerable("not-allowed", "you may end your own jobs only", hint="--mine ends them all")
        state = self.state
        if message.jobs:
            named = self.resolve(visibility, message.jobs, live=True)
            return [name for name in named if name in state.jobs or name in state.groups]
        whose = [job for job in state.jobs.values() if message.every or job.user == message.user]
        if message.states:
            return [job.id for job in whose if job.state in message.states]
        return list(dict.fromkeys(job.group or job.id for job in whose))

    def resolve_one(self, visibility: Visibility, ref: str) -> str:
        """Return the id that a reference means. A job that may not be seen is reported as not found."""
        if (ref in self.state.jobs or ref in self.state.groups) and visibility.names(ref):
            return ref
        found = self._find(visibility, ref)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise Unanswerable(
                "unknown-job", f"{ref[:REF_CHARS]!r} fits several jobs", why=names, hint="give more of the id"
            )
        if ref == "last":
            raise Unanswerable("unknown-job", f"{visibility.user} has no job yet", hint="grid run-shared starts one")
        words = self.store.newest_names(visibility.user) if len(ref) <= REF_CHARS and visibility.by_name else []
        near = difflib.get_close_matches(ref, words, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`grid jobs --all` lists them"
        raise Unanswerable("unknown-job", f"no job {ref[:REF_CHARS]!r}", hint=hint)

    def live_one(self, visibility: Visibility, ref: str) -> str:
        """As resolve_one, for operations on live jobs: a name whose newest job has ended means the newest live one of
        the same user."""
        found = self.resolve_one(visibility, ref)
        if found in self.state.jobs or found in self.state.groups:
            return found
        job = self.job(found)
        if job is None or job.spec.name != ref:
            return found
        newest = self.state.index.affinity.newest(f"{job.user}/{ref}")
        return self.state.jobs[newest].group or newest if newest else found

    def hold(self, visibility: Visibility, ref: str) -> str:
        """The id of the hold that a reference means; a name is that of this user's newest live hold, where there is
        one. Raises Unanswerable."""
        named = self.state.index.affinity.newest_first(f"{visibility.user}/{ref}")
        held = next((name for name in named if self.state.jobs[name].spec.hold), "")
        return held or self.single(visibility, ref)

    def _find(self, visibility: Visibility, ref: str) -> list[str]:
        return self.store.find(ref, visibility.user, visibility.only, visibility.by_name)

    def one(self, name: str) -> Job | None:
        """A job, live or ended, by its id."""
        return self.state.jobs.get(name) or self.store.job(name)

    def job(self, name: str) -> Job | Group | None:
        """A job or group, live or ended, by its id."""
        return self.one(name) or self._group(name)

    def single(self, visibility: Visibility, ref: str) -> str:
        """The id of the one job that a reference means, as `live_one` finds it. Raises Unanswerable also for a
        group."""
        found = self.live_one(visibility, ref)
        if self._group(found) is not None:
            some = (self.members([found]) or [f"{found}_0"])[0]
            raise Unanswerable("bad-value", f"{found} is many jobs", why="this is for one", hint=f"name one: {some}")
        return found

    def first_waiting(self, visibility: Visibility, ref: str) -> str:
        """The job that a reference means; of a group its first member that waits, else its first."""
        found = self.resolve_one(visibility, ref)
        names = self.members([found])
        jobs = self.state.jobs
        waiting = (name for name in names if name in jobs and jobs[name].state is State.WAITING)
        return next(waiting, names[0] if names else found)

    def members(self, names: Iterable[str]) -> list[str]:
        """Return these jobs, with all members of groups."""
        found: dict[str, None] = {}
        for name in names:
            group = self._group(name)
            if group is None:
                found[name] = None
            elif group.array is not None:
                found |= dict.fromkeys(member_id(name, index) for index in indexes(group.array.parts))
        return list(found)

    def _group(self, name: str) -> Group | None:
        members = self.state.groups.get(name)
        return members.group if members is not None else self.store.group(name)

    def group_view(self, name: str) -> GroupView | None:
        """Return the view of a group; None: there is no such group."""
        members = self.state.groups.get(name)
        if members is None:
            group = self.store.group(name)
            return groups.view(group, {}) if group is not None else None
        return groups.view(members.group, members.states, reasons.Wording(self.state).of_group(members))

    def show(self, visibility: Visibility, message: ShowJobs) -> Jobs:
        """Return these jobs in full, and groups as wholes, with their members if requested."""
        names = self.resolve(visibility, message.jobs)
        views = [visibility.group(view) for view in map(self.group_view, names) if view is not None]
        if message.members:
            names = self.members(names)
        jobs = tuple(map(visibility.job, self.views(names)))
        return Jobs(message.id, tuple(map(_short, jobs)) if message.members else jobs, groups=tuple(views))

    def views(self, jobs: Iterable[str]) -> list[JobView]:
        """The jobs as they stand, from the ledger or the store."""
        found = []
        for job in jobs:
            if (view := views.job(self.state, job)) is None and (stored := self.store.job(job)) is not None:
                view = stored.view(stored.reason)
            if view is not None:
                found.append(view)
        return found

    def newest(self, visibility: Visibility, message: ListJobs) -> Jobs:
        """Live jobs and then ended ones, each newest first, as many as are asked for and fit an answer, in short
        form."""
        if visibility.only:
            if message.user not in ("", visibility.only):
                return Jobs(message.id, ())
            message = msgspec.structs.replace(message, user=visibility.only)
        most = max(0, min(message.limit, 100_000))
        whole = self._groups(message, most) if message.fold and not message.past else []
        most = min(most, LIST_JOBS)
        found: list[Job] = list(itertools.islice(self._living(message), most + 1))
        if len(found) <= most and message.ended and (not message.states or State.ENDED in message.states):
            past = message.past and (message.past[0], message.past[2]) if message.past and message.past[0] else None
            which = message.fold, message.boosts, message.failed
            found += self.store.list_ended(most + 1 - len(found), message.user, past, *which)
        views: list[JobView] = []
        size, why = 0, reasons.Wording(self.state)
        for job in found[:most]:
            view = visibility.job(_short(job.view(why.of(job))))
            size += len(msgspec.msgpack.encode(view))
            if size > LIST_BYTES and (views or size > ANSWER_BYTES):
                break
            views.append(view)
        return Jobs(message.id, tuple(views), more=len(views) < len(found), groups=tuple(map(visibility.group, whole)))

    def _groups(self, message: ListJobs, most: int) -> list[GroupView]:
        """Groups, live and then ended, each newest first."""
        living = (one for one in reversed(self.state.groups.values()) if message.user in ("", one.group.user))
        wanted = (one for one in living if _has_some(groups.view(one.group, one.states), message))
        why = reasons.Wording(self.state)
        found = [groups.view(one.group, one.states, why.of_group(one)) for one in itertools.islice(wanted, most)]
        if message.ended and (not message.states or State.ENDED in message.states):
            ending = (groups.view(group, {}) for group in self._ending_groups(message.user))
            found += [view for view in ending if _has_some(view, message)]
            past = self.store.groups_ended(most - len(found), message.user, message.failed)
            found += [groups.view(group, {}) for group in past if group.id not in self.state.groups]
        return [_short_group(view) for view in found]

    def _living(self, message: ListJobs) -> Iterator[Job]:
        if message.past and message.past[0]:
            return
        _, submitted, last = message.past or (0.0, math.inf, "")
        ending = sorted(self._ending(), key=attrgetter("submitted"), reverse=True)
        newest = heapq.merge(ending, reversed(list(self.state.jobs.values())), key=lambda job: -job.submitted)
        for at, together in itertools.groupby(newest, attrgetter("submitted")):
            if at <= submitted:
                for job in sorted(together, key=attrgetter("id"), reverse=True):
                    if (message.fold and job.group) or (message.boosts and job.spec.boost is None):
                        continue
                    if message.holds and not job.spec.hold:
                        continue
                    fits = (not message.states or job.state in message.states) and message.user in ("", job.user)
                    if fits and (at < submitted or job.id < last):
                        yield job

    def _ending(self) -> list[Job]:
        """Ended jobs whose end is not committed yet, as they were before: nothing is shown before it is on disk."""
        ids = {record.job.id for record in self.driver.being_stored() if isinstance(record, RecordJob)}
        stored = (self.store.job(job) for job in ids if job not in self.state.jobs)
        return [job for job in stored if job is not None]

    def _ending_groups(self, user: str) -> list[Group]:
        """Return the ending groups of a user: they are not in the ledger any more, and have not ended in the store
        yet."""
        ids = {record.group.id for record in self.driver.being_stored() if isinstance(record, RecordGroup)}
        stored = (self.store.group(group) for group in sorted(ids) if group not in self.state.groups)
        return [group for group in stored if group is not None and not group.ended and user in ("", group.user)]


def _has_some(group: GroupView, message: ListJobs) -> bool:
    """Whether some of its members are in a state that is asked for."""
    if not message.states:
        return True
    states = {state: count for state, count in group.states.items() if state != State.ENDED or not message.failed}
    return any(states.get(state) for state in message.states) or (message.failed and group.failed > 0)


def _short_group(view: GroupView) -> GroupView:
    return msgspec.structs.replace(view, spec=msgspec.structs.replace(view.spec, env={}))


def _short(view: JobView) -> JobView:
    """A view for lists: no story, no values of the environment, no output."""
    outcome = view.outcome and msgspec.structs.replace(view.outcome, stdout_tail=b"", stderr_tail=b"")
    spec = msgspec.structs.replace(view.spec, env={})
    return msgspec.structs.replace(view, story=(), outcome=outcome, spec=spec)


T = TypeVar("T")


def node_page(state: GridState, now: float, past: str) -> tuple[tuple[NodeView, ...], str]:
    """The nodes behind the one named `past`, in the order of their names; and where to go on (empty: these are all)."""
    names = state.index.behind(past)
    found, last = _page((name, views.node_view(state.nodes[name], now)) for name in names)
    return tuple(found), last


def shared_page(state: GridState, visibility: Visibility, now: float, number: int, only: str, past: str) -> Shared:
    """Return the offered and lent resources of the nodes behind `past`. All of one node is in one answer."""

    def on(name: str) -> tuple[OfferView | None, tuple[AllocationView, ...]]:
        held = views.allocations(state, name)
        return views.offer_view(state.nodes[name], now), tuple(map(visibility.allocation, held))

    names = (name for name in state.index.behind(past) if only in ("", name))
    found, last = _page((name, there) for name in names if any(there := on(name)))
    return Shared(
        number,
        tuple(offer for offer, _ in found if offer is not None),
        tuple(allocation for _, held in found for allocation in held),
        last,
    )


def balancing_page(
    state: GridState, visibility: Visibility, now: float, asked: GetBalancing, address: str
) -> BalancingStatus:
    """Return the state of rebalancing, with the nodes behind the given one."""
    known, balancing = state.balancing, state.policy.balancing
    names = state.index.behind(asked.past)
    nodes, last = _page((name, passes.lender_view(state, state.nodes[name], now)) for name in names)
    return BalancingStatus(
        id=asked.id,
        balancing=balancing,
        configured=known.configured,
        order=known.order,
        address=address,
        last=views.visible_pass(visibility, known.last) if known.last is not None else None,
        recent=tuple(views.visible_move(visibility, one) for one in known.recent),
        barred=tuple(passes.barred_now(state, now)),
        nodes=tuple(nodes),
        past=last,
    )


def boost_page(whole: Boosts, past: tuple[float, str] | None) -> Boosts:
    """Return as many boosts, and then nodes of Ray, as fit behind that boost and that node. A page of boosts ends at a
    time and not at an id, which is not visible to all users: boosts requested at the same moment are on one page."""
    after, node = past or (-1.0, "")
    size = 0
    found: list[BoostView] = []
    nodes: list[RayNode] = []
    for one in sorted(whole.boosts, key=lambda one: one.job.submitted):
        if one.job.submitted <= after:
            continue
        size += len(msgspec.msgpack.encode(one))
        if size > LIST_BYTES and found and one.job.submitted > found[-1].job.submitted:
            return msgspec.structs.replace(whole, boosts=tuple(found), nodes=(), past=(found[-1].job.submitted, node))
        found.append(one)
    after = found[-1].job.submitted if found else after
    for there in sorted(whole.nodes, key=lambda there: there.id):
        if there.id <= node:
            continue
        size += len(msgspec.msgpack.encode(there))
        if size > LIST_BYTES and (found or nodes):
            last = nodes[-1].id if nodes else node
            return msgspec.structs.replace(whole, boosts=tuple(found), nodes=tuple(nodes), past=(after, last))
        nodes.append(there)
    return msgspec.structs.replace(whole, boosts=tuple(found), nodes=tuple(nodes))


def _page(of: Iterable[tuple[str, T]]) -> tuple[list[T], str]:
    """Return as many of these as fit into one answer, and the name of the last one (empty: these are all)."""
    size, last = 0, ""
    found: list[T] = []
    for name, view in of:
        size += len(msgspec.msgpack.encode(view))
        if size > LIST_BYTES and found:
            return found, last
        found.append(view)
        last = name
    return found, ""


class JobWatches:
    """Clients that watch jobs. `views` gives jobs as they stand."""

    def __init__(self, views: Callable[[Iterable[str]], list[JobView]]) -> None:
        self._views = views
        self.watched: dict[str, set[Client]] = {}
        """Who watches which job."""
        self.ended: Counter[Cause] = Counter()
        """How many have ended since the start, by cause."""
        self.waits, self.runs = Histogram(), Histogram()
        """For how long those that ran waited and ran (s)."""
        self.placed = 0
        """How many of those that ended had begun."""
        self.used = self.held = 0.0
        """Core-seconds of those that ended."""
        self.moves = 0
        """Moves of rebalancing since the start."""

    def publish(self, view: JobView) -> None:
        """Send the changed view of a job to its watchers."""
        if view.state is State.ENDED and view.outcome is not None:
            self.ended[view.outcome.cause] += 1
            if view.started:
                amounts = core_seconds(view.request, view.grant, view.outcome)
                self._count(view.started - view.submitted, view.ended - view.started, *amounts, view.spec.hold)
        if watchers := self.watched.get(view.id):
            self._tell(watchers, view)

    def over(self, end: Over) -> None:
        """Report the end of a job that had no watchers then; clients that began to watch it while the end was being
        stored get it from the store."""
        self.ended[end.cause] += 1
        self._count(end.waited, end.ran, end.used, end.held, end.hold)
        if watchers := self.watched.get(end.job):
            (view,) = self._views([end.job])
            self._tell(watchers, view)

    def _count(self, waited: float, ran: float, used: float, held: float, hold: bool) -> None:
        if ran < 0:
            return
        self.placed += 1
        self.used, self.held = min(MOST_FINITE, self.used + used), min(MOST_FINITE, self.held + held)
        if not hold:  # nothing runs in it by itself
            self.waits.add(waited)
            self.runs.add(ran)

    def _tell(self, watchers: set[Client], view: JobView) -> None:
        for one in list(watchers):
            one.connection.send(JobUpdate(one.visibility.job(view)))
            if view.state is State.ENDED:
                self.drop(one, view.id)

    def show(self, client: Client, jobs: Iterable[str]) -> None:
        """Send these jobs now, and whenever they change."""
        for view in self._views(jobs):
            if view.state is not State.ENDED:  # also one whose end is just being stored: that is still to be told
                self.add(client, view.id)
            client.connection.send(JobUpdate(client.visibility.job(view)))

    def add(self, client: Client, job: str) -> None:
        """Send its changes from now on."""
        if not client.gone:
            client.watching.add(job)
            self.watched.setdefault(job, set()).add(client)

    def drop(self, client: Client, job: str) -> None:
        """Stop sending its changes."""
        client.watching.discard(job)
        if watchers := self.watched.get(job):
            watchers.discard(client)
            if not watchers:
                del self.watched[job]

    def gone(self, client: Client) -> None:
        """Forget a client whose connection is closed."""
        for job in list(client.watching):
            self.drop(client, job)


EVERY = 0.2
"""Interval between checks of the groups that are watched (s)."""


class GroupWatches:
    """Clients that watch groups. `view` gives a group as it stands. A check costs by groups, not by members, and only
    changes are sent."""

    def __init__(self, view: Callable[[str], GroupView | None]) -> None:
        self._view = view
        self._watchers: dict[str, list[Client]] = {}
        self._told: dict[str, GroupView] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, client: Client, name: str) -> None:
        """Send this group now, and whenever it has changed, until it has ended."""
        view = self._view(name)
        if view is None:
            return
        client.connection.send(GroupUpdate(client.visibility.group(view)))
        if not view.ended:
            self._watchers.setdefault(name, []).append(client)
            self._told.setdefault(name, view)
            if self._timer is None:
                self._send_later()

    def _send_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._send_updates)

    def _send_updates(self) -> None:
        self._timer = None
        for name, watchers in list(self._watchers.items()):
            watchers = self._watchers[name] = [one for one in watchers if not one.gone]
            view = self._view(name) if watchers else None
            if view is not None and view != self._told[name]:
                self._told[name] = view
                for one in watchers:
                    one.connection.send(GroupUpdate(one.visibility.group(view)))
            if view is None or view.ended:
                del self._watchers[name], self._told[name]
        if self._watchers:
            self._send_later()
