"""Machines that pools could create, as the nodes that they will be: what could run on one, and how planned machines are
filled. Machines that are equally full are one `Bin`, so a thousand equal jobs cost no more than one. Also the structs
that a plan is made from: `Ask`, `Seen`, `View` and `Demand`.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement import matching
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.constraints import meets, unmet
from distributed_grid.coordinator.core.placement.matching import could_ever, labels
from distributed_grid.coordinator.core.scaling.state import AsJoined, Key
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, NodeFacts, NodeState, Offer
from distributed_grid.protocol.placement import Trust
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.scaling.plans import DrainCause, NotDone
from distributed_grid.protocol.scaling.pools import Pool, ScalingMode, Shape

POOL_LABEL = "pool"
"""The label by which a job can ask for a machine of one pool, and which each of them has."""
BINS_MOST = 32
"""Maximum number of differently filled new machines that are looked at for what comes next; the fullest are left out
first."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Equal jobs that wait: `count` of them, the first ones by `jobs`. `lasts`: maximum duration in seconds; 0:
    unlimited. `alone`: no two of them may be on one node. `have`: of a gang, how many members have room now."""

    request: Request
    count: int
    lasts: float = 0.0
    jobs: tuple[str, ...] = ()
    user: str = ""
    alone: bool = False
    have: int = 0

    @property
    def gang(self) -> int:
        """The number of members of a gang; 0: it is none."""
        return self.request.gang


def node_of(pool: Pool, shape: Shape, joined: AsJoined | None = None) -> Node:
    """A machine of this type as the node that it will be, with nothing on it and no name by which a job can ask for it.
    It is as the one that has `joined` last, and before any has, as configured."""
    wanted = shape.resources if joined is None else joined.lends
    cores = tuple(range(-(-wanted.cpu // MILLI)))
    if joined is None:
        model, memory = shape.gpu_model or "GPU", shape.gpu_memory
        known = tuple(GpuFacts(f"gpu{at}", at, model, memory) for at in range(wanted.gpu // MILLI))
    else:
        known = joined.facts.gpus[: -(-wanted.gpu // MILLI)]
    gpus = tuple(GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory) for gpu in known)
    facts = NodeFacts(
        name="",
        hostname="",
        boot_id="",
        incarnation=0,
        cores=cores,
        memory=wanted.memory,
        lendable=wanted,
        gpus=known,
        labels={**pool.labels, POOL_LABEL: pool.name},
        trusts=Trust.EVERYONE.value,
    )
    if joined is not None:
        own = joined.facts
        facts = replace(facts, walls=own.walls, walls_why=own.walls_why, owners=own.owners, trusts=own.trusts)
    shares = {cores[-1]: wanted.cpu % MILLI} if wanted.cpu % MILLI else {}
    whole = cores[:-1] if shares else cores
    offer = Offer(number=1, expires_in=0.0, cores=whole, shares=shares, memory=wanted.memory, gpus=gpus)
    return Node(facts, state=NodeState.UP, synced=True, offer=offer, capacity=Capacity.of(facts, offer))


def never(node: Node, request: Request) -> str:
    """Why such a machine could never run this; empty: it could."""
    missed = unmet(node.facts, node.facts.labels, request)
    if missed is not None:
        return missed.why
    if request.ray:
        return "is no node of the Ray cluster, which is to reserve it"
    if not could_ever(node.facts, request.resources):
        return f"lends {node.facts.lendable} at the most"
    return ""


def able(node: Node, request: Request) -> bool:
    """Whether such a machine could run this, with nothing else on it."""
    wanted, most = request.resources, node.facts.lendable
    if wanted.cpu > most.cpu or wanted.memory > most.memory or wanted.gpu > most.gpu or request.ray:
        return False
    assert node.capacity is not None
    return meets(node, node.facts.labels, request) and node.capacity.fits(wanted, request.constraints)


def pool_for(state: GridState, request: Request) -> str:
    """Return the first pool of which a machine could run this; empty: there is none, or none is created. For a gang,
    all such pools together, and the nodes that are no machines, have to suffice."""
    pools = {pool.name: pool for pool, _ in _machines(state, request)}
    if request.gang and pools:
        most = min(sum(pool.max for pool in pools.values()), state.policy.scaling.limits.max_workers)
        nodes = (node for name, node in state.nodes.items() if name not in state.scaling.machines)
        if request.gang > most and request.gang > most + sum(matching.able(node, request) for node in nodes):
            return ""
    return next(iter(pools), "")


def most_memory(state: GridState, request: Request) -> int:
    """The most memory that a machine lends which could run this (bytes); 0: none could, or none is created."""
    return max((node.facts.lendable.memory for _, node in _machines(state, request)), default=0)


def _machines(state: GridState, request: Request) -> Iterator[tuple[Pool, Node]]:
    """The kinds of machines that could run this, as the nodes that they will be, with their pools."""
    scaling = state.policy.scaling
    if scaling.mode is ScalingMode.OFF:
        return
    as_joined = state.scaling.as_joined_now()
    for pool in scaling.pools:
        for shape in pool.shapes if pool.max and scaling.limits.max_workers else ():
            if able(node := node_of(pool, shape, as_joined.get((pool.name, shape.type))), request):
                yield pool, node


class Bin:
    """Equally filled machines: `many` of them, which are there for another `left` seconds. `keys`: what they are to the
    plan (names of machines, or places in the list of creations), one for each. `node`: what they are."""

    __slots__ = ("apart", "keys", "left", "node", "capacity", "whole", "room", "cores", "memory")

    def __init__(self, node: Node, capacity: Capacity, keys: list[str], left: float, whole: bool = False) -> None:
        self.node, self.capacity, self.keys, self.left, self.whole = node, capacity, keys, left, whole
        self.apart: set[Request] = set()
        """Requests of which each job is to be apart from the others, and has one there."""
        self._measure()

    def _measure(self) -> None:
        """Note the room of now (milli-cores, bytes, milli-GPUs), and bounds that are cheap to compare with: what asks
        for more milli-cores (`cores`) or bytes than that does not fit."""
        capacity = self.capacity
        self.room = (capacity.cpu_left, max(0, capacity.free_memory), capacity.gpu_left)
        self.cores, self.memory = (capacity.whole + 1) * MILLI, capacity.memory

    @property
    def many(self) -> int:
        return len(self.keys)

    def fits(self, ask: Ask) -> bool:
        """Whether one of these jobs could start there."""
        request, capacity = ask.request, self.capacity
        wanted = request.resources
        if not capacity.fits(wanted, request.constraints) or request in self.apart:
            return False
        return (not ask.lasts or ask.lasts <= self.left) and meets(self.node, labels(self.node), request)

    def is_like(self, other: "Bin") -> bool:
        """Whether the other one is equally filled, and of the same kind."""
        same = self.node is other.node and self.left == other.left and self.whole == other.whole
        return same and self.capacity == other.capacity and self.apart == other.apart

    def copy(self) -> "Bin":
        """A copy, to go back to."""
        other = Bin(self.node, self.capacity.copy(), [*self.keys], self.left, self.whole)
        other.apart = set(self.apart)
        return other

    def part(self, count: int) -> "Bin":
        """The first of these machines, as a bin of their own, which this one does not have any more."""
        other = Bin(self.node, self.capacity.copy(), self.keys[:count], self.left, self.whole)
        other.apart = set(self.apart)
        del self.keys[:count]
        return other

    def fill(self, ask: Ask, most: int) -> int:
        """Put up to `most` of these jobs on each of the machines; how many each got."""
        request, done = ask.request, 0
        if ask.alone or ask.gang:
            most = min(most, 1)
        while done < most and self.capacity.fits(request.resources, request.constraints):
            self.capacity.take(self.capacity.choose(request.resources, request.constraints))
            done += 1
        self.whole = self.whole and not done
        self._measure()
        if done and (ask.alone or ask.gang):
            self.apart.add(request)
        return done


_ROOM = attrgetter("room")


class Stock:
    """All planned machines that may have room, in the order in which they are filled."""

    def __init__(self, bins: Iterable[Bin], least: Resources) -> None:
        self._least = least
        self.bins = [one for one in bins if least.fits(one.capacity.left)]

    def add(self, bin: Bin) -> None:
        """Add a machine, which is filled after the others."""
        self._append(self.bins, bin)
        self._forget_fullest()

    def repeat(self, last: str, keys: list[str], left: float) -> None:
        """More (`keys`), as full as the one added last, and there for another `left` seconds. Where that one is here no
        more, none has room for anything."""
        if not self.bins or (full := self.bins[-1]).keys[-1] != last:
            return
        if full.left == left:
            full.keys += keys
        else:
            other = full.copy()
            other.keys, other.left = keys, left
            self.bins.append(other)
            self._forget_fullest()

    def _forget_fullest(self) -> None:
        used = [one for one in self.bins if not one.whole]
        if len(used) > BINS_MOST:
            self.bins.remove(min(used, key=_ROOM))

    def _append(self, bins: list[Bin], bin: Bin) -> None:
        """Put a bin at the end, unless it has no room for anything; with the one before it, where they are alike."""
        if bin.keys and self._may_serve(bin):
            if bins and bins[-1].is_like(bin):
                bins[-1].keys += bin.keys
            else:
                bins.append(bin)

    def _may_serve(self, bin: Bin) -> bool:
        """Whether what is free is enough for the least that anything asks for."""
        least, (cpu, memory, gpu) = self._least, bin.room
        return least.cpu <= cpu and least.memory <= memory and (not least.gpu or least.gpu <= gpu)

    def serve(self, ask: Ask, count: int) -> dict[str, int]:
        """Put these jobs where there is room, on each machine as many as it has room for before the next one; how many
        on which, by key. The order of the machines stays as it is: so what was put on machines before they were created
        is put on the same ones while they come up."""
        served: dict[str, int] = {}
        cpu, memory, bins = ask.request.resources.cpu, ask.request.resources.memory, self.bins
        begin = 0
        for one in bins:  # the first two alone are false of most: the rest takes longer
            if cpu <= one.cores and memory <= one.memory and one.fits(ask):
                break
            begin += 1
        if begin == len(bins) or not count:
            return served
        left, changed = bins[:begin], False
        for number in range(begin, len(bins)):
            if not count:
                left += bins[number:]
                break
            one = bins[number]
            if cpu <= one.cores and memory <= one.memory and one.fits(ask):
                count = self._fill(one, ask, count, served, left)
                self._append(left, one)
                changed = True
            elif changed:  # it may be like the one before it now
                self._append(left, one)
                changed = False
            else:
                left.append(one)
        self.bins = left
        return served

    def _fill(self, one: Bin, ask: Ask, count: int, served: dict[str, int], left: list[Bin]) -> int:
        """Fill machines of a bin, the first ones first, which become bins of their own; how many jobs are left."""
        first = one.part(1)
        each = first.fill(ask, count)
        served[first.keys[0]] = each
        count -= each
        more = min(one.many, count // each)
        served |= dict.fromkeys(one.keys[:more], each)
        first.keys += one.keys[:more]
        del one.keys[:more]
        count -= more * each
        self._append(left, first)
        if count and one.many:
            last = one.part(1)
            served[last.keys[0]] = last.fill(ask, count)
            count -= served[last.keys[0]]
            self._append(left, last)
        return count


def spread(served: Mapping[str, int], jobs: tuple[str, ...], most: int) -> dict[str, tuple[str, ...]]:
    """Which of the named jobs are on which machine, in order, up to `most` each."""
    found: dict[str, tuple[str, ...]] = {}
    at = 0
    for key, count in served.items():
        found[key] = jobs[at : at + min(count, most)]
        at += count
    return found


# --- what a plan is made from ---------------------------------------------------------------------------------------


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's node as it is now: whether it has joined, its allocations and earmarks, since when it has none (0: it
    has some), when the last of them ends at the latest, and whether one of them may not be moved or a waiting job
    reserves the node."""

    joined: bool = True
    allocations: int = 0
    idle_since: float = 0.0
    ends: float = 0.0
    fixed: bool = False
    reserved: bool = False
    usable: bool = False
    coming: bool = True
    """It is usable, or may be so in a moment: it is not without an offer for long."""
    lost: bool = False
    """It is silent for so long that its jobs were given up."""
    cause: DrainCause | None = None
    """Why it is drained, if the grid has drained it."""


class View(msgspec.Struct, kw_only=True):
    """The data of a plan beside demand and machines. `soon`: existing nodes with the resources that are free before a
    machine could be up. `seen`: machines' nodes, by machine. `boots`: how long machines take to boot (median and 90th
    percentile), by pool and type; `as_joined`: the actual resources of the one that joined last. `backoffs`: what
    providers have refused, and until when; `paused`: pools and why. `unrecorded`: machines that are the grid's and that
    no record knows, by pool. `utilisation` over the last window (None: not known for that long), `capacity` what that
    is a part of, and when machines were added or removed because of it."""

    soon: list[Bin] = []
    seen: Mapping[str, Seen] = {}
    boots: Mapping[tuple[str, str], tuple[float, float]] = {}
    as_joined: Mapping[tuple[str, str], AsJoined] = {}
    backoffs: Mapping[Key, tuple[float, str]] = {}
    paused: Mapping[str, str] = {}
    unrecorded: Mapping[str, int] = {}
    utilisation: float | None = None
    capacity: Resources = Resources()
    raised: float = 0.0
    lowered: float = 0.0


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait and could start on one more machine, in the order of service; and those that could not."""

    asks: tuple[Ask, ...] = ()
    left_out: tuple[NotDone, ...] = ()
