"""Preemption plans: the cheapest set of victims that makes room for an urgent request or a gang, or why none does."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from heapq import heapify, heappop, heappush
from typing import Protocol

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.protocol.groups import split_member
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Alternative, Place, Victim
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.protocol.text import clock

GAP = 2
"""Minimum number of priority classes between an urgent request and its victims. At least one, so that no victim can
preempt its preemptor."""
STEPS = 1024
"""Maximum number of search steps on one node beyond the first solution: exhaustive for up to 8 candidates."""
STEPS_IN_ALL = 4096
"""Maximum number of search steps on all nodes."""
NAMED = 5
"""Maximum number of alternatives reported."""


class View(msgspec.Struct, frozen=True):
    """A node that meets the request's constraints: what is free there, with what is being stopped already (`ending`
    allocations), and the preemption candidates (`able`). `young`: when the first allocation leaves its min-hold
    (0: none is in it)."""

    node: str
    capacity: Capacity
    able: tuple[Victim, ...]
    ending: int = 0
    young: float = 0.0

    def makes_room(self, request: Request) -> bool:
        """Whether there is room for this without all candidates."""
        trial = self.capacity.copy()
        for victim in self.able:
            trial.give(victim.grant)
        return trial.fits(request.resources, request.constraints)


class Plan(msgspec.Struct, frozen=True):
    """Preempt these victims on this node; `grant` is earmarked for the preemptor. `lost` in core-seconds. `more`: the
    places of the other members of a gang."""

    node: str
    victims: tuple[Victim, ...]
    grant: Grant
    lost: float
    alternatives: tuple[Alternative, ...] = ()
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All earmarked places."""
        return (Place(self.node, self.grant), *self.more)


class NoPlan(msgspec.Struct, frozen=True):
    """Why there is no preemption. `code` is one of ending, no-victims, min-hold, badput-budget; `again`: when to try
    again (0: unknown)."""

    code: str
    text: str
    again: float = 0.0


def may(taker: Priority, holder: Priority) -> bool:
    """Whether one class may preempt another: only an urgent one, and one at least `GAP` classes below."""
    return taker is Priority.URGENT and taker - holder >= GAP


def min_hold_of(policy: Preempting, evicted: int) -> float:
    """The min-hold of a job that was evicted so often (s): doubled with each eviction."""
    return min(policy.min_hold_most, policy.min_hold * 2.0 ** min(evicted, 60))


def work(grant: Grant, lendable: Resources) -> float:
    """A grant as a number of cores: its dominant share of what the node lends, times the cores that the node lends. So
    one of two GPUs of a node with 16 cores counts as 8 cores."""
    has = grant.resources
    pairs = ((has.cpu, lendable.cpu), (has.memory, lendable.memory), (has.gpu, lendable.gpu))
    share = max((part / whole for part, whole in pairs if whole), default=0.0)
    return min(1.0, share) * max(lendable.cpu, 1000) / 1000


Cost = tuple[float, int, float, int]
"""Lost work and number of victims, first of those above low priority: low victims are always preferred."""
NOTHING: Cost = (0.0, 0, 0.0, 0)


def more(before: Cost, victim: Victim) -> Cost:
    """The cost with one more victim."""
    lost, count, lost_low, count_low = before
    if victim.priority > Priority.LOW:
        return lost + victim.lost, count + 1, lost_low, count_low
    return lost, count, lost_low + victim.lost, count_low + 1


def cost(victims: Iterable[Victim]) -> Cost:
    """The cost of a set of victims."""
    return reduce(more, victims, NOTHING)


def cheapest(
    capacity: Capacity, wanted: Resources, able: Sequence[Victim], steps: int = STEPS, need: Constraints | None = None
) -> list[Victim] | None:
    """The cheapest set of victims that makes room here; None: all together do not."""
    return search(OneNode(capacity.copy(), wanted, need), able, steps)


class Trial(Protocol):
    """Capacity on which `search` tries sets of victims."""

    def give(self, victim: Victim) -> None:
        """Release what a victim holds."""

    def take(self, victim: Victim) -> None:
        """Undo `give`."""

    def fits(self) -> bool:
        """Whether there is room now."""


