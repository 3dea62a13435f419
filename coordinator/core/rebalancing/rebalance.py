"""The decision of one pass of rebalancing. Pure: demand that waits in Ray and idle nodes go in, moves with their
reasons come out.

The rules exclude oscillation. Nodes of the cluster never lend to it and all others never borrow, so there is no circle
of lenders. A source is below all its `low` marks, the demand on a target above `high`, and the two are GAP apart. Each
move lowers the burden of the grid by EPSILON at least; the burden is the sum of demand without a boost on its way, of
what is lent weighed by its lender's own pressure, and of MOVE for each boost. The reverse of a move is barred for the
policy's min-hold, any other move of the same pair for its cooldown. If Ray left a boost unused that was lent for some
task, none is lent for that task again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.rebalancing.leaving import leave
from distributed_grid.coordinator.core.rebalancing.view import (
    MARGIN,
    Loan,
    Moved,
    Source,
    View,
    Waiting,
    lends_from,
    room_for,
    tasks_in,
    weight,
)
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.moves import Barred, Hint, Move, MoveKind, Pass, Unserved
from distributed_grid.protocol.sharing.policies import Balancing, Marks, SharingPolicy
from distributed_grid.protocol.sharing.pressure import Pressure
from distributed_grid.protocol.text import counted, format_duration

MOVE = 0.25
"""The part of the burden that each lent boost adds, whatever its size (cores' worth)."""
EPSILON = 0.25
"""Minimum by which each move lowers the burden (cores' worth)."""
START = 3.5
"""How long a new raylet holds its resources before it can use them (s; docs/boosts.md)."""
UNUSED = 600.0
"""How long a boost that somebody asked for is unused before they are told (s)."""
ASKS = 32
"""Maximum number of different demands considered in one pass, largest first."""
NAMED = 3
"""Maximum number of lenders named in a reason."""
KINDS = ("cpu", "memory", "gpu")


def rebalance(view: View, balancing: Balancing, now: float) -> Pass:
    """Return the moves of this pass, in order, and the demand that is not served, with reasons. First boosts are given
    back that waiting jobs need, then boosts are lent for demand in Ray, then unused ones are given back, and last jobs
    leave before owners come."""
    values = balancing.values
    in_way = [one for one in view.loans if one.automatic and one.in_way]
    moves = [_for_jobs(one, values, now) for one in in_way if not _held(one, values, now)][: values.moves]
    used = {one.source for one in moves}
    lending = _Lending(view, balancing, now, used)
    unserved = lending.serve(moves)
    for one in view.loans:
        ready = one.automatic and not one.in_way and one.source not in used and _is_unused(one, values)
        if ready and len(moves) < values.moves and not _barred_back(one, view.moved, values, now):
            moves.append(_unused(one, values, now))
            used.add(one.source)
    leave(view, values, now, moves)
    hints = tuple(
        Hint(boost=one.boost, user=one.user, text=_hint(one))
        for one in view.loans
        if not one.automatic and one.idle is not None and one.idle >= UNUSED
    )
    return Pass(at=now, target=view.look.target, moves=tuple(moves), unserved=tuple(unserved), hints=hints)


# --- who may lend -----------------------------------------------------------------------------------------------------


def refusal(source: Source, moved: Moved | None, values: SharingPolicy, marks: Marks, now: float) -> str:
    """Why a node lends nothing by itself now, however much it has; empty: it may."""
    if source.closed:
        return source.closed
    if source.owner is None:
        return "it was not measured yet"
    if over := over_low(source.owner, marks):
        return over
    if source.stays is not None and source.stays < values.confidence:
        wanted = f"{values.confidence:.0%} wanted (confidence)"
        return f"it stays idle for {format_duration(values.window)} more with {source.stays:.0%}, {wanted}"
    foreseen = values.horizon > 0 and source.stays is not None
    if source.idle < values.sustained and not foreseen:
        return f"idle for {source.idle:.0f} s of {values.sustained:g} s (sustained)"
    if moved is not None and (until := lends_from(moved, values)) > now:
        return f"{_past(moved.kind)} {now - moved.at:.0f} s ago, lends again in {until - now:.0f} s"
    return ""


def over_low(owner: Pressure, marks: Marks) -> str:
    """A text about the first part of the owner's pressure that is not under its low mark; empty: all are."""
    parts = (("cpu", owner.cpu, marks.cpu_low), ("memory", owner.memory, marks.memory_low))
    for kind, part, low in parts if owner.gpu is None else (*parts, ("gpu", owner.gpu, marks.gpu_low)):
        if part >= low:
            return f"its owner's {kind} pressure is {part:.2f} (low mark {low:g})"
    return ""


def _past(kind: MoveKind) -> str:
    return {MoveKind.LEND: "lent", MoveKind.GIVE_BACK: "had a boost back", MoveKind.LEAVE: "was left by a job"}[kind]


def barred(view: View, values: SharingPolicy, now: float) -> Iterator[Barred]:
    """Lenders that may not make a move yet: which move, until when, and why."""
    for source, moved in view.moved.items():
        if (until := lends_from(moved, values)) > now:
            why = f"it {_past(moved.kind)} {now - moved.at:.0f} s ago"
            yield Barred(source=source, target=moved.target, kind=MoveKind.LEND, until=until, why=why)
    for one in view.loans:
        if one.automatic and (until := _gives_back_from(one, view.moved, values)) > now:
            why = f"a boost lasts {values.min_hold:g} s at least (min_hold)" if one.joined else "it has not joined yet"
            yield Barred(source=one.source, target=one.target, kind=MoveKind.GIVE_BACK, until=until, why=why)


# --- giving back ------------------------------------------------------------------------------------------------------


def _held(loan: Loan, values: SharingPolicy, now: float) -> bool:
    """Whether it is younger than the min-hold, or has not joined."""
    return not loan.joined or now < loan.joined + values.min_hold


def _gives_back_from(loan: Loan, moved: Mapping[str, Moved], values: SharingPolicy) -> float:
    last = moved.get(loan.source)
    after = last.at + values.cooldown if last is not None else 0.0
    return max(loan.joined + values.min_hold, after)


def _barred_back(loan: Loan, moved: Mapping[str, Moved], values: SharingPolicy, now: float) -> bool:
    return not loan.joined or now < _gives_back_from(loan, moved, values)


def _is_unused(loan: Loan, values: SharingPolicy) -> bool:
    return loan.idle is not None and 0 < loan.idle >= values.sustained


def _unused(loan: Loan, values: SharingPolicy, now: float) -> Move:
    reason = (
        f"Ray has used nothing of it for {format_duration(round(loan.idle or 0.0))} (sustained: {values.sustained:g} s)"
    )
    undone_by = f"tasks that wait for {values.sustained:g} s, not before {values.min_hold:g} s from now"
    return _give_back(loan, values, now, reason, undone_by, START)


def _for_jobs(loan: Loan, values: SharingPolicy, now: float) -> Move:
    reason = f"{loan.in_way}; a boost that nobody asked for gives way"
    undone_by = f"tasks that wait for {values.sustained:g} s while no job waits for what {loan.source} has"
    lost = 0.0 if loan.idle else min(values.min_hold, now - loan.joined)
    return _give_back(loan, values, now, reason, undone_by, START + lost)


def _give_back(loan: Loan, values: SharingPolicy, now: float, reason: str, undone_by: str, seconds: float) -> Move:
    """The move that gives a boost back; it costs the boost's resources for `seconds`."""
    much = weight(loan.resources)
    return Move(
        kind=MoveKind.GIVE_BACK,
        source=loan.source,
        target=loan.target,
        resources=loan.resources,
        boost=loan.boost,
        reason=reason,
        undone_by=undone_by,
        gain=much * values.min_hold,
        cost=much * seconds,
        at=now,
    )


def _hint(loan: Loan) -> str:
    return f"idle for {format_duration(round(loan.idle or 0.0))}; grid boost release {loan.boost}"


# --- lending ----------------------------------------------------------------------------------------------------------


def supply(view: View, ask: Waiting) -> int:
    """Return how many of these tasks have room in boosts that are new, or that were lent for them and are unused so
    far."""
    return sum(_room_in(one, ask) for one in view.loans)


def _room_in(loan: Loan, ask: Waiting) -> int:
    if loan.asks:
        return loan.tasks if loan.asks == ask.text and (loan.new or loan.idle) else 0
    return tasks_in(ask.each, loan.resources, ask.count) if loan.new else 0


class _Lender(msgspec.Struct, frozen=True, gc=False):  # thousands in a pass: none for the garbage collector to visit
    source: Source
    excess: Resources
    worth: float
    """Its priority, less the more its owner uses it: of two with the same room the greater is taken."""


class _Choice(NamedTuple):
    lender: _Lender
    tasks: int


class _Lending:
    """The part of a pass that lends. `used`: sources that have moved in it already."""

    def __init__(self, view: View, balancing: Balancing, now: float, used: set[str]) -> None:
        self._view, self._balancing, self._now = view, balancing, now
        self._values = balancing.values
        self._used = used
        self._free: list[_Lender] = []
        self._refused: list[str] = []
        """The first reasons why nodes lend nothing."""
        values, marks, moved = self._values, balancing.marks, view.moved
        for source in view.sources if view.look.waiting else ():
            why = refusal(source, moved.get(source.name), values, marks, now)
            if why or source.owner is None:
                if len(self._refused) < NAMED:
                    self._refused.append(f"{source.name}: {why}")
                continue
            excess = source.excess(values.headroom)
            self._free.append(_Lender(source, excess, source.priority * (1.0 - source.owner.score)))
        self._free.sort(key=lambda one: -one.worth)
        self._most = _most(one.excess for one in self._free)
        """The most that any lender has of each kind."""

    def serve(self, moves: list[Move]) -> list[Unserved]:
        """Add the moves that lend; returns the demand that is not served."""
        unserved = []
        asks = sorted(self._view.look.waiting, key=lambda one: (-weight(one.each), one.text))
        for number, ask in enumerate(asks):
            steady = self._view.steady.get(ask.text)
            why = self._no_need(ask) if number < ASKS else f"{ASKS} others are larger, and come first"
            need = (steady.count if steady is not None else 0) - supply(self._view, ask)
            if not why and need <= 0:
                why = "what is lent already is on its way"
            if not why:
                made, why = self._lend(ask, need, self._values.moves - len(moves))
                moves += made
            if why:
                waited = steady.waited if steady is not None else 0.0
                unserved.append(Unserved(asks=ask.text, count=ask.count, group=ask.group, waited=waited, why=why))
        return unserved

    def _no_need(self, ask: Waiting) -> str:
        """Why nothing needs to be lent for this demand; empty: something does."""
        view, values, steady = self._view, self._values, self._view.steady.get(ask.text)
        if ask.odd:
            return ask.odd
        if ask.text in view.vain:
            return "a boost was lent for it, and Ray left it unused: it waits for something else"
        if steady is None or steady.waited < values.sustained:
            waited = steady.waited if steady is not None else 0.0
            return f"it has waited for {waited:.0f} s of {values.sustained:g} s (sustained)"
        if ask.fits and not (over := self._over_high(ask)):
            return over or self._under_high(ask)
        return ""

    def _over_high(self, ask: Waiting) -> str:
        """The first kind of resource for which the demand is above the cluster's high mark; empty: none."""
        return next((kind for kind in KINDS if getattr(ask.each, kind) and self._asked(kind) > self._high(kind)), "")

    def _high(self, kind: str) -> float:
        return float(getattr(self._balancing.marks, f"{kind}_high"))

    def _asked(self, kind: str) -> float:
        """Return the used and demanded amount of a kind, as a part of what the cluster has of it."""
        look = self._view.look
        total = getattr(look.total, kind)
        waits = sum(getattr(one.each, kind) * one.count for one in look.waiting)
        return (getattr(look.used, kind) + waits) / total if total else float("inf")

    def _under_high(self, ask: Waiting) -> str:
        kind = next((kind for kind in KINDS if getattr(ask.each, kind)), "cpu")
        said = f"with what waits {self._asked(kind):.0%} of its {kind} is asked for (high mark {self._high(kind):.0%})"
        return f"the cluster has room elsewhere: {said}"

    def _lend(self, ask: Waiting, need: int, left: int) -> tuple[list[Move], str]:
        """The moves for one demand, and why it is not served in full; empty: it is."""
        made: list[Move] = []
        taken: set[str] = set()
        rest, too_dear = need, False
        while rest > 0 and len(made) < left and (best := self._best(ask, rest, taken)) is not None:
            move = self._move(ask, best, rest)
            if too_dear := move is None:
                break
            made.append(move)
            taken.add(move.source)
            rest -= best.tasks
        if rest > 0 and (ask.group or not made):  # a part of a group would be lent in vain
            dear = "what it costs its lender is too much for what it gains"
            return [], dear if too_dear else self._why_not(need, left, need - rest)
        self._used |= taken
        return made, f"{rest} of {need} are left over for the next pass" if rest > 0 else ""

    def _best(self, ask: Waiting, need: int, taken: set[str]) -> _Choice | None:
        """The lender with room for most of the tasks; of equal ones, the one worth most."""
        bound = tasks_in(ask.each, self._most, 1 if ask.apart else need)
        if not bound or (ask.together and bound < need):
            return None
        most, found = 0, None
        for one in self._free:
            if one.source.name in self._used or one.source.name in taken:
                continue
            tasks = tasks_in(ask.each, one.excess, bound)
            if tasks > most and not (ask.together and tasks < need):
                most, found = tasks, one
                if tasks == bound:
                    break
        return _Choice(found, most) if found is not None else None

    def _why_not(self, need: int, left: int, found: int) -> str:
        if left <= 0:
            return f"{counted(self._values.moves, 'move')} a pass are the most (moves)"
        if found:
            return f"the lenders have room for {found} of its {need} bundles in one pass, and it needs all at once"
        has = f"none of {len(self._free)} lenders has it beyond its headroom; the most of each: {self._most}"
        if not self._free:
            has = "no node lends by itself now"
        return f"{has}{'; ' if self._refused else ''}{'; '.join(self._refused)}"

    def _move(self, ask: Waiting, choice: _Choice, need: int) -> Move | None:
        """The move; None: it would cost its lender too much."""
        source, values, tasks = choice.lender.source, self._values, choice.tasks
        room = room_for(ask.each, tasks)
        owner = source.owner.score if source.owner is not None else 1.0
        much = weight(room)
        served = weight(_times(ask.each, need)) - (weight(_times(ask.each, need - tasks)) if need > tasks else 0.0)
        gain, cost = served * values.min_hold, much * (START + owner * values.min_hold)
        if served - much * owner - MOVE < EPSILON or gain <= MARGIN * cost:
            return None
        steady = self._view.steady[ask.text]
        waiting = counted(need, "bundle" if ask.group else "task")
        ask_and_wait = "asks for {} waits" if need == 1 else "ask for {} wait"
        return Move(
            kind=MoveKind.LEND,
            source=source.name,
            target=self._view.look.target,
            resources=room,
            asks=ask.text,
            tasks=tasks,
            reason=f"{waiting} that {ask_and_wait.format(ask.text)} in Ray for "
            f"{format_duration(round(steady.waited))}; "
            f"{source.name} has {choice.lender.excess} beyond its headroom of {values.headroom:.0%}, idle for "
            f"{format_duration(round(source.idle))}, owner's pressure {owner:.2f}",
            undone_by=f"Ray using nothing of it for {values.sustained:g} s, not before {values.min_hold:g} s from now",
            gain=round(gain, 3),
            cost=round(cost, 3),
            at=self._now,
        )


def _times(each: Resources, count: int) -> Resources:
    return Resources(each.cpu * count, each.memory * count, each.gpu * count)


def _most(amounts: Iterable[Resources]) -> Resources:
    """The most of each kind."""
    cpu = memory = gpu = 0
    for one in amounts:
        cpu, memory, gpu = max(cpu, one.cpu), max(memory, one.memory), max(gpu, one.gpu)
    return Resources(cpu, memory, gpu)
