"""The API of the resource boost guide: `ResourceBoostManager` over one client connection, and the options that run a
Ray program's tasks on one boost. Ray is optional; if the program has it, it is asked whether the boost is exclusive."""

import logging
import math
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from distributed_grid.config.settings import ClusterConfig
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.connected import Connected, borrowed, given_back
from distributed_grid.protocol.boosts import DURATION, LABEL, group_name, is_boost_id, rounding
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority, State, parse_priority
from distributed_grid.protocol.messages import BoostView
from distributed_grid.protocol.resources import GIB, MILLI, MOST_FINITE, ResourceType, parse_kind

log = logging.getLogger("distributed_grid.boosts")


@dataclass
class ResourceBoostRequest:
    """Cores, GPUs or GB for the node `target_node`, through its Ray cluster. `duration_seconds` None: an hour.
    `preferred_source`: from this node if it has room, else (and for None) from the best one; `only_source`: from this
    node or from none. `exclusive`: a placement group reserves all of it, for programs that use that alone
    (`boost_scheduling_options`)."""

    target_node: str
    resource_type: ResourceType
    amount: float
    priority: Priority = Priority.NORMAL
    duration_seconds: float | None = None
    preferred_source: str | None = None
    exclusive: bool = False
    only_source: str | None = None


@dataclass(frozen=True)
class ResourceBoost:
    """A boost. `is_active`: Ray has shown it and it has not ended; `state` is more precise. `amount` is in cores, GPUs
    or GB. `expires_at` None: its time has not begun. `boost_id` is empty for another user's boost.

    `ray_node_id` and `ray_status` (idle, running, draining) are what Ray shows of it now, empty if nothing; `differs`
    says how that differs from what was lent. `ending`: why it ends, once it is told to; Ray drains it then."""

    boost_id: str
    source_node: str
    target_node: str
    resource_type: ResourceType
    amount: float
    priority: Priority
    allocated_at: datetime
    expires_at: datetime | None
    is_active: bool
    state: State
    ray_node_id: str
    ray_status: str
    differs: str
    exclusive: bool = False
    ending: str = ""