class OneNode:
    """The room of one node."""

    __slots__ = ("_need", "_capacity", "_wanted")

    def __init__(self, capacity: Capacity, wanted: Resources, need: Constraints | None) -> None:
        self._capacity, self._wanted, self._need = capacity, wanted, need

    def give(self, victim: Victim) -> None:
        """Release what a victim holds."""
        self._capacity.give(victim.grant)

    def take(self, victim: Victim) -> None:
        """Undo `give`."""
        self._capacity.take(victim.grant)

    def fits(self) -> bool:
        """Whether there is room now."""
        return self._capacity.fits(self._wanted, self._need)


def search(trial: Trial, able: Sequence[Victim], steps: int) -> list[Victim] | None:
    """The cheapest set of victims that makes room; None: all together do not.

    A branch-and-bound search: all candidates are preempted first, then each is spared, the most expensive first, if
    there still is room (the reverse pass); then up to `steps` other choices while they may be cheaper."""
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
    todo = [(0, False)]  # the index to decide about next; True: sparing it was tried, preempting it is next
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
    """The cheapest plan on one of these nodes. `spent`: core-seconds lost within the last hour."""
    found: list[tuple[Cost, bool, str, View, list[Victim]]] = []
    beyond: list[Alternative] = []
    steps = STEPS_IN_ALL
    for view in views:
        if view.capacity.fits(request.resources, request.constraints):
            return NoPlan("ending", f"no preemption: {_ending(view)}")
    for view in views:
        victims = cheapest(view.capacity, request.resources, view.able, min(STEPS, steps), request.constraints)
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
    trial = view.capacity.copy()
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
        return over_budget(policy, spent, least.lost, least.node)
    return in_min_hold(views) or NoPlan(
        "no-victims", "no preemption: nobody two classes below holds enough on any one node"
    )


def over_budget(policy: Preempting, spent: float, lost: float, on: str) -> NoPlan:
    """The badput budget would be exceeded."""
    if policy.badput_budget <= 0:
        return NoPlan("badput-budget", "no preemption: the badput budget is 0, so nobody is evicted")
    left = max(0.0, policy.badput_budget - spent)
    text = f"{lost:.0f} core-seconds would be lost on {on}, the badput budget has {left:.0f} left"
    return NoPlan("badput-budget", f"no preemption: {text} for this hour")


def in_min_hold(views: Sequence[View]) -> NoPlan | None:
    """Some allocations are in their min-hold, and might be enough later."""
    young = [view.young for view in views if view.young]
    if not young:
        return None
    until = min(young)
    return NoPlan("min-hold", f"no preemption: min-hold protects who began lately, until {clock(until)}", until)


def _ending(view: View) -> str:
    return f"{ending_words(view.ending)} on {view.node} already" if view.ending else f"{view.node} has room"


def ending_words(count: int) -> str:
    """`1 job ends`, `2 jobs end`."""
    return "1 job ends" if count == 1 else f"{count} jobs end"


EXACT = 8
"""Up to so many candidates in all, every set of them is compared."""


def gang_plan(views: Sequence[View], request: Request, policy: Preempting, spent: float) -> Plan | NoPlan:
    """Return the cheapest plan with a place for each member on a node of its own. `spent`: core-seconds lost within the
    last hour."""
    there = [view for view in views if view.capacity.fits(request.resources, request.constraints)]
    if len(there) >= request.gang:
        return _gang_ending(there)
    nodes = _Nodes(views, request)
    found = nodes.one_by_one(policy.badput_budget - spent) or nodes.one_by_one()
    if found is None:
        count = sum(view.makes_room(request) for view in views)
        text = f"with all who may give way there is room on {count} of the {request.gang} nodes that it needs at once"
        return in_min_hold(views) or NoPlan("no-victims", f"no preemption: {text}")
    victims, others = found
    if any(victim.gang for victim in nodes.units()):
        victims = nodes.at_once(victims)
    lost = sum(victim.lost for victim in victims)
    if policy.badput_budget <= 0 or spent + lost > policy.badput_budget:
        return over_budget(policy, spent, lost, ", ".join(sorted({victim.node for victim in victims})))
    first, *more = nodes.places(victims)
    taken = {first.node, *(place.node for place in more)}
    alternatives = tuple(one for one in others if one.node not in taken)[:NAMED]
    return Plan(first.node, tuple(victims), first.grant, lost, alternatives, tuple(more))


