"""What clients see of the ledger. Nothing is decided or changed here."""

from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lifecycle.suspending import put_off
from distributed_grid.coordinator.core.model import Allocation, Node
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import title
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.nodes import AllocationView, GpuOffer, NodeState, NodeView, OfferView, Withheld
from distributed_grid.protocol.resources import Resources


def job(state: GridState, name: str) -> JobView | None:
    """A live job as it stands; None: not known here (it may have ended)."""
    found = state.jobs.get(name)
    return None if found is None else found.view(reasons.now_for(state, found))


def _lent(node: Node) -> Resources:
    held = [allocation.grant.resources for allocation in node.allocations.values()]
    return Resources(sum(r.cpu for r in held), sum(r.memory for r in held), sum(r.gpu for r in held))


def _withheld(node: Node) -> tuple[Withheld, ...]:
    told = node.offer.withheld if node.offer is not None else ()
    ours = tuple(
        Withheld(device or "node", "refused at the claim, left alone for a while") for device in sorted(node.closed)
    )
    return told + ours


def offers(state: GridState, now: float, only: str = "") -> tuple[OfferView, ...]:
    """The offers that stand, of the nodes that can be reached."""
    views = []
    for name, node in state.nodes.items():
        reachable = node.state in (NodeState.UP, NodeState.SUSPECT)
        if (only and name != only) or not reachable or node.offer is None or node.room is None:
            continue
        room, lent = node.room.left, _lent(node)
        gpus = tuple(
            GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory_free, node.room.gpus[gpu.uuid])
            for gpu in node.room.offers.values()
            if node.room.gpus.get(gpu.uuid, 0) > 0 and gpu.uuid not in node.closed
        )
        idle = node.sample.at - node.offer.idle_since if node.sample is not None and node.offer.idle_since else 0.0
        views.append(
            OfferView(
                node=name,
                state=node.state,
                room=room,
                total=room + lent,
                cores=node.room.free_cores(),
                virtual=node.facts.virtual,
                gpus=gpus,
                expires_in=max(0.0, node.offer_until - now),
                idle_for=max(0.0, idle),
                withheld=_withheld(node),
            )
        )
    return tuple(views)


def allocations(state: GridState, only: str = "") -> tuple[AllocationView, ...]:
    """What is lent, in the order it was granted."""
    if only:
        node = state.nodes.get(only)
        return tuple(allocation_view(state, one) for one in node.allocations.values()) if node is not None else ()
    return tuple(allocation_view(state, one) for one in state.allocations.values())


def allocation_view(state: GridState, allocation: Allocation) -> AllocationView:
    """An allocation as it stands, and when it ends at the latest, where that is known."""
    job = state.jobs[allocation.job]
    limit = job.spec.time_limit
    return AllocationView(
        id=allocation.id,
        job=job.id,
        user=job.user,
        node=allocation.node,
        state=allocation.state,
        grant=allocation.grant,
        priority=job.request.priority.word,
        since=allocation.granted,
        ends=allocation.started + limit + put_off(job, state.now) if allocation.started and limit else 0.0,
        name=job.spec.name or (title(job.spec.boost) if job.spec.boost is not None else ""),
        suspended=job.suspended.why if job.suspended is not None else "",
    )


def nodes(state: GridState, now: float) -> tuple[NodeView, ...]:
    """All known nodes, in the order they first came."""
    return tuple(
        NodeView(
            facts=node.facts,
            state=node.state,
            silent_for=max(0.0, now - node.heard),
            sample=node.sample,
            offered=node.room.left if node.room is not None else Resources(),
            lent=_lent(node),
            jobs=len(node.allocations),
            withheld=_withheld(node),
            orders=node.orders,
            labels=labels(node),
        )
        for node in state.nodes.values()
    )
