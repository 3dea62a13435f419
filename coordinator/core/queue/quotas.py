"""The rights in force for each user, and the pools in which quotas are counted: one for each user with quotas, and one
for each group with quotas, which its members share.

A pool counts what its jobs hold and what is earmarked for them. Hours are counted by days of UTC: the use of ended
attempts is added up here (`Spent`), that of running ones follows from their grants (rights.py). Users without quotas
are in no pool, and cost only a lookup.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.model import Allocation, Earmarked, Job
from distributed_grid.coordinator.core.queue.queue import Key
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.rights import NO_RIGHTS, Rights, Rules, Whose, key_of
from distributed_grid.protocol.resources import Count, Grant, Resources

DAY = 86_400.0


class Spent(msgspec.Struct, frozen=True, gc=False):
    """The use by ended attempts of a pool on one day (days since the epoch), in thousandths of a core, or of a GPU,
    times milliseconds."""

    day: Count = 0
    cpu: Count = 0
    gpu: Count = 0


@dataclass(slots=True)
class Pool:
    """A user or group with quotas. `held` includes earmarks; `jobs` counts those that live. `first` is the job that
    waits for what is held, and comes before all others of the pool; `first_for_hours` the one that waits for hours. Not
    reviewed before `rests_until`."""

    id: str
    name: str
    """As sentences name it."""
    option: str
    """As `grid quota set` names it."""
    limits: Rights
    held: Resources = Resources()
    allocations: dict[str, Allocation] = field(default_factory=dict)
    jobs: int = 0
    inside: int = 0
    """How many have a place inside of a hold, which counts for them."""
    first: str = ""
    first_for_hours: str = ""
    rests_until: float = 0.0
    used: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Cache of its use on a day (rights.py), by kind and day, with the number of `added` allocations included. Valid
    until time goes on, or one of its allocations changes."""
    added: list[Allocation] = field(default_factory=list)

    @property
    def by_day(self) -> bool:
        """Whether it has quotas of hours."""
        return self.limits.core_hours is not None or self.limits.gpu_hours is not None

    @property
    def waiting(self) -> int:
        """The number of its waiting jobs."""
        return self.jobs - len(self.allocations) - self.inside


class Allowed(NamedTuple):
    """The rights of a user: the highest priority, exclusive boosts, reservations; and the pools of the user's jobs."""

    highest: Priority = Priority.URGENT
    exclusive: bool = True
    reserves: bool = True
    pools: tuple[Pool, ...] = ()


