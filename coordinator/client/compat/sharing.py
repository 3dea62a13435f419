"""`ResourceSharingOrchestrator`: the API of the intelligent resource sharing guide, as far as it borrows and looks."""

import asyncio
import contextlib
import logging
from typing import Any

from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.boosts import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Priority, parse_priority
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.resources import GIB, MILLI, ResourceType, parse_kind

log = logging.getLogger("distributed_grid.sharing")


class ResourceSharingOrchestrator:
    """Borrows for a node's Ray cluster, and sees how all nodes are.

    `initialize()` connects, `start()` begins to look at the nodes, every `monitoring_interval_seconds`, and `stop()`
    leaves; what was borrowed stays until it expires or is released. `ssh_manager` is taken since the guide passes one,
    and not used: nodes are reached by their agents. `boosts` and `client` are the fuller APIs behind it.
    """

    def __init__(self, cluster_config: ClusterConfig | None = None, ssh_manager: object = None) -> None:
        self.config = cluster_config or load()
        self.client = GridClient(self.config.client_url())
        self.boosts = ResourceBoostManager(self.config, self.client)
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def initialize(self) -> None:
        """Connect. Raises GridUnavailable where no coordinator answers."""
        await self.client.connect()

    async def start(self) -> None:
        """Look at the nodes, and go on with that. Raises GridError where that cannot be done now."""
        await self._look()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again(), name="snapshots")

    async def stop(self) -> None:
        """Look no more, and leave."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await self.client.close()

    async def __aenter__(self) -> "ResourceSharingOrchestrator":
        await self.initialize()
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def get_cluster_status(self) -> dict[str, Any]:
        """How the grid is, as plain values: its `nodes` (as the snapshots have them), `jobs` that live, by state, the
        `boosts` as `ResourceBoostManager.get_boost_status` has them, and in `trouble` why no jobs are taken, if so."""
        status = await self.client.status()
        self._snapshots = {node.facts.name: _snapshot(node) for node in status.nodes}
        return {
            "grid": status.grid,
            "nodes": self.get_node_resource_snapshots(),
            "jobs": dict(status.counts),
            "boosts": await self.boosts.get_boost_status(),
            "trouble": status.trouble,
        }

    async def request_resources(
        self,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: Priority | str = Priority.NORMAL,
        duration_minutes: float = 60.0,
    ) -> str | None:
        """Borrow cores, GPUs or GB for this node: a boost (docs/boosts.md). Its id once Ray shows it; None where no
        node has it now, which the log says with the reason. Errors are those of `ResourceBoostManager`."""
        if isinstance(duration_minutes, bool) or not isinstance(duration_minutes, int | float):
            raise BadValue(f"{duration_minutes!r} is no duration", hint="give minutes")
        level = priority if isinstance(priority, Priority) else parse_priority(priority)
        request = ResourceBoostRequest(node_id, parse_kind(resource_type), amount, level, duration_minutes * 60)
        return await self.boosts.request_boost(request)

    async def release_resources(self, allocation_id: str) -> bool:
        """Give back what was borrowed: as `ResourceBoostManager.release_boost`."""
        return await self.boosts.release_boost(allocation_id)

    def get_node_resource_snapshots(self) -> dict[str, dict[str, Any]]:
        """The nodes as they were at the last look, by name; empty before `start()`. Of each its `state` and, for `cpu`
        (cores), `memory_gb` and `gpu` (devices), how much it has (`total`), offers and has lent; of cores and memory
        also what the grid's jobs (`own`) and everybody else (`foreign`) use."""
        return dict(self._snapshots)

    async def _look(self) -> None:
        self._snapshots = {node.facts.name: _snapshot(node) for node in await self.client.nodes()}

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(self.config.resource_sharing.monitoring_interval_seconds)
            try:
                await self._look()
            except GridError as error:
                log.warning("the nodes cannot be looked at: %s", error.what)
                with contextlib.suppress(GridError):
                    await self.client.connect()


def _snapshot(node: NodeView) -> dict[str, Any]:
    facts, sample, offered, lent = node.facts, node.sample, node.offered, node.lent
    return {
        "state": node.state.value,
        "cpu": {
            "total": float(len(facts.cores)),
            "own": sample.own_cpu if sample is not None else 0.0,
            "foreign": sample.foreign_cpu if sample is not None else 0.0,
            "offered": offered.cpu / MILLI,
            "lent": lent.cpu / MILLI,
        },
        "memory_gb": {
            "total": facts.memory / GIB,
            "own": sample.memory_own / GIB if sample is not None else 0.0,
            "foreign": sample.memory_foreign / GIB if sample is not None else 0.0,
            "offered": offered.memory / GIB,
            "lent": lent.memory / GIB,
        },
        "gpu": {"total": float(len(facts.gpus)), "offered": offered.gpu / MILLI, "lent": lent.gpu / MILLI},
    }
