"""Answers about scaling: the machines, and what a pass would do now."""

from distributed_grid.coordinator.core.scaling import passes
from distributed_grid.coordinator.core.scaling.budget import Budget, limits_words
from distributed_grid.coordinator.core.scaling.lives import pauses, unrecorded
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.messages.automation import MACHINES_MOST, GetScaling, PoolView, ScalingStatus
from distributed_grid.protocol.scaling.pools import Pool


def scaling_status(state: GridState, asked: GetScaling, now: float) -> ScalingStatus:
    """Mode, pools, machines and plan. Changes nothing."""
    scaling, known = state.policy.scaling, state.scaling
    machines = sorted(known.machines.values(), key=lambda one: (not one.live, -one.wanted, one.name))
    paused, budget = pauses(state, scaling), Budget(scaling, machines, unrecorded(state), now)
    return ScalingStatus(
        id=asked.id,
        mode=scaling.mode,
        now=now,
        pools=tuple(_view(state, pool, paused.get(pool.name, ""), budget, now) for pool in scaling.pools),
        machines=tuple(machines[:MACHINES_MOST]),
        left=len(machines[MACHINES_MOST:]),
        plan=passes.proposed(state, now) if scaling.pools or machines else None,
        limits=limits_words(scaling.limits),
    )


def _view(state: GridState, pool: Pool, paused: str, budget: Budget, now: float) -> PoolView:
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
