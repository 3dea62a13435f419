"""Who gives way to an urgent request, or to a gang: a complete plan with the cheapest victims, or none, and why."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from heapq import heapify, heappop, heappush
from typing import Protocol

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.protocol.groups import split_member
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Alternative, Place, Victim
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Grant, Resources

GAP = 2
"""So many classes below an urgent request others must be to give way to it. It is never less than one, so who took
somebody's place can never be made to give it back to them."""
STEPS = 1024
"""So many choices are tried on one node beyond the first: all there are where up to 8 may give way. Among more, the
cheapest found by then."""
STEPS_IN_ALL = 4096
"""And so many on all nodes."""
NAMED = 5
"""So many other nodes are named as alternatives."""


class View(msgspec.Struct, frozen=True):
    """A node that meets the request's constraints, as a plan sees it: what is free there now or will be by what ends
    already, and who holds something that may give way (`able`). `young` is when the first of those who have not been
    there for long enough yet may give way too (0: there are none of them)."""

    node: str
    room: Room
    able: tuple[Victim, ...]
    ending: int = 0
    young: float = 0.0

    def makes_room(self, request: Request) -> bool:
        """Whether there is room for this when all of them have given way."""
        trial = self.room.copy()
        for victim in self.able:
            trial.give(victim.grant)
        return trial.fits(request.resources, request.constraints)


