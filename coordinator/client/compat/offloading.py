"""`EnhancedOffloadingExecutor`: runs a command as a job on other nodes' spare resources."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_grid.config.settings import ClusterConfig, OffloadingMode
from distributed_grid.coordinator.client.compat.connected import Connected
from distributed_grid.coordinator.client.compat.metrics import ResourceMetricsCollector
from distributed_grid.coordinator.client.compat.sharing import plain_move
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.text import CHARS, unknown_node


@dataclass(frozen=True, kw_only=True)
class OffloadingRecommendation:
    """A command with its cores, GB of memory and GPUs. `source_node`: the node to relieve; empty: this machine, with or
    without an agent. `target_node`: the preferred node; another is used if it has no capacity. `directory` is shipped;
    None: nothing is."""

    command: str | Sequence[str]
    cpu: float = 1.0
    memory_gb: float = 0.0
    gpu: float = 0.0
    source_node: str = ""
    target_node: str = ""
    priority: Priority | str = Priority.MEDIUM
    directory: str | Path | None = "."
    env: Mapping[str, str] = field(default_factory=dict)


class EnhancedOffloadingExecutor(Connected):
    """Runs the command of a recommendation as a job of the grid. `mode` says where it may run:

    `offload_only` on any node but the source; `share_and_offload` on any, by the grid's strategy; `dynamic_balancing`
    on any, preferring the one that lends most.

    `ssh_manager` is accepted since the guide passes one, and not used: nodes are reached by their agents. It connects
    on first use; `async with` disconnects at its end, and jobs continue. `metrics` has the trends of nodes, `client` is
    the full API."""

    def __init__(
        self,
        ssh_manager: object = None,
        cluster_config: ClusterConfig | None = None,
        mode: OffloadingMode | str = OffloadingMode.DYNAMIC_BALANCING,
    ) -> None:
        super().__init__(cluster_config)
        try:
            self.mode = OffloadingMode(mode)
        except ValueError:
            raise BadValue(f"unknown mode {mode!r}", hint=f"use one of {', '.join(OffloadingMode)}") from None
        self.metrics = ResourceMetricsCollector(self.config, self.client)

    async def execute_offloading(self, recommendation: OffloadingRecommendation) -> str:
        """Submit it and return the job's id, once that is on the coordinator's disk; `client.result(id)` waits for its
        end. Raises BadValue for an invalid recommendation or an unknown node; RequestRefused for what no node could
        ever run."""
        self.config.require_sharing()
        if not isinstance(recommendation, OffloadingRecommendation):
            raise BadValue(f"{recommendation!r:.80} is no recommendation", hint="give an OffloadingRecommendation")
        await self.initialize()
        where = await self._where(recommendation)
        bundle = ""
        if recommendation.directory is not None:
            bundle = await self.client.ship(recommendation.directory, ceiling=self.config.shipping.ceiling)
        return await self.client.submit(
            recommendation.command,
            cpus=recommendation.cpu or None,
            memory=recommendation.memory_gb or None,
            gpus=recommendation.gpu or None,
            priority=recommendation.priority,
            env=recommendation.env,
            bundle=bundle,
            **where,
        )

    async def get_moves(self) -> list[dict[str, Any]]:
        """Return the latest automatic moves of the grid, the oldest first, with their reasons, in plain values."""
        await self.initialize()
        return [plain_move(one) for one in (await self.client.balancing()).recent]

    async def _where(self, recommendation: OffloadingRecommendation) -> dict[str, Any]:
        source, target = recommendation.source_node, recommendation.target_node
        where: dict[str, Any] = {"nodes": (target,) if target else ()}
        relieved = await self._source(source, target)
        match self.mode:
            case OffloadingMode.OFFLOAD_ONLY:
                where["exclude"] = relieved
            case OffloadingMode.DYNAMIC_BALANCING:
                where["strategy"] = Strategy.LOAD_BALANCED.value
            case OffloadingMode.SHARE_AND_OFFLOAD:
                pass
        return where

    async def _source(self, named: str, target: str) -> tuple[str, ...]:
        """The nodes to relieve: none if that is this machine, without an agent. Raises BadValue for an unknown node,
        before anything is shipped."""
        host = socket.gethostname()
        nodes = {node.facts.name: node.facts.hostname for node in await self.client.nodes()}
        for role, name in (("source", named), ("target", target)):
            if name and name not in nodes and (name != host or role == "target"):
                raise unknown_node(name, nodes, f"unknown {role} node {name[:CHARS]!r}")
        if named in nodes:
            return (named,)
        return tuple(name for name, at in nodes.items() if at == host)
