"""A pass of scaling: the current plan, kept for display, and carried out if the mode is `act` or an operator has
ordered it; and the status that clients see."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Granted, Rejected
from distributed_grid.coordinator.core.scaling import lists, lives, machines
from distributed_grid.coordinator.core.scaling.budget import HOUR, Budget, Refused, day_of, limits_words
from distributed_grid.coordinator.core.scaling.demand import demand_of, note_usage, view_of
from distributed_grid.coordinator.core.scaling.events import (
    MachineAnswered,
    MachineMismatched,
    MachinesListed,
    ScalingConfigured,
    ScalingRequested,
)
from distributed_grid.coordinator.core.scaling.lives import pauses, unrecorded
from distributed_grid.coordinator.core.scaling.plan import ordered, plan
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.messages.automation import MACHINES_MOST, GetScaling, PoolView, ScalingStatus
from distributed_grid.protocol.scaling.machines import STARTING, Machine, MachineState
from distributed_grid.protocol.scaling.plans import DrainCause, DrainMachine, ScaleOrder, ScalePlan
from distributed_grid.protocol.scaling.pools import Pool, ScalingMode
from distributed_grid.protocol.text import counted, suggestion

INTERVAL_MOST = 30.0
"""Longest time between two passes while something is there (s)."""


def handle(
    state: GridState,
    event: ScalingConfigured | ScalingRequested | MachineAnswered | MachinesListed | MachineMismatched,
) -> None:
    """Something has happened to machines or their configuration."""
    match event:
        case ScalingConfigured(scaling):
            machines.configure(state, scaling)
        case ScalingRequested():
            request(state, event)
        case MachineAnswered():
            machines.answered(state, event)
        case MachinesListed():
            lists.listed(state, event)
        case MachineMismatched():
            machines.mismatched(state, event)


def on_time(state: GridState, kind: str, name: str) -> None:
    """A deadline of this kind has come."""
    match kind:
        case "machine":
            machines.due(state, name)
        case "look":
            machines.look_due(state, name)
        case _:
            due(state)


def due(state: GridState) -> None:
    """Plan, if it is time, and do it where the mode says so."""
    scaling, known, now = state.policy.scaling, state.scaling, state.now
    if not scaling.pools and not any(one.live for one in known.machines.values()):
        return
    if now < (at := known.next_pass(len(state.queue.lines))):
        state.deadlines.arm("scaling", "", at)
        return
    _forget(state)
    if scaling.mode is not ScalingMode.OFF:
        note_usage(state, scaling, now)
        known.last = proposed(state, now)
        if scaling.mode is ScalingMode.ACT and not state.halted:
            apply(state, known.last)
            lives.offer_again(state)
    known.passed = now
    state.deadlines.arm("scaling", "", now + _next(state))


def _next(state: GridState) -> float:
    """Return when to plan again, if nothing happens before."""
    scaling = state.policy.scaling
    if not state.queue.lines and not any(one.live for one in state.scaling.machines.values()):
        return max(1.0, scaling.reassessment)
    shortest = min((min(pool.idle, pool.boot) for pool in scaling.pools), default=INTERVAL_MOST)
    return min(INTERVAL_MOST, scaling.reassessment, max(1.0, shortest / 4))


def proposed(state: GridState, now: float) -> ScalePlan:
    """The plan of now. Changes nothing."""
    scaling = state.policy.scaling
    view, demand = view_of(state, scaling, now), demand_of(state, scaling, now)
    return plan(view, demand, state.scaling.machines.values(), scaling, now)


def scaling_status(state: GridState, asked: GetScaling, now: float) -> ScalingStatus:
    """Mode, pools, machines and plan. Changes nothing."""
    scaling, known = state.policy.scaling, state.scaling
    machines = sorted(known.machines.values(), key=lambda one: (not one.live, -one.wanted, one.name))
    paused, budget = pauses(state, scaling), Budget(scaling, machines, unrecorded(state), now)
    return ScalingStatus(
        id=asked.id,
        mode=scaling.mode,
        now=now,
        pools=tuple(_pool_view(state, pool, paused.get(pool.name, ""), budget, now) for pool in scaling.pools),
        machines=tuple(machines[:MACHINES_MOST]),
        left=len(machines[MACHINES_MOST:]),
        plan=proposed(state, now) if scaling.pools or machines else None,
        limits=limits_words(scaling.limits),
    )


def _pool_view(state: GridState, pool: Pool, paused: str, budget: Budget, now: float) -> PoolView:
    known = state.scaling
    provider = known.providers.get(pool.provider)
    refused = tuple(
        ("/".join(filter(None, (zone, type))), until - now, why)
        for (name, zone, type), (until, why) in known.backoffs_now().items()
        if name == pool.name and until > now
    )
    boots = {type: times for (name, type), times in known.boot_times().items() if name == pool.name}
    trouble = provider.trouble if provider is not None else ""
    room = {shape.type: budget.left(pool, shape) for shape in pool.shapes}
    return PoolView(pool=pool, paused=paused, trouble=trouble, refused=refused, boots=boots, room=room)


def apply(state: GridState, found: ScalePlan) -> None:
    """Carry out a plan."""
    known = state.scaling
    for back in found.returns:
        machines.take_back(state, back.machine, back.why)
    for one in found.creates:
        machines.want(state, one)
        if not one.serves and one.why and "(up:" in one.why:
            known.raised = state.now
    for gone in found.drains:
        machines.drain(state, gone)
        if gone.cause is DrainCause.UNUSED:
            known.lowered = state.now
    machines.end_drained(state)


def _forget(state: GridState) -> None:
    """Forget the machines that are gone for longer than they are remembered, and cost nothing today."""
    before, today = state.now - state.policy.scaling.retention, day_of(state.now)
    for name, one in list(state.scaling.machines.items()):
        if not one.live and one.over < before and not (one.born and day_of(one.over + HOUR) >= today):
            machines.forget(state, name)


def request(state: GridState, event: ScalingRequested) -> None:
    """An operator orders something: carry out the plan of now, pause or resume pools, create or end a machine."""
    scaling = state.policy.scaling
    if event.order is ScaleOrder.END:
        _end(state, event)
        return
    left = event.order is ScaleOrder.APPLY and any(one.live for one in state.scaling.machines.values())
    if not scaling.pools and not left:
        why = "the configuration of the coordinator names none"
        state.out.append(Rejected(event.token, "bad-value", "there is no pool", why, "see docs/scaling.md"))
        return
    names = [pool.name for pool in scaling.pools]
    if event.pool and event.pool not in names:
        hint = f"{suggestion(event.pool, names)}there are {', '.join(names)}"
        state.out.append(Rejected(event.token, "bad-value", f"there is no pool {event.pool[:80]!r}", "", hint))
        return
    match event.order:
        case ScaleOrder.APPLY:
            _apply_now(state, event)
        case ScaleOrder.CREATE:
            _create(state, event)
        case ScaleOrder.PAUSE:
            for name in [event.pool] if event.pool else names:
                machines.pause(state, name, event.by, event.why)
            state.out.append(Granted(event.token, f"{event.pool or 'all pools'} paused: nothing is created there"))
        case ScaleOrder.RESUME:
            for name in [event.pool] if event.pool else names:
                machines.resume(state, name)
            state.out.append(Granted(event.token, f"{event.pool or 'all pools'} resumed"))


def _create(state: GridState, event: ScalingRequested) -> None:
    what, scaling = "no machine is created", state.policy.scaling
    pool = scaling.pool(event.pool)
    if state.halted:
        why = "the coordinator cannot store what it would create"
        state.out.append(Rejected(event.token, "unavailable", what, why, "see `grid status`"))
        return
    if pool is None:
        state.out.append(Rejected(event.token, "bad-value", what, "no pool is named", "see `grid scale status`"))
        return
    types = [shape.type for shape in pool.shapes]
    if event.machine_type and event.machine_type not in types:
        named = ", ".join(filter(None, types)) or "one type without a name"
        hint = f"{suggestion(event.machine_type, types)}it has {named}"
        state.out.append(
            Rejected(event.token, "bad-value", f"pool {pool.name} has no type {event.machine_type[:80]!r}", "", hint)
        )
        return
    why = event.why or f"{event.by} ordered it"
    known = state.scaling.machines.values()
    found = ordered(view_of(state, scaling, state.now), known, scaling, event.pool, event.machine_type, why, state.now)
    if isinstance(found, Refused):
        state.out.append(Rejected(event.token, "not-allowed", what, found.why, "see `grid scale status`"))
        return
    state.out.append(Granted(event.token, machines.want(state, found).name))


def _end(state: GridState, event: ScalingRequested) -> None:
    machine = state.scaling.machines.get(event.machine)
    if machine is None:
        hint = f"{suggestion(event.machine, [*state.scaling.machines])}see `grid scale status`"
        state.out.append(Rejected(event.token, "bad-value", f"there is no machine {event.machine[:80]!r}", "", hint))
        return
    why = event.why or f"{event.by} ordered it"
    if machine.state is MachineState.JOINED:
        gone = DrainMachine(machine=machine.name, pool=machine.pool, cause=DrainCause.ORDERED, why=why)
        machines.drain(state, gone)
        machines.end_drained(state)
    elif machine.state is MachineState.DRAINING:
        machines.move(state, machine, machine.state, why, cause=DrainCause.ORDERED)  # a plan does not take it back
    elif machine.live and machine.state is not MachineState.ENDING:
        machines.end(state, machine, why)
    state.out.append(Granted(event.token, f"{machine.name} is {state.scaling.machines[machine.name].state}"))


def _apply_now(state: GridState, event: ScalingRequested) -> None:
    if state.halted:
        why = "the coordinator cannot store what it would create"
        state.out.append(Rejected(event.token, "unavailable", "nothing is created now", why, "see `grid status`"))
        return
    note_usage(state, state.policy.scaling, state.now)
    found = proposed(state, state.now)
    if event.pool:
        found = replace(
            found,
            creates=tuple(one for one in found.creates if one.pool == event.pool),
            drains=tuple(one for one in found.drains if one.pool == event.pool),
            returns=tuple(one for one in found.returns if one.pool == event.pool),
        )
    state.scaling.passed, state.scaling.last = state.now, found
    apply(state, found)
    said = [f"{counted(len(found.creates), 'machine')} to be created"] if found.creates else []
    said += [f"{counted(len(found.drains), 'machine')} to end"] if found.drains else []
    said += [f"{counted(len(found.returns), 'machine')} taken back"] if found.returns else []
    reasons = [one.why for one in found.not_done][:1] if not said else []
    state.out.append(Granted(event.token, ", ".join(said) or "; ".join(["nothing is to be done", *reasons])))
    state.deadlines.arm("scaling", "", state.now + _next(state))


# --- for people -------------------------------------------------------------------------------------------------------


def words_for(state: GridState, job: str, now: float) -> str:
    """Which machine is on its way for a waiting job, or why none is; empty: nothing is known about that."""
    coming = [one for one in state.scaling.machines.values() if one.state in STARTING]
    for one in reversed(coming):
        if job in one.jobs:
            return _on_its_way(state, one, now)
    last, waiting = state.scaling.last, state.queue
    if last is None or job not in waiting:
        return ""
    line = waiting.line(job)

    def is_like(names: tuple[str, ...]) -> bool:
        """Whether this job requests the same as these; only the first of them are named."""
        return any(name in waiting and waiting.line(name) is line for name in names)

    for new in last.creates:
        if job in new.jobs and state.policy.scaling.mode is ScalingMode.PLAN:
            return f"a machine of pool {new.pool} would be created for it (scaling.mode is plan: grid scale apply)"
    served = any(is_like(one.jobs) for one in coming)
    for left in last.not_done:
        one_only = left.code == "starts-anyway"
        if job in left.jobs or not one_only and not served and is_like(left.jobs):
            said = one_only or left.code in ("no-pool", "limit")
            return f"no machine is created for it: {left.why}" if said else ""
    for one in coming:
        if any(name in waiting for name in one.jobs):
            return _on_its_way(state, one, now)
    return ""


def _on_its_way(state: GridState, one: Machine, now: float) -> str:
    pool = state.policy.scaling.pool(one.pool)
    usual = state.scaling.boot_times().get((one.pool, one.type))
    seconds = usual[0] if usual is not None else pool.boot if pool is not None else 0.0
    about = f"{one.name} of pool {one.pool} is {one.state} since {max(0.0, now - one.wanted):.0f} s"
    if one.queued:
        return f"{about}; {one.text}"
    return f"{about}, which usually takes {seconds:.0f} s"
