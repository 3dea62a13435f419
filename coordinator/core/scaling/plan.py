"""The plan: what is to be created, drained and taken back now, and what is not done, each with its reason. Pure: the
same view, machines and time give the same plan.

Demand comes first. Waiting jobs are assigned to machines that are starting already, then to new machines, those with
the lowest cost for what they serve first. Utilisation decides only where demand and idleness leave a choice. A machine
that was created is not ended before it was without jobs for its pool's `idle`, which is never less than the time it
takes to boot; so scaling up is never followed by scaling down within boot time plus idle.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.scaling.budget import HOUR, Budget, Refused
from distributed_grid.coordinator.core.scaling.packing import (
    Ask,
    Bin,
    Demand,
    Stock,
    View,
    able,
    never,
    node_of,
    spread,
)
from distributed_grid.coordinator.core.scaling.state import OVERDUE
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.scaling.machines import OVER, STARTING, Machine, MachineState
from distributed_grid.protocol.scaling.plans import (
    NAMED,
    RETURNING,
    Create,
    DrainCause,
    DrainMachine,
    NotDone,
    ReturnMachine,
    ScalePlan,
)
from distributed_grid.protocol.scaling.pools import Billing, Pool, Scaling, Shape
from distributed_grid.protocol.text import counted, format_duration

LEAVE = 300.0
"""Seconds before the end of a paid hour, or of its life, in which a machine is drained."""
SAID = 200
"""Maximum number of entries that a plan has of what is not done."""


def boot_time(pool: Pool, type: str, view: View) -> tuple[float, float]:
    """Return how long a machine takes until it can run jobs (s): the median, and the 90th percentile."""
    return view.boots.get((pool.name, type)) or (pool.boot, pool.boot)


def idle_time(pool: Pool, type: str, view: View) -> float:
    """Return how long a machine is without jobs before it ends (s): at least as long as it takes to boot."""
    return max(pool.idle, boot_time(pool, type, view)[1])


def lost_time(pool: Pool, type: str, view: View) -> float:
    """Return the part of a machine's life in which it runs no jobs (s): until it is up, and from when the last jobs are
    told to leave."""
    return boot_time(pool, type, view)[1] + last(pool)


def last(pool: Pool) -> float:
    """Return how long before the end of a machine's life its jobs have all ended (s)."""
    return min(OVERDUE, LEAVE, pool.life / 10)


class _Option(NamedTuple):
    """A type of a pool, its machine as planned, when it would be up, and the part of its life without jobs."""

    pool: Pool
    shape: Shape
    node: Node
    boot: float
    lost: float


class _New(NamedTuple):
    option: _Option
    zone: str
    life: float
    why: str


def plan(view: View, demand: Demand, machines: Iterable[Machine], scaling: Scaling, now: float) -> ScalePlan:
    """Return the actions to take now."""
    return _Plan(view, [*machines], scaling, now).made(demand)


def ordered(
    view: View, machines: Iterable[Machine], scaling: Scaling, pool: str, type: str, why: str, now: float
) -> Create | Refused:
    """Create one machine of a pool at an operator's request; `type` empty: the first type that may be created."""
    return _Plan(view, [*machines], scaling, now).ordered(pool, type, why)


def could_come(view: View, ask: Ask, machines: Iterable[Machine], scaling: Scaling, now: float) -> bool:
    """Whether there are machines for this, if nothing else waits: on their way, or to be created now."""
    return _Plan(view, [*machines], scaling, now).could_come(ask)