def _gang_ending(there: Sequence[View]) -> NoPlan:
    ending = sum(view.ending for view in there)
    if not ending:
        return NoPlan("ending", f"no preemption: {len(there)} nodes have room")
    on = ", ".join(view.node for view in there if view.ending)
    return NoPlan("ending", f"no preemption: {ending_words(ending)} on {on} already")


def unit(victim: Victim) -> str:
    """The id of what is preempted as a whole: a job, or a gang."""
    member = split_member(victim.job) if victim.gang else None
    return member[0] if member is not None else victim.job


class _Nodes:
    """The compared nodes with their preemption candidates, as a `Trial` on which a victim stands for its whole gang."""

    def __init__(self, views: Sequence[View], request: Request) -> None:
        self._request = request
        self._views = {view.node: view for view in views}
        self._held: dict[str, list[tuple[str, Victim]]] = {}
        for view in views:
            for victim in view.able:
                self._held.setdefault(unit(victim), []).append((view.node, victim))
        self._capacities: dict[str, Capacity] = {}
        self._roomy: set[str] = set()

    def units(self) -> list[Victim]:
        """Return one victim of each unit."""
        return [replace(held[0][1], node=held[0][0]) for held in self._held.values()]

    def one_by_one(self, most: float = math.inf) -> tuple[list[Victim], list[Alternative]] | None:
        """Choose the cheapest nodes (of those that cost no more than `most`) one by one: the victims, and the
        alternatives. A chosen gang frees what it holds on the other nodes too. None: there are too few nodes."""
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
        """The cheapest victims on one node in addition to the chosen ones."""
        capacity, able = view.capacity, list(view.able)
        if chosen and any(unit(victim) in chosen for victim in able):
            capacity = capacity.copy()
            for victim in able:
                if unit(victim) in chosen:
                    capacity.give(victim.grant)
            able = [victim for victim in able if unit(victim) not in chosen]
        return cheapest(capacity, self._request.resources, able, min(STEPS, steps), self._request.constraints)

    # --- all at once --------------------------------------------------------------------------------------------------

    def at_once(self, chosen: list[Victim]) -> list[Victim]:
        """The cheapest set for all nodes: of all candidates if they are few, else of those chosen one by one."""
        self._open()
        able = self.units() if len(self._held) <= EXACT else chosen
        found = search(self, able, STEPS)
        assert found is not None, "those who were chosen node by node do not make room together"
        return found

    def _open(self) -> None:
        self._capacities = {node: view.capacity.copy() for node, view in self._views.items()}
        self._roomy = {node for node in self._capacities if self._has_room(node)}

    def _has_room(self, node: str) -> bool:
        return self._capacities[node].fits(self._request.resources, self._request.constraints)

    def give(self, victim: Victim) -> None:
        """Release what a victim and its gang hold."""
        for node, held in self._held[unit(victim)]:
            self._capacities[node].give(held.grant)
            if self._has_room(node):
                self._roomy.add(node)

    def take(self, victim: Victim) -> None:
        """Undo `give`."""
        for node, held in self._held[unit(victim)]:
            self._capacities[node].take(held.grant)
            if node in self._roomy and not self._has_room(node):
                self._roomy.discard(node)

    def fits(self) -> bool:
        """Whether there is room for all members."""
        return len(self._roomy) >= self._request.gang

    def places(self, victims: Sequence[Victim]) -> list[Place]:
        """A place for each member without these victims; preferred nodes first, then by name."""
        self._open()
        for victim in victims:
            self.give(victim)
        names = sorted(self._roomy, key=lambda name: (name not in self._request.nodes, name))
        wanted, asked = self._request.resources, self._request.constraints
        return [Place(name, self._capacities[name].choose(wanted, asked)) for name in names[: self._request.gang]]
