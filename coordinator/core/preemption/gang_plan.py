"""Who gives way to an urgent gang: victims on as many nodes as it has members, chosen as one, or nobody. Pure, as
`plan.py` is, with the same rules, the same order of victims and the same search.

Without gangs among the victims nodes are independent of each other: those are taken on which least is lost, which is
the best there is. A gang that gives way does so on all of its nodes and loses the same however many of these are used:
so where one may be worth it, the sets that lose least are looked for on all nodes at once.
"""

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.coordinator.core.preemption.plan import (
    NAMED,
    STEPS,
    STEPS_IN_ALL,
    Cost,
    NoPlan,
    Plan,
    View,
    cheapest,
    cost,
    ending_words,
    search,
    too_dear,
    too_young,
)
from distributed_grid.protocol.groups import split_member
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.preemption import Alternative, Place, Victim

EXACT = 8
"""Where so few may give way in all, every set of them is compared."""


def plan(views: Sequence[View], request: Request, policy: Preempting, spent: float) -> Plan | NoPlan:
    """The cheapest plan with a place for each member on a node of its own. `spent`: core-seconds that were lost within
    the hour."""
    there = [view for view in views if view.room.fits(request.resources, request.constraints)]
    if len(there) >= request.gang:
        return _ending(there, request)
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


def _ending(there: Sequence[View], request: Request) -> NoPlan:
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