class _Plan:
    def __init__(self, view: View, machines: list[Machine], scaling: Scaling, now: float) -> None:
        self._view, self._scaling, self._now = view, scaling, now
        self._machines = [one for one in machines if one.live]
        self._budget = Budget(scaling, machines, view.unrecorded, now)
        self._spent = self._budget.spent(machines)
        self._workers, self._rate = self._budget.workers, self._budget.rate
        self._options = [
            _Option(
                pool,
                shape,
                node_of(pool, shape, view.as_joined.get((pool.name, shape.type))),
                boot_time(pool, shape.type, view)[0],
                lost_time(pool, shape.type, view),
            )
            for pool in scaling.pools
            for shape in pool.shapes
        ]
        self._by_type = {(one.pool.name, one.shape.type): one for one in self._options}
        self._ranked = [
            (one.node.facts.lendable, one.shape.price, _size(one.node.facts.lendable), one) for one in self._options
        ]
        self._starting = {pool.name: 0 for pool in scaling.pools}
        for one in self._machines:
            if one.state in STARTING:
                self._starting[one.pool] = self._starting.get(one.pool, 0) + 1
        self._news: list[_New] = []
        self._serves: list[tuple[int, tuple[str, ...]]] = []
        self._needed: set[str] = set()
        """Machines that are there or on their way, and that demand is put on."""
        self._not_done: list[NotDone] = []

    def made(self, demand: Demand) -> ScalePlan:
        """The whole plan."""
        asks = demand.asks
        least = _least(asks)
        self._stock = Stock(self._bins(), least)
        for pool in self._scaling.pools:
            self._to_min(pool)
        for ask in asks:
            if ask.gang:
                self._serve_gang(ask)
            else:
                self._serve(ask)
        if not self._news:
            self._raise(asks)
        returns = [one for one in self._machines if one.name in self._needed and one.state is MachineState.DRAINING]
        drains = self._drains(busy=bool(asks))
        return ScalePlan(
            at=self._now,
            creates=tuple(self._creates()),
            drains=tuple(drains),
            returns=tuple(ReturnMachine(machine=one.name, pool=one.pool, why="jobs wait for it") for one in returns),
            not_done=(*self._not_done, *demand.left_out)[:SAID],
            workers=self._workers,
            rate=self._rate,
            spent=self._spent,
            utilisation=self._view.utilisation,
        )

    def ordered(self, pool: str, type: str, why: str) -> Create | Refused:
        """As the function of this name."""
        refused: list[str] = []
        self._stock = Stock([], Resources())
        for option in self._options:
            if option.pool.name != pool or type not in ("", option.shape.type):
                continue
            if (found := self._open(option, None, refused)) is not None:
                self._new(option, *found, why)
                return self._create(self._news[0], 0, ())
        return Refused("; ".join(refused) or f"pool {pool} has no type {type}")

    def could_come(self, ask: Ask) -> bool:
        """As the function of this name."""
        self._stock = Stock(self._bins(), ask.request.resources)
        (self._serve_gang if ask.gang else self._serve)(ask)
        return not self._not_done

    # --- what is there, or on its way ---------------------------------------------------------------------------------

    def _bins(self) -> list[Bin]:
        """Return what has room before a new machine could be up, in the order in which it has."""
        bins = list(self._view.soon)
        for one in self._machines:  # in the order of their creation: see `Stock.serve`
            seen = self._view.seen.get(one.name)
            comes = one.state in STARTING
            if seen is not None and seen.coming:
                comes |= one.state is MachineState.JOINED and not seen.usable
                comes |= one.state is MachineState.DRAINING and seen.cause in RETURNING and not seen.allocations
            option = self._option_of(one) if comes else None
            if option is not None and option.node.capacity is not None:
                # As planned when it was created, unless it is late.
                up = max(self._now + last(option.pool), (one.born or self._now) + option.lost)
                left = (one.ends_by or self._now + option.pool.life) - up
                bins.append(Bin(option.node, option.node.capacity.copy(), [one.name], left, whole=True))
        return bins

    def _option_of(self, one: Machine) -> _Option | None:
        """The type of a machine, also where its pool does not name it any more; None: the pool is configured no more,
        so that the machine ends."""
        if (found := self._by_type.get((one.pool, one.type))) is not None:
            return found
        if (pool := self._scaling.pool(one.pool)) is None:
            return None
        shape = Shape(type=one.type, resources=one.resources, price=one.price)
        node = node_of(pool, shape, self._view.as_joined.get((one.pool, one.type)))
        return _Option(pool, shape, node, 0.0, lost_time(pool, one.type, self._view))

    # --- up -----------------------------------------------------------------------------------------------------------

    def _serve(self, ask: Ask) -> None:
        """Put these jobs as planned, on new machines where necessary."""
        served = self._take(ask, ask.count)
        rest = ask.count - sum(served.values())
        why: list[str] = []
        while rest > 0:
            option, zone, life = self._choose(ask, rest, why)
            if option is None:
                self._say(ask, rest, why)
                return
            needs = _needs(ask)
            self._new(option, zone, life, needs)
            rest -= sum(self._take(ask, rest).values())
            # Others like it are created in one go, as full as it is.
            each = self._serves[-1][0]
            while each and rest >= each and (allowed := self._open(option, ask, why)) is not None:
                rest -= each * self._repeat(option, *allowed, needs, rest // each)

    def _repeat(self, option: _Option, zone: str, life: float, why: str, most: int) -> int:
        """Plan another machine like the last one, and up to `most` where the budget need not be checked for each.
        Returns how many were planned."""
        last, served = _key(len(self._news) - 1), self._serves[-1]
        keys = [self._note_new(option, zone, life, why)]
        pool, room = option.pool, self._budget.room(option.pool, option.shape)
        if pool.backlog:
            room = min(room, pool.backlog - self._starting[pool.name])
        more = max(0, min(most - 1, room))
        keys += [_key(number) for number in range(len(self._news), len(self._news) + more)]
        self._news += [self._news[-1]] * more
        self._serves[-1:] = [served] * (more + 1)
        self._starting[pool.name] += more
        for _ in range(more):
            self._budget.charge(pool, option.shape, life)
        self._stock.repeat(last, keys, life - option.lost)
        return more + 1

    def _take(self, ask: Ask, count: int) -> dict[str, int]:
        """Assign jobs to planned machines with room, and note the jobs that need a new machine."""
        served = self._stock.serve(ask, count)
        for key, jobs in spread(served, ask.jobs, NAMED).items():
            if key.startswith("+"):
                number = int(key[1:])
                before, names = self._serves[number]
                self._serves[number] = (before + served[key], (*names, *jobs)[:NAMED])
            else:
                self._needed.add(key)
        return served

    def _choose(self, ask: Ask, rest: int, why: list[str]) -> tuple[_Option | None, str, float]:
        """The type of machine that costs least for these jobs, of those that may be created."""
        if full := self._budget.full():
            _note(why, full)
            return None, "", 0.0
        request, choices = ask.request, []
        wanted, constrained = request.resources, request.constraints is not None or bool(request.user)
        cpu, memory, gpu = wanted.cpu, wanted.memory, wanted.gpu
        single = ask.alone or bool(ask.gang)
        for number, (most, price, size, option) in enumerate(self._ranked):
            if cpu > most.cpu or memory > most.memory or gpu > most.gpu:
                continue
            if (constrained or gpu) and not able(option.node, request):
                continue
            serves = 1 if single else rest
            if cpu and (count := most.cpu // cpu) < serves:
                serves = count
            if memory and (count := most.memory // memory) < serves:
                serves = count
            if gpu and (count := most.gpu // gpu) < serves:
                serves = count
            # Without a price one that is just large enough; after those with a price, which are known to be cheap.
            cost = (0, price / serves) if price is not None else (1, size / serves)
            choices.append((cost, option.boot, number, option))
        for *_, option in sorted(choices):
            if (found := self._open(option, ask, why)) is not None:
                return option, *found
        return None, "", 0.0

    def _open(self, option: _Option, ask: Ask | None, why: list[str]) -> tuple[str, float] | None:
        """The zone and the life of one more such machine; None: there may be none now."""
        pool, shape, lasts = option.pool, option.shape, ask.lasts if ask is not None else 0.0
        needs = lasts + option.lost if lasts else 0.0
        if needs > pool.life:
            left = format_duration(max(0.0, round(pool.life - option.lost)))
            _note(
                why,
                f"it may take {format_duration(lasts)}, and a machine of pool {pool.name} lives for "
                f"{format_duration(pool.life)} (life), of which jobs have {left}",
            )
            return None
        if pool.name in self._view.paused:
            _note(why, f"pool {pool.name} is paused: {self._view.paused[pool.name]}")
            return None
        if pool.backlog and self._starting[pool.name] >= pool.backlog:
            _note(why, f"{self._starting[pool.name]} machines of pool {pool.name} are on their way (backlog)")
            return None
        allowed = self._budget.allows(pool, shape, needs)
        if isinstance(allowed, Refused):
            _note(why, allowed.why)
            return None
        if needs > allowed:
            _note(why, f"it may take {format_duration(lasts)}, and the day's limit leaves {format_duration(allowed)}")
            return None
        for zone in pool.zones:
            until, said = self._view.backoffs.get((pool.name, zone, shape.type), (0.0, ""))
            if until <= self._now:
                return zone, allowed
            where = f" in {zone}" if zone else ""
            left = format_duration(max(1.0, round(until - self._now)))
            _note(why, f"pool {pool.name}{where} has no {shape.type or 'machine'}: {said}; asked again in {left}")
        return None

    def _new(self, option: _Option, zone: str, life: float, why: str) -> None:
        """Plan another machine, with nothing on it."""
        assert option.node.capacity is not None
        key = self._note_new(option, zone, life, why)
        self._stock.add(Bin(option.node, option.node.capacity.copy(), [key], life - option.lost, whole=True))

    def _note_new(self, option: _Option, zone: str, life: float, why: str) -> str:
        """Plan another machine. Returns its key in the stock."""
        if life < option.pool.life:
            why += f"; its life is {format_duration(round(life))}, as far as the day's limit allows"
        if option.shape.price is None:
            why += "; its price is not known, so it counts against the number of machines alone"
        self._news.append(_New(option, zone, life, why))
        self._serves.append((0, ()))
        self._budget.charge(option.pool, option.shape, life)
        self._starting[option.pool.name] += 1
        return _key(len(self._news) - 1)

    def _creates(self) -> list[Create]:
        found: list[Create] = []
        before: tuple[_New | None, tuple[int, tuple[str, ...]] | None] = (None, None)
        for new, served in zip(self._news, self._serves, strict=True):
            same = new is before[0] and served is before[1]
            found.append(found[-1] if same else self._create(new, *served))
            before = (new, served)
        return found

    def _create(self, new: _New, serves: int, jobs: tuple[str, ...]) -> Create:
        pool, shape = new.option.pool, new.option.shape
        return Create(
            pool=pool.name,
            provider=pool.provider,
            type=shape.type,
            zone=new.zone,
            resources=new.option.shape.resources,
            price=shape.price,
            life=new.life,
            serves=serves,
            jobs=jobs,
            why=new.why,
        )

    def _serve_gang(self, ask: Ask) -> None:
        """Plan machines for all members of a gang that have no room now, or none: each needs a node of its own."""
        for number in range(ask.count):
            one = replace(ask, count=1, jobs=ask.jobs[number : number + 1])
            missing = ask.gang - ask.have
            mark, stock = len(self._news), [one.copy() for one in self._stock.bins]
            before, served_before = self._budget, list(self._serves)
            needed = set(self._needed)
            missing -= len(self._take(one, missing))
            why: list[str] = []
            saved = dict(self._starting)
            if missing > 0:
                self._budget = self._budget.copy()
            while missing > 0:
                option, zone, life = self._choose(one, 1, why)
                if option is None:
                    break
                self._new(option, zone, life, _needs(one))
                missing -= len(self._take(one, 1))
            if missing > 0:  # all or none
                del self._news[mark:]
                self._serves, self._budget, self._starting, self._needed = served_before, before, saved, needed
                self._stock.bins = stock
                self._say(one, 1, why)
                return

    def _say(self, ask: Ask, rest: int, why: list[str]) -> None:
        """Note that these jobs get no machine, and why."""
        code = "limit"
        if not why:
            found = {option.pool.name: self._never(option, ask) for option in reversed(self._options)}
            why = [f"a machine of pool {name} {said}" for name, said in reversed(found.items())]
            code = "no-pool"
        text = "; ".join(why[:NAMED]) or "no pool is configured"
        self._not_done.append(NotDone(what=_needs(ask), code=code, why=text, count=rest, jobs=ask.jobs[:NAMED]))

    def _never(self, option: _Option, ask: Ask) -> str:
        said, pool = never(option.node, ask.request), option.pool.name
        joined = self._view.as_joined.get((pool, option.shape.type))
        if joined is None:
            return said
        return f"{said}, as {joined.facts.name} did (after a change: grid scale resume {pool})"

    def _to_min(self, pool: Pool) -> None:
        """Create what is missing to a pool's `min`, of its first type that may be."""
        while self._budget.count(pool.name) < pool.min:
            why: list[str] = []
            for option in (one for one in self._options if one.pool is pool):
                if (found := self._open(option, None, why)) is not None:
                    self._new(option, *found, f"pool {pool.name} has at least {pool.min} (min)")
                    break
            else:
                what = f"pool {pool.name} is to have at least {pool.min} machines"
                self._not_done.append(NotDone(what=what, code="limit", why="; ".join(why[:NAMED])))
                return

    def _raise(self, asks: Iterable[Ask]) -> None:
        """Plan another machine if the grid was used above `up` over a whole window and jobs that it could run still
        wait."""
        view, scaling = self._view, self._scaling
        used = view.utilisation
        if used is None or used < scaling.up or self._now < view.raised + scaling.up_cooldown:
            return
        if any(self._starting.values()):
            return
        why = f"{used:.0%} of the grid was used over {format_duration(scaling.window)} (up: {scaling.up:.0%})"
        for option in sorted(self._options, key=lambda one: (one.shape.price is None, one.shape.price or 0.0)):
            runs = any(able(option.node, ask.request) and self._open(option, ask, []) for ask in asks)
            if runs and (found := self._open(option, None, [])) is not None:
                self._new(option, *found, why)
                return

    # --- down ---------------------------------------------------------------------------------------------------------

    def _drains(self, busy: bool) -> list[DrainMachine]:
        """Machines that are to end: those that must, then those without jobs; then one that is little used."""
        drains: list[DrainMachine] = []
        left = self._staying()
        joined = [one for one in self._machines if one.state is MachineState.JOINED]
        for one in self._machines:
            pool = self._scaling.pool(one.pool)
            if one.state is not MachineState.JOINED and (pool is not None or one.state not in STARTING):
                continue
            if pool is None:
                drains.append(_drain(one, DrainCause.REMOVED, f"pool {one.pool} is not configured any more"))
            elif one.ends_by and self._now >= one.ends_by - min(LEAVE, pool.life / 10):
                drains.append(_drain(one, DrainCause.LIFE, f"its life of {format_duration(pool.life)} is over"))
                left[one.pool] -= 1
            elif (lost := self._lost(one, pool)) is not None:
                drains.append(_drain(one, DrainCause.LOST, lost))
                left[one.pool] -= 1
        gone = {one.machine for one in drains}
        for one in sorted(joined, key=self._order):
            pool = self._scaling.pool(one.pool)
            if pool is None or one.name in gone or left[pool.name] <= pool.min:
                continue
            seen = self._view.seen.get(one.name)
            if seen is None or not seen.joined or seen.allocations or not seen.idle_since or one.name in self._needed:
                continue
            if seen.reserved or not self._may_leave(one, pool):
                continue
            idle = self._now - seen.idle_since
            limit = idle_time(pool, one.type, self._view)
            if left[pool.name] > pool.max:
                drains.append(_drain(one, DrainCause.TOO_MANY, f"pool {pool.name} has more than {pool.max} (max)"))
            elif idle >= limit:
                why = f"without jobs for {format_duration(round(idle))} (idle: {format_duration(limit)})"
                drains.append(_drain(one, DrainCause.IDLE, why))
            else:
                continue
            left[pool.name] -= 1
        if not drains and not busy and not self._news:
            drains += self._lower(joined, left)
        return drains

    def _lost(self, one: Machine, pool: Pool) -> str | None:
        """Why a machine whose node is lost is to end, also where its pool is to have it: None, as long as it may be
        back."""
        seen = self._view.seen.get(one.name)
        if seen is None or not seen.lost or seen.allocations or not seen.idle_since:
            return None
        silent = self._now - seen.idle_since
        if silent < idle_time(pool, one.type, self._view):
            return None
        return f"its node is lost, and was not back for {format_duration(round(silent))}"

    def _staying(self) -> dict[str, int]:
        """Return how many machines of each pool exist or are on their way, and are to stay."""
        left = {pool.name: 0 for pool in self._scaling.pools}
        leave = OVER | {MachineState.ENDING, MachineState.DRAINING}
        for one in self._machines:
            if one.state not in leave and one.pool in left:
                left[one.pool] += 1
        return left

    def _order(self, one: Machine) -> tuple[bool, float, str]:
        """Empty machines first, then those whose jobs end soonest."""
        seen = self._view.seen.get(one.name)
        return (seen is not None and seen.allocations > 0, seen.ends if seen is not None else 0.0, one.name)

    def _may_leave(self, one: Machine, pool: Pool) -> bool:
        """Whether it is not paid for longer: a machine billed by the hour is kept to the end of its hour."""
        if pool.billing is Billing.SECOND or not one.born:
            return True
        return (self._now - one.born) % HOUR >= HOUR - LEAVE

    def _lower(self, joined: list[Machine], left: Mapping[str, int]) -> list[DrainMachine]:
        """Drain a machine if the grid was used below `down` over a whole window and the rest is used below `target`
        then."""
        view, scaling = self._view, self._scaling
        used, whole = view.utilisation, _size(view.capacity)
        if used is None or used > scaling.down or self._now < view.lowered + scaling.down_cooldown:
            return []
        for one in sorted(joined, key=self._order):
            pool, seen = scaling.pool(one.pool), view.seen.get(one.name)
            if pool is None or seen is None or seen.fixed or seen.reserved or left[pool.name] <= pool.min:
                continue
            if self._now < one.joined + idle_time(pool, one.type, view) or not seen.allocations:
                continue  # it has just come, or ends by being idle
            rest = whole - _size(one.resources)
            if self._may_leave(one, pool) and rest > 0 and used * whole / rest <= scaling.target:
                why = f"{used:.0%} of the grid was used over {format_duration(scaling.window)} (down: "
                return [_drain(one, DrainCause.UNUSED, f"{why}{scaling.down:.0%})")]
        return []


def _key(number: int) -> str:
    """Return the key in the stock of the machine with this number in the plan."""
    return f"+{number}"


def _least(asks: Iterable[Ask]) -> Resources:
    """The least that anything asks for, of each kind."""
    all_of = [one.request.resources for one in asks]
    if not all_of:
        return Resources()
    return Resources(min(a.cpu for a in all_of), min(a.memory for a in all_of), min(a.gpu for a in all_of))


def _size(of: Resources) -> float:
    """Return resources as one number, in cores: 4 GiB, or an eighth of a GPU, count as a core."""
    return of.cpu / 1000 + of.memory / (4 << 30) + of.gpu / 125


def _needs(ask: Ask) -> str:
    what = f"{counted(ask.gang, 'node')} with {ask.request.resources} each" if ask.gang else str(ask.request.resources)
    return f"{counted(ask.count, 'job')} of {ask.user} {'waits' if ask.count == 1 else 'wait'} for {what}"


def _note(why: list[str], text: str) -> None:
    if text not in why:
        why.append(text)


def _drain(one: Machine, cause: DrainCause, why: str) -> DrainMachine:
    return DrainMachine(machine=one.name, pool=one.pool, cause=cause, why=why)
