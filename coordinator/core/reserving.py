"""Nobody starves: the first of a user that cannot start yet has a node kept for it, and who comes behind may only start
there what does not keep it waiting (docs/shares.md).

The node is the one where the first could start the earliest, by the time limits of what runs there. The rest of the
grid stays free for all, and the first itself takes any place that it finds. Once a node is kept it stays so until the
first has started or is gone, or the node is of no use to it any more.
"""

import math
from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core.constraints import Trait
from distributed_grid.coordinator.core.gang_places import places
from distributed_grid.coordinator.core.matching import Placement, Refusal, able, has_room, place, usable
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.preemption import clock
from distributed_grid.coordinator.core.queue import Line
from distributed_grid.coordinator.core.room import Room
from distributed_grid.coordinator.core.suspending import put_off
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import MILLI, Resources

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

LOOKED = 64
"""So many nodes are looked at for one to keep: where there are more, those with the most of it free."""
LOOK_SECONDS = 0.001
"""So long nothing is looked for again for each node that was looked at: looking is work."""
FEW = 16
"""As few can be looked at any time."""
STARTING = 2.0
"""Seconds from a grant until what was granted runs and its time limit counts."""
MOST = 4
"""So many nodes are kept at the most, for the first in the order of service."""
SEEN_EVERY = 1.0
"""So often a node that is kept is looked at where nothing has become free there."""
STUCK = 300.0
"""A node where nothing has become free for so long, and nobody knows when something will, is not kept any longer where
another would do."""
_PARTS = ((3, 4), (1, 2), (1, 4), (0, 1))


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A node kept for a waiting job. `at`: when it can start there at the latest; infinite: nobody knows. `after` are
    the allocations that have to end for it. `progress`: when something there last became free; `seen`: when it was
    last looked at."""

    job: str
    node: str
    at: float
    after: tuple[str, ...]
    progress: float
    seen: float


class Kept(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is kept, by the job that it is kept for: one of each user in a class at the most, or one for each member of
    its gang, of which the first is the `job` of all. `look_again`: nothing more is looked for before; `left`: the node
    that was given up last."""

    by_job: dict[str, Reservation] = {}
    look_again: float = 0.0
    left: str = ""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Who wants to start: the request, how long it takes at the most (seconds; 0: nobody knows), and where it stands in
    the order of service: its class, negated, the rank of its user there, and its turn."""

    request: Request
    lasts: float
    order: tuple[int, float, int]


def asked(ledger: "Ledger", job: str) -> Ask:
    """A job that waits."""
    line = ledger.queue.line(job)
    return Ask(line.request, line.lasts, _order(ledger, job))


Places = tuple[Placement, ...] | Refusal
"""One place, or of a gang one for each member; or none."""


def places_of(ledger: "Ledger", job: Job) -> Places:
    """Where a job that waits goes now: see `places_for`."""
    if not ledger.kept.by_job:
        return _places(ledger, job.request)
    return places_for(ledger, ledger.kept, asked(ledger, job.id), ledger.now)


def places_for(ledger: "Ledger", kept: Kept, ask: Ask, now: float) -> Places:
    """Where this goes now, and nowhere where it would keep those waiting who come before it."""
    hidden: list[Reservation] = []
    while True:
        found = _places(ledger, ask.request)
        if not kept.by_job or isinstance(found, Refusal):
            break
        ways = [one for place in found if (one := in_the_way(ledger, kept, ask, place, now)) is not None]
        if not ways:
            break
        for one in ways:
            ledger.index.drop(one.node)
        hidden += ways
    for one in hidden:
        node = ledger.nodes[one.node]
        assert node.room is not None
        ledger.index.put(one.node, node.facts.priority, node.room)
    if hidden and isinstance(found, Refusal):
        return Refusal(found.offering, hidden[0].job)
    return found


def _places(ledger: "Ledger", request: Request) -> Places:
    if request.gang:
        return places(ledger.nodes, ledger.index, request, ledger.policy)
    one = place(ledger.nodes, ledger.index, request, ledger.policy)
    return one if isinstance(one, Refusal) else (one,)


def in_the_way(ledger: "Ledger", kept: Kept, ask: Ask, placement: Placement, now: float) -> Reservation | None:
    """Who would be kept waiting by this placement."""
    for one in kept.by_job.values():
        if one.node != placement.node or ask.order <= _order(ledger, one.job):
            continue
        if ask.lasts and now + STARTING + ask.lasts <= _begins(kept, one):
            continue  # it is over by then
        room = _room_then(ledger, one)
        room.take(placement.grant)
        first = ledger.jobs[one.job].request
        if not room.fits(first.resources, first.constraints):
            return one
    return None


def _begins(kept: Kept, one: Reservation) -> float:
    """When the first can start: a gang when the last of its nodes has room."""
    return max(other.at for other in kept.by_job.values() if other.job == one.job)


def _order(ledger: "Ledger", job: str) -> tuple[int, float, int]:
    standing = ledger.queue.line(job).standing
    return -standing.priority, standing.rank, ledger.queue.turns[job]


def _room_then(ledger: "Ledger", one: Reservation) -> Room:
    """What is free on the node when those have ended whom the first waits for."""
    node = ledger.nodes[one.node]
    assert node.room is not None
    room = node.room.copy()
    for name in one.after:
        if (allocation := node.allocations.get(name)) is not None:
            room.give(allocation.grant)
    return room


# --- what is kept -----------------------------------------------------------------------------------------------------


def review(ledger: "Ledger", least: Resources, now: float) -> tuple[Kept, list[str]]:
    """What is still of use of that which is kept, and from when on; and the nodes on which others may start again."""
    if not ledger.kept.by_job:
        return ledger.kept, []
    by_job, free, left = dict[str, Reservation](), list[str](), ledger.kept.left
    for job, old in ledger.kept.by_job.items():
        request = ledger.jobs[job].request
        if request.resources.fits(least) and not request.gang:
            continue  # nobody wants less
        if old.node not in ledger.grown and old.node in ledger.index and now < old.seen + SEEN_EVERY:
            by_job[job] = old
            continue
        node = ledger.nodes[old.node]
        plan = _plan(ledger, node, request, now) if usable(node) else None
        if plan is not None:
            progress = now if len(plan[1]) < len(old.after) else old.progress
            stuck = plan[0] == math.inf and now >= progress + STUCK and _another(ledger, old, now)
            if not stuck:
                by_job[job] = Reservation(old.job, old.node, *plan, progress, now)
                if plan[0] > old.at:
                    free.append(old.node)  # there is time for what had none before
                continue
            left = old.node
        free.append(old.node)
    for one in [one for one in by_job.values() if ledger.jobs[one.job].request.gang]:
        mine = [member for member, other in by_job.items() if other.job == one.job]
        if len(mine) < ledger.jobs[one.job].request.gang:  # a gang needs all of its nodes, or others
            free += [by_job.pop(member).node for member in mine]
    return Kept(by_job=by_job, look_again=ledger.kept.look_again, left=left), free


def _another(ledger: "Ledger", old: Reservation, now: float) -> bool:
    """Whether another node would do."""
    request = ledger.jobs[old.job].request
    others = (ledger.nodes[name] for name in _nearest(ledger, request) if name != old.node)
    return any(_plan(ledger, node, request, now) for node in others)


def release(ledger: "Ledger", job: str) -> None:
    """This job needs no node kept any more: others may have what was."""
    if job in ledger.kept.by_job:
        gone = [one for one in ledger.kept.by_job.values() if one.job == job]
        rest = {name: one for name, one in ledger.kept.by_job.items() if one.job != job}
        ledger.kept = msgspec.structs.replace(ledger.kept, by_job=rest)
        ledger.grown |= {one.node: None for one in gone if usable(ledger.nodes[one.node])}


def keep_first(ledger: "Ledger", kept: Kept, least: Resources, now: float) -> Kept:
    """Keep a node for the first of each class, if it waits since before."""
    for priority, order in ledger.queue.order.items():
        first = ledger.queue.first(priority) if order else None
        line = None if first is None else ledger.queue.first_line(first)
        if line is not None and line.blocked:
            kept = keep_for(ledger, kept, line, least, now)
    return kept


def keep_for(ledger: "Ledger", kept: Kept, line: Line, least: Resources, now: float) -> Kept:
    """The first of this line cannot start, and it is the first of its user in its class: keep a node for it. Not where
    that has one already, where so many are kept for others who come first, or where nobody wants less than it does
    (`least` is the least that is wanted of each kind), so that nobody could take what it waits for. For a gang one is
    kept for each member: who wants as much, and less of it, could pass it."""
    request, standing = line.request, line.standing
    if now < kept.look_again or (request.resources.fits(least) and not request.gang):
        return kept
    jobs = {one.job for one in kept.by_job.values()}
    if any(ledger.queue.line(job).standing is standing for job in jobs):
        return kept
    others = dict(kept.by_job)
    if len(jobs) >= MOST:
        last = max(jobs, key=lambda job: _order(ledger, job))
        if ledger.queue.line(last).standing.priority >= standing.priority:
            return kept
        others = {name: one for name, one in others.items() if one.job != last}
    names = _nearest(ledger, request)
    plans: list[tuple[bool, float, int, str, tuple[str, ...]]] = []
    for name in names:
        plan = _plan(ledger, ledger.nodes[name], request, now)
        if plan is not None:
            shunned = name == kept.left or any(one.node == name for one in others.values())
            plans.append((shunned, plan[0], len(plan[1]), name, plan[1]))
    many = max(1, request.gang)
    if found := len(plans) >= many:
        job = ledger.queue.head(line)[1]
        for rank, (_, at, _, node, after) in enumerate(sorted(plans)[:many]):
            member = f"{ledger.jobs[job].group}_{rank}" if request.gang else job
            others[member] = Reservation(job, node, at, after, now, now)
    again = now + len(names) * LOOK_SECONDS if len(names) > FEW else kept.look_again
    return Kept(by_job=others if found else kept.by_job, look_again=again, left=kept.left)


def _nearest(ledger: "Ledger", request: Request) -> list[str]:
    """The nodes to look at: all of a small grid, else those where the largest part of it is free."""
    if len(ledger.index) <= LOOKED:
        return [name for name, node in ledger.nodes.items() if name in ledger.index and able(node, request)]
    wanted, found = request.resources, dict[str, None]()
    user = ledger.index.whose(request.user)
    whose = Trait(user=user) if user is not None else None
    for part, of in _PARTS:
        gpu = wanted.gpu * part // of
        less = Resources(
            wanted.cpu * part // of, wanted.memory * part // of, gpu // MILLI * MILLI if gpu > MILLI else gpu
        )
        for name in ledger.index.search(less, LOOKED, whose):
            if able(ledger.nodes[name], request):
                found[name] = None
            if len(found) >= LOOKED:
                return list(found)
    return list(found)


def _plan(ledger: "Ledger", node: Node, request: Request, now: float) -> tuple[float, tuple[str, ...]] | None:
    """When there is room for this on the node at the latest, and after which ends; None: never, by what is known."""
    if node.room is None or not able(node, request):
        return None
    room, at, after = node.room.copy(), now, list[str]()
    if has_room(node, request, ledger.index, room):
        return at, ()
    held = sorted((ends(ledger, one, now), one.granted, one.id) for one in node.allocations.values())
    for end, _, name in held:
        room.give(node.allocations[name].grant)
        after.append(name)
        at = max(at, end)
        if has_room(node, request, ledger.index, room):
            return at, tuple(after)
    return None


def ends(ledger: "Ledger", allocation: Allocation, now: float) -> float:
    """When this allocation ends at the latest, unless it is frozen (again) for its node's owner: that puts it off;
    infinite: nobody knows."""
    job = ledger.jobs[allocation.job]
    if allocation.state is State.LOST:
        return math.inf
    if allocation.stop is not None:
        asked = next((step.at for step in reversed(job.story) if step.state is State.STOPPING), now)
        return asked + allocation.stop.grace
    if not job.spec.time_limit:
        return math.inf
    begins = allocation.started or max(now, allocation.granted + STARTING)
    return begins + put_off(job, now) + job.spec.time_limit + job.spec.grace


# --- what is said of it -----------------------------------------------------------------------------------------------


def kept_for(ledger: "Ledger", job: str) -> Reservation | None:
    """The node that is kept for this job."""
    return ledger.kept.by_job.get(job)


def words(ledger: "Ledger", kept: Reservation) -> str:
    """What is kept for a job, and from when on it can start there."""
    mine = [one for one in ledger.kept.by_job.values() if one.job == kept.job]
    names = [name for one in mine for name in one.after]
    waited_for = [there for name in names if (there := ledger.allocations.get(name)) is not None]
    # What was frozen since the node was looked at last ends later than was thought then.
    at = max(_begins(ledger.kept, kept), *(ends(ledger, one, ledger.now) for one in waited_for), 0.0)
    frozen = [one.id for one in waited_for if ledger.jobs[one.job].suspended is not None]
    limit = f"at the earliest: {frozen[0]} is suspended" if frozen else "at the latest"
    when = f", where it can start at {clock(at)} {limit}" if at < math.inf else ""
    if len(mine) > 1:
        return f"{', '.join(one.node for one in mine)} are kept for it{when}"
    if when:
        return f"{kept.node} is kept for it{when}"
    held = [ledger.allocations[name] for name in kept.after if name in ledger.allocations]
    endless = [one.id for one in held if ends(ledger, one, ledger.now) == math.inf]
    if not endless:
        return f"{kept.node} is kept for it"
    more = f" and {len(endless) - 1} more" if len(endless) > 1 else ""
    has = "have" if more else "has"
    return f"{kept.node} is kept for it; when it can start there nobody knows: {endless[0]}{more} {has} no time limit"
