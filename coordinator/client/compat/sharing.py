"""`ResourceSharingManager`: capacity borrowed and given back, by boosts where there is a Ray cluster and by holds where
there is none, over one client connection."""

import logging
import socket
from typing import Any

from distributed_grid.config.settings import ClusterConfig
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.boosts import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.coordinator.client.compat.connected import Connected, borrowed, given_back
from distributed_grid.coordinator.client.submission import HOLD_DURATION
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.history.summary import performance
from distributed_grid.protocol.jobs import JobSpec, JobView, Priority, State, parse_priority
from distributed_grid.protocol.nodes import AllocationView, OfferView
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType, parse_amount, parse_kind
from distributed_grid.protocol.sharing.moves import Move
from distributed_grid.protocol.text import parse_duration, unknown_node

_HELD = frozenset(State) - {State.WAITING, State.ENDED}

log = logging.getLogger("distributed_grid.sharing")


class ResourceSharingManager(Connected):
    """Borrows capacity for a node, and gives it back. What is borrowed is a boost where the grid has a Ray cluster;
    else a hold, which the caller's jobs take by `within=` (`grid run-shared --in`). Both expire.

    It connects on first use; `async with` and `shutdown()` disconnect, and what was borrowed stays. A given `client` is
    used as it is: its owner connects and closes it."""

    def __init__(self, cluster_config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        super().__init__(cluster_config, client)
        self.boosts = ResourceBoostManager(self.config, self.client)

    async def request_resource(
        self,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: Priority | str = Priority.NORMAL,
        duration: float | str | None = None,
        *,
        duration_minutes: float | None = None,
    ) -> str | None:
        """Borrow cores, GPUs or GB of other nodes for this one, for an hour, a `duration` in seconds or as `"30m"`, or
        `duration_minutes`. Its id once it is lent or held; None if no node has it now, or ever could: the log says why.
        Raises BadValue for an invalid request or an unknown node, SharingDisabled, other GridErrors of the grid. If
        the caller is cancelled, nothing stays borrowed."""
        self.config.require_sharing()
        kind, wanted = parse_kind(resource_type), amount_of(resource_type, amount)
        level = priority if isinstance(priority, Priority) else parse_priority(priority)
        lasts = _seconds(duration_minutes, duration)
        await self.initialize()
        if (await self.client.boosts()).address:
            number = wanted.memory / GIB if kind is ResourceType.MEMORY else (wanted.cpu or wanted.gpu) / MILLI
            return await self.boosts.request_boost(ResourceBoostRequest(node_id, kind, number, level, lasts))
        nodes = {node.facts.name: node.facts.hostname for node in await self.client.nodes()}
        if node_id not in (*nodes, *nodes.values(), *(one.name for one in self.config.nodes), socket.gethostname()):
            raise unknown_node(str(node_id), nodes, "Target node not found in cluster")
        itself = tuple(name for name, host in nodes.items() if node_id in (name, host))
        return await self.hold(
            wanted, priority=level, duration=HOLD_DURATION if lasts is None else lasts, exclude=itself
        )

    async def hold(self, resources: Resources, **options: Any) -> str | None:
        """Hold this amount of one node (options as in `describe_hold`): the id once it is held; None if no node has it
        now, or ever could: the log says why."""
        await self.initialize()
        asking = self.client.request_hold(resources=resources, **options)
        return await borrowed(self.client, asking, _HELD, "hold", log)

    async def release_resource(self, allocation_id: str | None) -> bool:
        """Give back a borrowed resource by the full id or name of its allocation. True once that is on the
        coordinator's disk; False if it has ended or is unknown, which the log says. Raises BadValue if it is neither a
        boost nor a hold."""
        await self.initialize()
        return await given_back(self.client, allocation_id, "neither a boost nor a hold", _is_borrowed, log)

    async def get_resource_status(self) -> dict[str, Any]:
        """Plain values: what is offered (`offers`) and lent (`allocations`), the `holds` with what they hold and when
        they expire, the `boosts`, and the grid's `performance`."""
        await self.initialize()
        shared, held, status = await self.client.shared(), await self.client.holds(), await self.client.status()
        return {
            "offers": [plain_offer(one) for one in shared.offers],
            "allocations": [plain_allocation(one) for one in shared.allocations],
            "holds": [_hold(view) for view in held],
            "boosts": await self.boosts.get_boost_status(),
            "performance": performance(status).plain(),
        }


def _is_borrowed(spec: JobSpec) -> bool:
    return spec.boost is not None or spec.hold


def amount_of(kind: ResourceType | str, amount: float | int | str) -> Resources:
    """Cores, GPUs or GB as resources. Raises BadValue."""
    wanted = parse_kind(kind)
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        raise BadValue(f"{amount!r} is not an amount", hint="give a positive number such as 1, 0.5 or 4")
    text = repr(round(amount, 9)) if isinstance(amount, float) else str(amount)
    return parse_amount(wanted, text)


def _seconds(minutes: float | None, duration: float | str | None) -> float | None:
    """Convert a number of minutes, or a duration, to seconds; None: neither was given. Raises BadValue."""
    if minutes is not None and duration is not None:
        raise BadValue("duration_minutes and duration are two durations", hint="give one of them")
    if isinstance(duration, str):
        return parse_duration(duration)
    given = minutes if duration is None else duration
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        raise BadValue(f"{given!r} is no duration", hint="give minutes, or duration= with seconds or text such as 30m")
    return given * 60 if duration is None else given


def _hold(view: JobView) -> dict[str, Any]:
    held = view.grant.resources if view.grant is not None else view.request.resources
    return {
        "id": view.id,
        "name": view.spec.name,
        "user": view.user,
        "node": view.node,
        "state": view.state.value,
        **units(held),
        "priority": view.request.priority.word,
        "expires": view.started + view.spec.time_limit if view.started else None,
    }


def units(amount: Resources) -> dict[str, float]:
    """Cores, GB and GPUs."""
    return {"cpu": amount.cpu / MILLI, "memory_gb": amount.memory / GIB, "gpu": amount.gpu / MILLI}


def plain_offer(view: OfferView) -> dict[str, Any]:
    """An offer in plain values."""
    return {
        "node": view.node,
        "state": str(view.state),
        **units(view.room),
        "cores": list(view.cores),
        "virtual": view.virtual,
        "gpus": [
            {
                "uuid": gpu.uuid,
                "index": gpu.index,
                "model": gpu.model,
                "memory_gb": gpu.memory / GIB,
                "memory_free_gb": gpu.memory_free / GIB,
                "share": gpu.milli / MILLI,
            }
            for gpu in view.gpus
        ],
        "expires_in": view.expires_in,
        "withheld": [{"what": one.what, "why": one.why} for one in view.withheld],
    }


def plain_allocation(view: AllocationView) -> dict[str, Any]:
    """An allocation in plain values."""
    return {
        "id": view.id,
        "job": view.job,
        "name": view.name,
        "user": view.user,
        "node": view.node,
        "state": str(view.state),
        **units(view.grant.resources),
        "cores": list(view.grant.cores),
        "gpus": [gpu.uuid for gpu in view.grant.gpus],
        "priority": view.priority,
        "since": view.since,
        "ends": view.ends,
    }


def plain_move(move: Move) -> dict[str, Any]:
    """A move of rebalancing in plain values; times in seconds since the epoch."""
    return {
        "kind": move.kind.value,
        "boost": move.boost,
        "job": move.job,
        "source": move.source,
        "target": move.target,
        **units(move.resources),
        "reason": move.reason,
        "gain": move.gain,
        "cost": move.cost,
        "at": move.at,
    }
