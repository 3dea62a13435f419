"""Who gives way to an urgent request: a complete plan with the cheapest victims, or none, and why. Pure: what is there
comes in as views of nodes, nothing is changed.

A plan is for one node: its victims free, together with what is free there, all that is asked for (for a gang, see
gang_plan.py). Nothing is counted on that is not known to be held there; a victim frees its grant and never more.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Protocol

import msgspec

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.preemption import Alternative, Place, Victim
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
