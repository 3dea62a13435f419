"""Checks holds, from what is on disk and from the processes that really exist: the jobs inside use no more than their
hold has, no other job gets any of it while the hold lasts, and a hold lasts as long as was requested."""

from collections import Counter
from collections.abc import Iterable

from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import Allocation, Placement
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.resources import MILLI, Grant
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.truth import Truth, number_of

EARLY = 0.01
"""Seconds that a hold may end before its time, for rounding."""


def launched_in_its_place(truth: Truth, job: str, node: str) -> None:
    """A launch leaves the coordinator: inside of the hold that its job names, as long as that lasts; and outside of all
    others."""
    assert truth.disk is not None
    one, plan = truth.disk.last_of(job), truth.plans[number_of(job)]
    if one is None or not (plan.within >= 0 or _has_holds(truth)):
        return
    named = truth.promised[plan.within] if plan.within >= 0 else ""
    if named and (one.within or truth.disk.rows[named].state is not State.ENDED):
        hold = truth.disk.last_of(named)
        if hold is None or hold.id != one.within or hold.node != node:
            where = one.within or "none"
            raise Violation(job, f"{one.id} is launched on {node} inside of {where}, and its hold is {named}")
        _is_enough(job, hold.grant, [other.grant for other in _inside(truth, hold.id)], f"inside of {hold.id}")
    there = [hold for hold in _holds_on(truth, node) if hold.id != one.within]
    for hold in there:
        _is_apart(one, hold)


def ended_rightly(truth: Truth, job: str, outcome: Outcome) -> None:
    """A hold has ended on disk: nothing of it ever ran, and it lasted as long as was asked for unless somebody ended it
    or it lost its node."""
    plan = truth.plans[number_of(job)]
    if any(run.job == job for run in truth.runs.values()):
        raise Violation(job, "it is a hold, and a process was started for it")
    if outcome.cause is Cause.TIME_LIMIT and outcome.seconds < plan.time_limit - EARLY:
        raise Violation(job, f"it was held for {outcome.seconds:.2f} s, and {plan.time_limit:g} s were asked for")
    if outcome.cause in (Cause.EXITED, Cause.SIGNALLED, Cause.SPAWN_FAILED, Cause.LEASE_EXPIRED):
        raise Violation(job, f"it is a hold, and ended as {outcome.cause}")


def nobody_waits_for_room_in_a_hold(state: GridState) -> None:
    """After a pass: of those that wait for room in a hold, none would have it."""
    for hold, inside in ({} if state.halted else state.holds.waiting).items():
        for name in inside.jobs:
            if hold not in state.jobs:
                raise Violation(name, f"it waits for the hold {hold}, which has ended")
            found = holds.find(state, state.jobs[name].request)
            if isinstance(found, Placement):
                raise Violation(name, f"it waits for its hold {hold}, which has room for it on {found.node}")


def _has_holds(truth: Truth) -> bool:
    return any(truth.plans[number].holds for number in truth.promised)


def _holds_on(truth: Truth, node: str) -> list[Allocation]:
    """The holds on a node, as the disk has them."""
    assert truth.disk is not None
    found = []
    for number, name in truth.promised.items():
        row = truth.disk.rows.get(name) if truth.plans[number].holds else None
        if row is not None and row.state is State.RUNNING:
            hold = truth.disk.last_of(name)
            if hold is not None and hold.node == node:
                found.append(hold)
    return found


def _inside(truth: Truth, hold: str) -> Iterable[Allocation]:
    """Return the allocations inside of a hold, according to the disk."""
    assert truth.disk is not None
    for row in truth.disk.rows.values():
        if row.state not in (State.WAITING, State.ENDED) and truth.plans[number_of(row.id)].within >= 0:
            one = truth.disk.last_of(row.id)
            if one is not None and one.within == hold:
                yield one


def _of(grant: Grant) -> Counter[str]:
    """Return the contents of a grant, by device: thousandths, and bytes."""
    found = Counter({f"core {core}": MILLI for core in grant.cores})
    if grant.shared_core >= 0:
        found[f"core {grant.shared_core}"] += grant.shared_milli
    found.update({gpu.uuid: gpu.milli for gpu in grant.gpus})
    found["memory"] += grant.memory
    return found


def _is_enough(job: str, whole: Grant, parts: Iterable[Grant], where: str) -> None:
    has, used = _of(whole), Counter[str]()
    for part in parts:
        used.update(_of(part))
    for what, amount in used.items():
        if amount > has[what]:
            raise Violation(job, f"{where} {amount} of {what} are granted, and it has {has[what]}")


def _is_apart(one: Allocation, hold: Allocation) -> None:
    mine, its = _of(one.grant), _of(hold.grant)
    for what in set(mine) & set(its) - {"memory"}:
        if mine[what] + its[what] > MILLI:
            raise Violation(one.job, f"{one.id} is launched on {what} of {one.node}, which {hold.id} holds")