class Quotas:
    """`rules` are the configuration's; `granted` is what operators have set above them, by `key_of`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.granted: dict[str, Rights] = {}
        self.spent: dict[str, Spent] = {}
        """By pool."""
        self.excluded: dict[Key, None] = {}
        """Lines of the queue that are not served, since a quota is reached."""
        self.changed: dict[str, None] = {}
        """Pools to review: something of theirs became free, or their order has changed; under `""` all."""
        self.with_first: dict[str, Pool] = {}
        """The pools that have a first job."""
        self.limited = rules != Rules()
        """Whether any rights are set at all: else nobody is in a pool."""
        self.counted: dict[str, Pool] = {}
        """The pools whose use on a day is cached."""
        self._pools: dict[str, Pool] = {}
        self._allowed: dict[tuple[str, bool], Allowed] = {}
        self._groups: dict[str, list[str]] = {}
        for name, group in rules.groups.items():
            for member in dict.fromkeys(group.members):
                self._groups.setdefault(member, []).append(name)

    # --- what is in force ---------------------------------------------------------------------------------------------

    def rights_of(self, whose: Whose, name: str = "") -> Rights:
        """Return the rights of a user, of a group or of everybody: those granted, else those configured."""
        match whose:
            case Whose.USER:
                configured = self.rules.users.get(name, NO_RIGHTS)
            case Whose.GROUP:
                group = self.rules.groups.get(name)
                configured = group.rights if group is not None else NO_RIGHTS
            case Whose.DEFAULT:
                configured = self.rules.default
        granted = self.granted.get(key_of(whose, name)) if self.granted else None
        return configured if granted is None else granted.over(configured)

    def groups_of(self, user: str) -> list[str]:
        """The groups that a user is a member of."""
        return self._groups.get(user, [])

    def allowed(self, user: str, operator: bool) -> Allowed:
        """The rights of this user. The default does not apply to operators."""
        found = self._allowed.get((user, operator))
        return found if found is not None else self._learn(user, operator)

    def pools(self, job: Job) -> tuple[Pool, ...]:
        """The pools that a job counts in."""
        return self.allowed(job.user, job.by_operator).pools if self.limited else ()

    def in_force(self, user: str, operator: bool) -> Rights:
        """The rights of a user, beside the quotas of the user's groups."""
        own = self._own(user, operator)
        allowed = self.allowed(user, operator)
        return msgspec.structs.replace(
            own, highest_priority=allowed.highest, exclusive_boosts=allowed.exclusive, reservations=allowed.reserves
        )

    def _own(self, user: str, operator: bool) -> Rights:
        default = NO_RIGHTS if operator else self.rights_of(Whose.DEFAULT)
        return self.rights_of(Whose.USER, user).over(default)

    def _learn(self, user: str, operator: bool) -> Allowed:
        default = NO_RIGHTS if operator else self.rights_of(Whose.DEFAULT)
        own = self.rights_of(Whose.USER, user)
        groups = {name: self.rights_of(Whose.GROUP, name) for name in self.groups_of(user)}
        pools = [self._pool(pool_of(user, operator), user, user, own.over(default))]
        pools += [
            self._pool(key_of(Whose.GROUP, name), f"group {name}", f"--group {name}", rights)
            for name, rights in groups.items()
        ]
        highest = _best(own, groups.values(), default, "highest_priority")
        exclusive = _best(own, groups.values(), default, "exclusive_boosts")
        reserves = _best(own, groups.values(), default, "reservations")
        found = self._allowed[(user, operator)] = Allowed(
            Priority.URGENT if highest is None else Priority(highest),
            exclusive is None or bool(exclusive),
            reserves is None or bool(reserves),
            tuple(pool for pool in pools if pool is not None),
        )
        return found

    def _pool(self, id_: str, name: str, option: str, rights: Rights) -> Pool | None:
        limits = rights.quotas()
        if limits == NO_RIGHTS:
            return None
        if (pool := self._pools.get(id_)) is None:
            pool = self._pools[id_] = Pool(id_, name, option, limits)
        return pool

    def all_pools(self) -> Iterable[Pool]:
        """The pools of all users seen so far."""
        return self._pools.values()

    def pool(self, id_: str) -> Pool | None:
        """The pool of this id; None: no user seen so far is in it."""
        return self._pools.get(id_)

    def rebuild(self, jobs: Mapping[str, Job], allocations: Iterable[Allocation], inside: Iterable[Allocation]) -> None:
        """Recount everything after a change of rights or a restore: what jobs hold, and what is inside of holds. All
        excluded lines are to be reviewed."""
        self._pools, self._allowed, self.with_first, self.counted = {}, {}, {}, {}
        self.limited = bool(self.granted) or self.rules != Rules()
        if self.limited:
            self._count(jobs, allocations, inside)
        self.changed = {"": None, **dict.fromkeys(self._pools)} if self.excluded else {}

    def _count(self, jobs: Mapping[str, Job], allocations: Iterable[Allocation], inside: Iterable[Allocation]) -> None:
        for job in jobs.values():
            for pool in self.pools(job):
                pool.jobs += 1
            if isinstance(job.phase, Earmarked):
                for place in job.phase.earmark.places:
                    self.earmark(job, place.grant)
        for allocation in allocations:
            self.add_allocation(jobs[allocation.job], allocation)
        for allocation in inside:
            self.enter_hold(jobs[allocation.job])

    # --- counting -----------------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Count a job that is not ended."""
        for pool in self.pools(job):
            pool.jobs += 1

    def remove_job(self, job: Job) -> None:
        """Stop counting a job, which has ended."""
        for pool in self.pools(job):
            pool.jobs -= 1

    def add_allocation(self, job: Job, allocation: Allocation) -> None:
        """Count what a job holds from now on."""
        for pool in self.pools(job):
            pool.allocations[allocation.id] = allocation
            pool.held = pool.held + allocation.grant.resources
            if pool.used:
                pool.added.append(allocation)

    def enter_hold(self, job: Job) -> None:
        """Count a job that got its place inside of a hold."""
        for pool in self.pools(job):
            pool.inside += 1

    def leave_hold(self, job: Job) -> None:
        """Stop counting a job inside of a hold: it has ended, or holds its grant itself now."""
        for pool in self.pools(job):
            pool.inside -= 1

    def forget_used(self) -> None:
        """Drop the cached use by day, since time went on or an allocation changed."""
        for pool in self.counted.values():
            pool.used.clear()
            pool.added.clear()
        self.counted.clear()

    def remove_allocation(self, job: Job, allocation: Allocation, now: float) -> list[tuple[str, Spent]]:
        """Stop counting what a job has given back; returns what the pools with quotas of hours have spent."""
        spent: list[tuple[str, Spent]] = []
        for pool in self.pools(job):
            del pool.allocations[allocation.id]
            pool.held = pool.held - allocation.grant.resources
            self._note(pool)
            if pool.by_day:
                spent.append((pool.id, self._spend(pool, allocation, now)))
        return spent

    def earmark(self, job: Job, grant: Grant) -> None:
        """Count what is earmarked for a job."""
        for pool in self.pools(job):
            pool.held = pool.held + grant.resources

    def unmark(self, job: Job, grant: Grant) -> None:
        """Stop counting what was earmarked for a job."""
        for pool in self.pools(job):
            pool.held = pool.held - grant.resources
            self._note(pool)

    def left_queue(self, job: Job) -> None:
        """Note that a job has left the queue."""
        for pool in self.pools(job):
            if job.id in (pool.first, pool.first_for_hours):
                self._note(pool)

    def _note(self, pool: Pool) -> None:
        if self.excluded:
            self.changed[pool.id] = None

    def _spend(self, pool: Pool, allocation: Allocation, now: float) -> Spent:
        day = int(now // DAY)
        before = self.spent_of(pool, day)
        amount, time = allocation.grant.resources, milliseconds(max(allocation.granted, day * DAY), now)
        spent = self.spent[pool.id] = Spent(day, before.cpu + amount.cpu * time, before.gpu + amount.gpu * time)
        return spent

    def spent_of(self, pool: Pool, day: int) -> Spent:
        """The use by ended attempts of a pool on this day."""
        spent = self.spent.get(pool.id)
        return spent if spent is not None and spent.day == day else Spent(day)

    def most_memory(self, job: Job, request: Request) -> int | None:
        """The most memory that a job may ever have on one node, by its quotas; None: any."""
        limits = [pool.limits.memory for pool in self.pools(job) if pool.limits.memory is not None]
        return min(limits) // max(1, request.gang) if limits else None


def pool_of(user: str, operator: bool) -> str:
    """The id of the pool of a user: the jobs of an operator are counted apart."""
    return f"{'operator' if operator else 'user'}/{user}"


def _best(own: Rights, groups: Iterable[Rights], default: Rights, name: str) -> int | None:
    """A right that is no quota: the user's own, else the best of the user's groups, else the default."""
    mine: int | None = getattr(own, name)
    if mine is not None:
        return mine
    theirs = [value for rights in groups if (value := getattr(rights, name)) is not None]
    fallback: int | None = getattr(default, name)
    return max(theirs) if theirs else fallback


def milliseconds(begin: float, end: float) -> int:
    """The whole milliseconds from one moment to another; 0 if that is not later."""
    return max(0, round((end - begin) * 1000))
