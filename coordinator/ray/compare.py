"""Compares what was lent with what Ray shows: the differences, and raylets in Ray that belong to no boost."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Job, is_over
from distributed_grid.protocol.boosts import LABEL, SOURCE, TARGET, Boost, custom_resource, label_value
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import BoostView, RayNode
from distributed_grid.protocol.resources import GIB, MILLI, Grant, ResourceType

DRAINING = "draining"


def ray_node(one: dict[str, Any]) -> RayNode:
    """A node as the bridge tells of it."""
    return RayNode(
        id=one["id"],
        ip=one["ip"],
        name=one["name"],
        host=one["host"],
        status=one["status"],
        total=one["total"],
        available=one["available"],
        boost=one["labels"].get(LABEL, ""),
        source=one["labels"].get(SOURCE, ""),
        target=one["labels"].get(TARGET, ""),
    )


def differs(job: Job | JobView, node: RayNode, now: float) -> str:
    """Describe how a boost's raylet in Ray differs from what was lent; empty: it does not. At its end Ray drains it."""
    boost, grant = job.spec.boost, job.grant
    if boost is None or grant is None:
        return ""
    ends = job.state is State.STOPPING or is_over(job, now)
    lent = in_ray(boost, grant)
    wrong = [
        f"{_amount(what, amount)} lent, {_amount(what, node.total.get(what, 0.0))} in Ray"
        for what, amount in lent.items()
        if node.total.get(what, 0.0) != amount
    ]
    if node.source and node.source != label_value(job.node):
        wrong.append(f"Ray shows it on {node.source}")
    if boost.exclusive and not ends and not _is_covered(node, lent["CPU"]):
        wrong.append("its placement group is not there, so that anybody can use it")
    if node.status == DRAINING and not ends:
        wrong.append("Ray is draining it: it takes nothing new")
    return "; ".join(wrong)


def in_ray(boost: Boost, grant: Grant) -> dict[str, float]:
    """Return what was lent, in Ray's names and units; with the kinds that every raylet has, even if none was lent."""
    cores, gpus = float(len(grant.cores)), sum(gpu.milli for gpu in grant.gpus) / MILLI
    lent = {"CPU": cores, "GPU": gpus, custom_resource(boost.target): gpus or cores}
    return lent | ({"memory": float(boost.amount)} if boost.kind is ResourceType.MEMORY else {})


def _is_covered(node: RayNode, cores: float) -> bool:
    """Whether one placement group has all its cores."""
    return any(name.startswith("CPU_group_") and amount == cores for name, amount in node.total.items())


def _amount(what: str, amount: float) -> str:
    return f"{amount / GIB:g} GB" if what == "memory" else f"{amount:g} {what}"


def compared(
    views: Iterable[JobView], nodes: Iterable[RayNode], address: str, ran: frozenset[str] | None, now: float
) -> tuple[BoostView, ...]:
    """Return boosts with their raylets and differences. `address`: the cluster that was queried; `ran`: boosts that ran
    before it was, as one that has joined since cannot be missing; None: it could not be queried."""
    raylets = _by_boost(nodes)
    return tuple(_compared(view, raylets.get(view.id, []), address, ran, now) for view in views)


def _by_boost(nodes: Iterable[RayNode]) -> dict[str, list[RayNode]]:
    found: dict[str, list[RayNode]] = defaultdict(list)
    for node in nodes:
        if node.boost:
            found[node.boost].append(node)
    return found


def _compared(view: JobView, raylets: list[RayNode], address: str, ran: frozenset[str] | None, now: float) -> BoostView:
    wrong = []
    lent = view.spec.boost
    if lent is not None and lent.address != address:
        wrong.append(f"it was lent to the Ray at {lent.address}, and ray.address is {address or 'not set'} now")
    elif not raylets and ran is not None and view.id in ran and view.state is State.RUNNING:
        wrong.append("Ray does not show it")
    if len(raylets) > 1:
        wrong.append(f"{len(raylets)} nodes of Ray carry its label: {', '.join(one.id[:12] for one in raylets)}")
    node = raylets[-1] if raylets else None
    if node is not None and (why := differs(view, node, now)):
        wrong.append(why)
    return BoostView(view, node, "; ".join(wrong))


def marked(nodes: Iterable[RayNode], live: frozenset[str]) -> tuple[RayNode, ...]:
    """The nodes, with a mark on those that carry the label of an unknown boost."""
    orphan = "no boost of this grid has this id, or none any more"
    return tuple(replace(one, orphan=orphan) if one.boost and one.boost not in live else one for one in nodes)
