"""A waiting job is granted its place, and launched there: at once, or when Ray has reserved it (placement/ray.py)."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import RayPlace, Reserve
from distributed_grid.coordinator.core.lifecycle import retries
from distributed_grid.coordinator.core.model import Allocation, Job, Placement, Send
from distributed_grid.coordinator.core.placement.ray_capacity import bundle
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang, GroupKind
from distributed_grid.protocol.jobs import JobSpec, State
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.walls import Walls


def start(state: GridState, job: Job, placement: Placement, gang: Gang | None = None) -> None:
    """Grant a waiting job its place and have it launched."""
    allocation = state.grant(job, placement, retries.lease(job, state.policy), gang)
    on = state.nodes[allocation.node].ray
    if job.request.ray and (wanted := bundle(on, allocation.grant.resources)):
        allocation.ray = RayPlace(on.id if on is not None else "", wanted)
    more = "; Ray is to reserve it" if allocation.awaits_ray else ""
    state.move(allocation, State.STARTING, f"granted on {placement.node}, confidence {placement.confidence:.2f}{more}")
    state.changed(job, allocation)
    if allocation.awaits_ray:
        reserve(state, allocation)
    else:
        state.out.append(Send(placement.node, launch(state, job, allocation)))


def reserve(state: GridState, allocation: Allocation) -> None:
    """Have Ray reserve it; it has so long to answer."""
    place = allocation.ray
    assert place is not None, f"{allocation.id} is not placed by Ray"
    state.out.append(Reserve(allocation.id, place.node, place.resources))
    state.deadlines.arm("reserve", allocation.id, state.now + state.policy.reserve_within)


def launch(state: GridState, job: Job, allocation: Allocation) -> Launch:
    """The message that starts an allocation, the same however often it is sent."""
    return Launch(
        allocation=allocation.id,
        job=job.id,
        user=job.user,
        epoch=state.epoch,
        grant=allocation.grant,
        spec=_spec(state, job),
        gang=allocation.gang,
        lease=allocation.lease,
        walls=job.request.constraints.walls if job.request.constraints is not None else Walls.NONE,
        heard=sample.at if allocation.lease and (sample := state.nodes[allocation.node].sample) else 0.0,
    )


def _spec(state: GridState, job: Job) -> JobSpec:
    """What a job is started with: a member of a group is told which it is."""
    if not job.group:
        return job.spec
    group = state.groups[job.group].group
    if group.kind is GroupKind.GANG:
        return replace(job.spec, env={**job.spec.env, "GRID_GANG_ID": group.id})
    mine = {
        "GRID_ARRAY_ID": group.id,
        "GRID_ARRAY_INDEX": str(job.index),
        "GRID_ARRAY_COUNT": str(group.count),
    }
    return replace(job.spec, env={**job.spec.env, **mine})
