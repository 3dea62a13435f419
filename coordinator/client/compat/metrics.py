"""`ResourceMetricsCollector`: what nodes have, offer, lend and use now and used before, and the grid in a few numbers,
over one client connection."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.history.summary import performance, summary, trend_of
from distributed_grid.protocol.history.trends import Measured, NodeTrends, Trend
from distributed_grid.protocol.messages import Status
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType
from distributed_grid.protocol.sharing.pressure import Pressure
from distributed_grid.protocol.text import suggestion

WINDOWS = ("5m", "15m", "1h")
"""The windows of the guide: short-term changes, medium-term patterns, long-term trends."""
NOW = "5m"
"""The window of summaries and snapshots."""

log = logging.getLogger("distributed_grid.sharing")


class ResourceMetricsCollector:
    """Monitors the nodes. `start()` polls them, now and every `monitoring_interval_seconds`, and `stop()` ends that;
    `async with` does both. Trends and summaries are asked for when they are called for: the coordinator keeps them.

    A given `client` is used as it is: its owner connects and closes it."""

    def __init__(self, cluster_config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        self.config = cluster_config or load()
        self.client = client or GridClient(self.config.client_url(), trusts=self.config.coordinator.user)
        self._own = client is None
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Poll the nodes, now and regularly. Raises GridError if that fails now."""
        await self._connect()
        await self._poll()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_regularly(), name="snapshots")

    async def stop(self) -> None:
        """Stop polling, and disconnect."""
        polling, self._polling = self._polling, None
        if polling is not None and not polling.done():  # it has ended where its event loop was closed
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        if self._own:
            await self.client.close()

    async def __aenter__(self) -> "ResourceMetricsCollector":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def get_all_latest_snapshots(self) -> dict[str, dict[str, Any]]:
        """The nodes at the last poll, by name; empty before `start()`. Each with its `state`, its `pressure` and that
        of its owner alone (0 to 1; None: not measured), and, for `cpu` (cores), `memory_gb` and `gpu` (devices), the
        `total`, what it offers and has lent; for cores and memory also the use by the grid's jobs (`own`) and by
        everybody else (`foreign`)."""
        return dict(self._snapshots)

    async def get_resource_trend(self, node_id: str, resource_type: ResourceType | str) -> dict[str, Any]:
        """Return the trend of the use of a node's cpu, memory or gpu (also gpu-memory, disk, net) over 5 and 15 minutes
        and an hour: by window `level`, `spread`, `p95`, `slope_per_hour`, `last`, the `owner`'s level, and a `forecast`
        (`value` in `ahead` seconds, with `low` and `high`, where nine of ten came true) or why there is none
        (`unsure`). Use is a part of what the node has. A window with too little measured says `why`. Raises GridError
        for an unknown node, BadValue for an unknown resource."""
        what = _measured(resource_type)
        if not isinstance(node_id, str) or not node_id:
            raise BadValue(f"{node_id!r} is no node", hint="give its name, as get_all_latest_snapshots has it")
        await self._connect()
        windows: dict[str, Any] = {}
        for window in WINDOWS:
            (node,) = (await self.client.trends(node_id, window)).nodes
            windows[window] = _trend(trend_of(node, what))
        return {"node": node_id, "resource": what.value, "windows": windows}

    async def get_cluster_summary(self) -> dict[str, Any]:
        """The grid in a few numbers, in plain values: `nodes` by state; `total`, `offered` and `lent` cores, GB and
        GPUs of those that are up; `used`, the part in use by all and by owners; `pressure` (mean, of all and of
        owners) and the `busiest` node; live `jobs` by state; and the `performance`."""
        await self._connect()
        status, trends = await self.client.status(), (await self.client.trends(window=NOW)).nodes
        found = summary(status.nodes, trends)
        pressure = found.pressure
        return {
            "nodes": dict(found.states),
            "total": _units(found.total),
            "offered": _units(found.offered),
            "lent": _units(found.lent),
            "used": {what.value: {"all": parts[0], "owner": parts[1]} for what, parts in found.used.items()},
            "pressure": {"all": pressure[0], "owner": pressure[1]} if pressure is not None else None,
            "busiest": found.busiest,
            "jobs": dict(status.counts),
            "performance": performance(status).plain(),
        }

    async def look(self) -> Status:
        """Poll the nodes now; returns the status that tells of them."""
        await self._connect()
        return await self._poll()

    async def _connect(self) -> None:
        if self._own:
            await self.client.connect()

    async def _poll(self) -> Status:
        status, trends = await self.client.status(), (await self.client.trends(window=NOW)).nodes
        told = {one.node: one for one in trends}
        self._snapshots = {node.facts.name: _snapshot(node, told.get(node.facts.name)) for node in status.nodes}
        return status

    async def _poll_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.resource_sharing.monitoring_interval_seconds)
            try:
                await self._poll()
            except GridError as error:
                log.warning("the nodes cannot be looked at: %s", error.what)
                with contextlib.suppress(GridError):
                    await self.client.connect()


def _measured(kind: ResourceType | str) -> Measured:
    word = str(kind.value if isinstance(kind, ResourceType) else kind).strip().lower().replace("_", "-")
    try:
        return Measured("memory" if word == "mem" else word)
    except ValueError:
        hint = f"{suggestion(word, [*Measured])}there are {', '.join(Measured)}"
        raise BadValue(f"there is no trend of {kind!r}", hint=hint) from None


def _trend(trend: Trend | None) -> dict[str, Any]:
    if trend is None:
        return {"why": "the node has none", "buckets": 0}
    found: dict[str, Any] = {"why": trend.why, "buckets": trend.buckets, "step": trend.step}
    if trend.why:
        return found
    told = trend.forecast
    forecast: Mapping[str, Any] | None = asdict(told) if told is not None else None
    figures = {name: getattr(trend, name) for name in ("level", "spread", "p95", "last", "owner")}
    return found | figures | {"slope_per_hour": trend.slope, "forecast": forecast, "unsure": trend.unsure}


def _units(amount: Resources) -> dict[str, float]:
    return {"cpu": amount.cpu / MILLI, "memory_gb": amount.memory / GIB, "gpu": amount.gpu / MILLI}


def _score(pressure: Pressure | None) -> float | None:
    return pressure.score if pressure is not None else None


def _snapshot(node: NodeView, trends: NodeTrends | None) -> dict[str, Any]:
    facts, sample, offered, lent = node.facts, node.sample, node.offered, node.lent
    return {
        "state": node.state.value,
        "pressure": _score(trends.all) if trends is not None else None,
        "owner_pressure": _score(trends.owner) if trends is not None else None,
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