class Plan(msgspec.Struct, frozen=True):
    """These victims give way on this node; `grant` is what is kept for who asked. `lost` in core-seconds. `more`: the
    places of the other members of a gang."""

    node: str
    victims: tuple[Victim, ...]
    grant: Grant
    lost: float
    alternatives: tuple[Alternative, ...] = ()
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All that is kept."""
        return (Place(self.node, self.grant), *self.more)


class NoPlan(msgspec.Struct, frozen=True):
    """Nobody gives way, and why. `code` is one of ending, no-victims, min-hold, badput-budget; `again` is when somebody
    may after all (0: that is not known)."""

    code: str
    text: str
    again: float = 0.0


def may(taker: Priority, holder: Priority) -> bool:
    """Whether one class may take the place of another at all: an urgent one, from two steps below on."""
    return taker is Priority.URGENT and taker - holder >= GAP


def hold_for(policy: Preempting, evicted: int) -> float:
    """Seconds from its grant on for which a job keeps its place that was evicted so often: doubled with each."""
    return min(policy.min_hold_most, policy.min_hold * 2.0 ** min(evicted, 60))


def work(grant: Grant, lendable: Resources) -> float:
    """What a second of a grant is worth, in cores of its node: the largest share it has of anything that the node
    lends, times the cores it lends. So one of two GPUs of a node with 16 cores counts as 8 cores."""
    has = grant.resources
    pairs = ((has.cpu, lendable.cpu), (has.memory, lendable.memory), (has.gpu, lendable.gpu))
    share = max((part / whole for part, whole in pairs if whole), default=0.0)
    return min(1.0, share) * max(lendable.cpu, 1000) / 1000


Cost = tuple[float, int, float, int]
"""What victims lose and how many they are, of the higher class first: a low one is always preferred to a medium one."""
NOTHING: Cost = (0.0, 0, 0.0, 0)


def more(before: Cost, victim: Victim) -> Cost:
    """The cost with one victim more."""
    lost, count, lost_low, count_low = before
    if victim.priority > Priority.LOW:
        return lost + victim.lost, count + 1, lost_low, count_low
    return lost, count, lost_low + victim.lost, count_low + 1


def cost(victims: Iterable[Victim]) -> Cost:
    """What sets of victims are compared by."""
    return reduce(more, victims, NOTHING)


def cheapest(
    room: Room, wanted: Resources, able: Sequence[Victim], steps: int = STEPS, need: Constraints | None = None
) -> list[Victim] | None:
    """Those who lose least of all sets that make room here; None: all together do not."""
    return search(OneNode(room.copy(), wanted, need), able, steps)


class Trial(Protocol):
    """Something to try out on who has to give way."""

    def give(self, victim: Victim) -> None:
        """This one gives way."""

    def take(self, victim: Victim) -> None:
        """It does not after all."""

    def fits(self) -> bool:
        """Whether there is room now."""


class OneNode:
    """The room of one node."""

    __slots__ = ("_need", "_room", "_wanted")

    def __init__(self, room: Room, wanted: Resources, need: Constraints | None) -> None:
        self._room, self._wanted, self._need = room, wanted, need

    def give(self, victim: Victim) -> None:
        """This one gives way."""
        self._room.give(victim.grant)

    def take(self, victim: Victim) -> None:
        """It does not after all."""
        self._room.take(victim.grant)

    def fits(self) -> bool:
        """Whether there is room now."""
        return self._room.fits(self._wanted, self._need)


def search(trial: Trial, able: Sequence[Victim], steps: int) -> list[Victim] | None:
    """Those who lose least of all sets that make room; None: all together do not.

    All give way at first. Then they are gone through, the dearest first, and each is spared where there is room without
    it: that is the reverse pass. From there other choices are tried, so many, where they may still be cheaper."""
    for victim in able:
        trial.give(victim)
    if not trial.fits():
        return None
    order = sorted(able, key=lambda one: (one.priority, one.lost, one.allocation), reverse=True)
    steps += 2 * len(order) + 1  # the reverse pass is always gone through
    best: list[Victim] = []
    least: Cost | None = None
    chosen: list[Victim] = []
    costs = [NOTHING]
    todo = [(0, False)]  # whom to decide about next; True: that one was spared, and is to give way now
    while todo and steps:
        steps -= 1
        at, spared = todo.pop()
        if spared and at < 0:  # both were tried
            chosen.pop()
            costs.pop()
        elif spared:
            victim = order[at]
            trial.give(victim)
            chosen.append(victim)
            costs.append(more(costs[-1], victim))
            todo.append((-1, True))
            if least is None or costs[-1] < least:
                todo.append((at + 1, False))
        elif at < len(order):
            trial.take(order[at])
            todo.append((at, True))
            if trial.fits():
                todo.append((at + 1, False))
        elif least is None or costs[-1] < least:
            best, least = [*chosen], costs[-1]
    assert least is not None, "all together make room, and no set of them does"
    return best[::-1]


def plan(views: Sequence[View], request: Request, policy: Preempting, spent: float) -> Plan | NoPlan:
    """The cheapest plan that there is on one of these nodes. `spent`: core-seconds that were lost within the hour."""
    found: list[tuple[Cost, bool, str, View, list[Victim]]] = []
    beyond: list[Alternative] = []
    steps = STEPS_IN_ALL
    for view in views:
        if view.room.fits(request.resources, request.constraints):
            return NoPlan("ending", f"no preemption: {_ending(view)}")
    for view in views:
        victims = cheapest(view.room, request.resources, view.able, min(STEPS, steps), request.constraints)
        if victims is None:
            continue
        steps = max(0, steps - 2 ** min(len(view.able), 20))
        lost = cost(victims)
        if policy.badput_budget <= 0 or spent + lost[0] + lost[2] > policy.badput_budget:
            beyond.append(Alternative(view.node, len(victims), lost[0] + lost[2], "beyond the badput budget"))
        else:
            found.append((lost, view.node not in request.nodes, view.node, view, victims))
    if not found:
        return _none(views, policy, spent, beyond)
    found.sort(key=lambda one: one[:3])
    lost, _, node, view, victims = found[0]
    trial = view.room.copy()
    for victim in victims:
        trial.give(victim.grant)
    others = [Alternative(name, len(them), loss[0] + loss[2]) for loss, _, name, _, them in found[1 : NAMED + 1]]
    others += beyond[: NAMED - len(others)]
    return Plan(
        node, tuple(victims), trial.choose(request.resources, request.constraints), lost[0] + lost[2], tuple(others)
    )


def _none(views: Sequence[View], policy: Preempting, spent: float, beyond: list[Alternative]) -> NoPlan:
    if beyond:
        least = min(beyond, key=lambda one: one.lost)
        return too_dear(policy, spent, least.lost, least.node)
    return too_young(views) or NoPlan(
        "no-victims", "no preemption: nobody two classes below holds enough on any one node"
    )


def too_dear(policy: Preempting, spent: float, lost: float, on: str) -> NoPlan:
    """More would be lost than may be."""
    if policy.badput_budget <= 0:
        return NoPlan("badput-budget", "no preemption: the badput budget is 0, so nobody is evicted")
    left = max(0.0, policy.badput_budget - spent)
    text = f"{lost:.0f} core-seconds would be lost on {on}, the badput budget has {left:.0f} left"
    return NoPlan("badput-budget", f"no preemption: {text} for this hour")


def too_young(views: Sequence[View]) -> NoPlan | None:
    """Some may not give way yet, and might be enough with the others."""
    young = [view.young for view in views if view.young]
    if not young:
        return None
    until = min(young)
    return NoPlan("min-hold", f"no preemption: min-hold protects who began lately, until {clock(until)}", until)


def _ending(view: View) -> str:
    return f"{ending_words(view.ending)} on {view.node} already" if view.ending else f"{view.node} has room"


def ending_words(count: int) -> str:
    """How many end: `1 job ends`."""
    return "1 job ends" if count == 1 else f"{count} jobs end"


def clock(at: float) -> str:
    """A grid time for people: `14:05:10 UTC`."""
    second = int(at) % 86_400
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"


EXACT = 8
"""Where so few may give way in all, every set of them is compared."""


def gang_plan(views: Sequence[View], request: Request, policy: Preempting, spent: float) -> Plan | NoPlan:
    """The cheapest plan with a place for each member on a node of its own. `spent`: core-seconds that were lost within
    the hour."""
    there = [view for view in views if view.room.fits(request.resources, request.constraints)]
    if len(there) >= request.gang:
        return _gang_ending(there, request)
    nodes = _Nodes(views, request)
    found = nodes.one_by_one(policy.badput_budget - spent) or nodes.one_by_one()
    if found is None:
        count = sum(view.makes_room(request) for view in views)
        text = f"with all who may give way there is room on {count} of the {request.gang} nodes that it needs at once"
        return too_young(views) or NoPlan("no-victims", f"no preemption: {text}")
    victims, others = found
    if any(victim.gang for victim in nodes.units()):
        victims = nodes.at_once(victims)
    lost = sum(victim.lost for victim in victims)
    if policy.badput_budget <= 0 or spent + lost > policy.badput_budget:
        return too_dear(policy, spent, lost, ", ".join(sorted({victim.node for victim in victims})))
    first, *more = nodes.places(victims)
    taken = {first.node, *(place.node for place in more)}
    alternatives = tuple(one for one in others if one.node not in taken)[:NAMED]
    return Plan(first.node, tuple(victims), first.grant, lost, alternatives, tuple(more))


def _gang_ending(there: Sequence[View], request: Request) -> NoPlan:
    ending = sum(view.ending for view in there)
    if not ending:
        return NoPlan("ending", f"no preemption: {len(there)} nodes have room")
    on = ", ".join(view.node for view in there if view.ending)
    return NoPlan("ending", f"no preemption: {ending_words(ending)} on {on} already")


def unit(victim: Victim) -> str:
    """What gives way as a whole: a job, or a gang."""
    member = split_member(victim.job) if victim.gang else None
    return member[0] if member is not None else victim.job


class _Nodes:
    """The nodes that are compared, and who may give way on them. It is also what `search` tries victims out on: each
    stands for all that its gang holds on them."""

    def __init__(self, views: Sequence[View], request: Request) -> None:
        self._request = request
        self._views = {view.node: view for view in views}
        self._held: dict[str, list[tuple[str, Victim]]] = {}
        for view in views:
            for victim in view.able:
                self._held.setdefault(unit(victim), []).append((view.node, victim))
        self._rooms: dict[str, Room] = {}
        self._roomy: set[str] = set()

    def units(self) -> list[Victim]:
        """One victim of each unit."""
        return [replace(held[0][1], node=held[0][0]) for held in self._held.values()]

    def one_by_one(self, most: float = math.inf) -> tuple[list[Victim], list[Alternative]] | None:
        """The nodes where least is lost (and on each of them no more than `most`), one after the other: who gives way
        then, and what it would be on the others. What a gang that is chosen holds elsewhere is free from then on. None:
        there are not so many nodes."""
        steps = STEPS_IN_ALL
        found: dict[str, tuple[Cost, list[Victim]]] = {}
        for view in self._views.values():
            them = self._on(view, (), steps)
            if them is not None:
                steps = max(0, steps - 2 ** min(len(view.able), 20))
                lost = cost(them)
                if not them or lost[0] + lost[2] <= most:
                    found[view.node] = lost, them
        order = [(lost, node not in self._request.nodes, node) for node, (lost, _) in found.items()]
        heapify(order)
        chosen: dict[str, Victim] = {}
        left = self._request.gang
        while left and order:
            lost, preferred, node = heappop(order)
            if node not in found or found[node][0] != lost:
                continue  # what it costs has changed since
            left -= 1
            for victim in found.pop(node)[1]:
                chosen[unit(victim)] = replace(victim, node=node)
                for other in {name for name, _ in self._held[unit(victim)]} & found.keys() if victim.gang else ():
                    them = self._on(self._views[other], chosen, STEPS)
                    assert them is not None, f"{other} has less room with more who give way"
                    found[other] = cost(them), them
                    heappush(order, (found[other][0], other not in self._request.nodes, other))
        if left:
            return None
        rest = sorted((lost, node, len(them)) for node, (lost, them) in found.items())
        return list(chosen.values()), [Alternative(node, count, lost[0] + lost[2]) for lost, node, count in rest]

    def _on(self, view: View, chosen: dict[str, Victim] | tuple[()], steps: int) -> list[Victim] | None:
        """Who gives way on one node beside those who do already."""
        room, able = view.room, list(view.able)
        if chosen and any(unit(victim) in chosen for victim in able):
            room = room.copy()
            for victim in able:
                if unit(victim) in chosen:
                    room.give(victim.grant)
            able = [victim for victim in able if unit(victim) not in chosen]
        return cheapest(room, self._request.resources, able, min(STEPS, steps), self._request.constraints)

    # --- all at once --------------------------------------------------------------------------------------------------

    def at_once(self, chosen: list[Victim]) -> list[Victim]:
        """The cheapest set: of all who may give way if they are few, else of those that were chosen one by one."""
        self._open()
        able = self.units() if len(self._held) <= EXACT else chosen
        found = search(self, able, STEPS)
        assert found is not None, "those who were chosen node by node do not make room together"
        return found

    def _open(self) -> None:
        self._rooms = {node: view.room.copy() for node, view in self._views.items()}
        self._roomy = {node for node in self._rooms if self._has_room(node)}

    def _has_room(self, node: str) -> bool:
        return self._rooms[node].fits(self._request.resources, self._request.constraints)

    def give(self, victim: Victim) -> None:
        """This one gives way, with its gang."""
        for node, held in self._held[unit(victim)]:
            self._rooms[node].give(held.grant)
            if self._has_room(node):
                self._roomy.add(node)

    def take(self, victim: Victim) -> None:
        """It does not after all."""
        for node, held in self._held[unit(victim)]:
            self._rooms[node].take(held.grant)
            if node in self._roomy and not self._has_room(node):
                self._roomy.discard(node)

    def fits(self) -> bool:
        """Whether there is room for all members."""
        return len(self._roomy) >= self._request.gang

    def places(self, victims: Sequence[Victim]) -> list[Place]:
        """A place for each member when these have given way; preferred nodes come before others, and then by name."""
        self._open()
        for victim in victims:
            self.give(victim)
        names = sorted(self._roomy, key=lambda name: (name not in self._request.nodes, name))
        wanted, asked = self._request.resources, self._request.constraints
        return [Place(name, self._rooms[name].choose(wanted, asked)) for name in names[: self._request.gang]]