class ResourceBoostManager(Connected):
    """Lends idle resources of other nodes to a node's Ray cluster.

    Made with a configuration (default: the one that `grid` would find), it connects on first use; `async with` and
    `shutdown()` disconnect. Boosts stay. A given `client` is used as it is: its owner connects and closes it."""

    def __init__(self, config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        super().__init__(config, client)

    async def request_boost(self, request: ResourceBoostRequest) -> str | None:
        """Request a boost. Returns its id once Ray shows it; None if no node has the resources now, or ever could: the
        log says why.

        Raises BadValue for an invalid request or an unknown target; SharingDisabled; GridError if there is no Ray
        cluster, or the raylet did not join it. If the caller is cancelled, nothing stays lent."""
        self.config.require_sharing()
        asked = _asked(request)
        if more := rounding(asked["kind"], asked["amount"]):
            log.warning("%s", more)
        await self.initialize()
        return await borrowed(self.client, self.client.request_boost(**asked), {State.RUNNING}, "boost", log)

    async def release_boost(self, boost_id: str | None) -> bool:
        """Release it before it expires, by its id in full. True once that is on the coordinator's disk: Ray drains it
        then, and its source has it back when its raylet is gone. False if it has ended or is unknown, which the log
        says. Raises BadValue for a job that is no boost."""
        await self.initialize()
        return await given_back(self.client, boost_id, "no boost", lambda spec: spec.boost is not None, log)

    async def get_active_boosts(self, target_node: str | None = None) -> list[ResourceBoost]:
        """Return the boosts lent now, for this node or for all, oldest first; none for an unknown node."""
        lent = (await self._all())[0]
        return [one for one in lent if one.is_active and target_node in (None, "", one.target_node)]

    async def get_boost_status(self) -> dict[str, Any]:
        """A summary in plain values: how many are `active`, and how many are not (`other`, by state); `resources` lent,
        by type, in cores, GPUs and GB; `differences` from what Ray shows, by boost; `ray_address`, and `ray_trouble`,
        why Ray cannot be asked; `boosts`, one by one."""
        boosts, address, trouble = await self._all()
        active = [one for one in boosts if one.is_active]
        other = [one.state.value for one in boosts if not one.is_active]
        kinds = dict.fromkeys(one.resource_type for one in active)
        return {
            "active": len(active),
            "other": {state: other.count(state) for state in dict.fromkeys(other)},
            "resources": {
                kind.value: math.fsum(one.amount for one in active if one.resource_type is kind) for kind in kinds
            },
            "differences": {one.boost_id: one.differs for one in boosts if one.differs and one.boost_id},
            "ray_address": address,
            "ray_trouble": trouble,
            "boosts": [_plain(one) for one in boosts],
        }

    async def _all(self) -> tuple[list[ResourceBoost], str, str]:
        await self.initialize()
        answer = await self.client.boosts()
        return [made for one in answer.boosts if (made := _boost(one)) is not None], answer.address, answer.trouble


def _asked(request: ResourceBoostRequest) -> dict[str, Any]:
    """Validate the request. Raises BadValue."""
    if not isinstance(request, ResourceBoostRequest):
        raise BadValue(f"{request!r:.80} is no request for a boost", hint="give a ResourceBoostRequest")
    kind = parse_kind(request.resource_type)
    duration = DURATION if request.duration_seconds is None else request.duration_seconds
    for what, number in (("amount", request.amount), ("duration", duration)):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise BadValue(f"{number!r} is no {what}", hint="give a number above 0")
        if isinstance(number, int) and number > MOST_FINITE:  # as a float it may be none
            raise BadValue(f"the {what} is too large", hint="give a smaller number")
    if not duration > 0:
        raise BadValue(f"a boost cannot last {duration:g} s", hint="give seconds above 0; None: an hour")
    if not isinstance(request.exclusive, bool):
        raise BadValue(f"exclusive is {request.exclusive!r}", hint="give True or False")
    priority = request.priority
    return {
        "target": request.target_node,
        "kind": kind,
        "amount": float(request.amount),
        "priority": priority if isinstance(priority, Priority) else parse_priority(priority),
        "duration": float(duration),
        "source": request.preferred_source or "",
        "only_source": request.only_source or "",
        "exclusive": request.exclusive,
    }


def _boost(one: BoostView) -> ResourceBoost | None:
    job, lent, node = one.job, one.job.spec.boost, one.node
    if lent is None:
        return None
    limit = job.spec.time_limit if job.state is not State.STARTING else 0.0
    return ResourceBoost(
        boost_id=job.id,
        source_node=job.node,
        target_node=lent.target,
        resource_type=lent.kind,
        amount=lent.amount / (GIB if lent.kind is ResourceType.MEMORY else MILLI),
        priority=job.request.priority,
        allocated_at=datetime.fromtimestamp(job.started or job.submitted, UTC),
        expires_at=datetime.fromtimestamp(job.started + limit, UTC) if job.started and limit else None,
        is_active=job.state is State.RUNNING,
        state=job.state,
        ray_node_id=node.id if node is not None else "",
        ray_status=node.status if node is not None else "",
        differs=one.differs,
        exclusive=lent.exclusive,
        ending=one.ending,
    )


def _plain(one: ResourceBoost) -> dict[str, Any]:
    return {
        "boost_id": one.boost_id,
        "source_node": one.source_node,
        "target_node": one.target_node,
        "resource_type": one.resource_type.value,
        "amount": one.amount,
        "priority": one.priority.word,
        "state": one.state.value,
        "allocated_at": one.allocated_at.timestamp(),
        "expires_at": one.expires_at.timestamp() if one.expires_at is not None else None,
        "ray_node_id": one.ray_node_id,
        "ray_status": one.ray_status,
        "differs": one.differs,
        "exclusive": one.exclusive,
        "ending": one.ending,
    }


GONE = "REMOVED"
"""Ray's state of a removed group, which it still lists."""


def boost_scheduling_options(boost_id: str) -> dict[str, Any]:
    """Options for a Ray task or actor to run on this boost only:
    `work.options(**boost_scheduling_options(id)).remote()`. For an exclusive boost its placement group, which a
    connected program (`ray.init`) can see, in any namespace; else a label. Raises BadValue."""
    selector = _selector(boost_id)
    ray = _connected()
    found = _group(ray, boost_id)
    if ray is None or found is None:
        return {"label_selector": selector}
    return {"scheduling_strategy": ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(found)}


def boost_placement_group_options(boost_id: str, bundles: int = 1) -> dict[str, Any]:
    """Return options for a placement group of `bundles` bundles, all on this boost: `placement_group(bundles,
    **boost_placement_group_options(id, len(bundles)))`. Raises BadValue, also for an exclusive boost: it has a group of
    its own that covers all of it, so that Ray would wait forever."""
    selector = _selector(boost_id)
    if _group(_connected(), boost_id) is not None:
        raise BadValue(
            f"{boost_id} has a placement group already",
            why="it is an exclusive boost: its group has all of it, and no other finds room there",
            hint=f"give tasks boost_scheduling_options({boost_id!r})",
        )
    return {"strategy": "STRICT_PACK", "bundle_label_selector": [selector] * bundles}


def _selector(boost_id: str) -> dict[str, str]:
    # Ray would wait forever, silently, for a label that no node has.
    if not isinstance(boost_id, str) or not is_boost_id(boost_id):
        raise BadValue(
            f"{boost_id!r} is no id of a boost",
            why="Ray compares the whole of it, and waits forever for one that is not there",
            hint="give the id that the request returned, such as j-xnbj3nh7tusz; grid boost status shows it",
        )
    return {LABEL: boost_id}


def _connected() -> Any:
    """The program's own Ray, if loaded and connected; we never import it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


def _group(ray: Any, boost_id: str) -> Any:
    """The placement group of this boost, among all: `get_placement_group` sees only the program's own namespace. None:
    it has none, or Ray is not connected."""
    if ray is None:
        return None
    for number, one in ray.util.placement_group_table().items():
        if one["name"] == group_name(boost_id) and one["state"] != GONE:
            groups = sys.modules["ray.util.placement_group"]  # by that name `ray.util` has a function
            return groups.PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))
    return None
