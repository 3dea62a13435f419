"""The orchestrators of the guides over one client connection: `GridOrchestrator` runs commands on borrowed capacity,
`ResourceSharingOrchestrator` borrows for a node's Ray cluster and monitors the nodes."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distributed_grid.config.places import as_path
from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient, describe_job
from distributed_grid.coordinator.client.compat.connected import CANCEL_SECONDS, Connected
from distributed_grid.coordinator.client.compat.metrics import ResourceMetricsCollector
from distributed_grid.coordinator.client.compat.predictor import ResourcePerformancePredictor
from distributed_grid.coordinator.client.compat.resources import DynamicResourceManager
from distributed_grid.coordinator.client.compat.scheduler import IntelligentScheduler
from distributed_grid.coordinator.client.compat.sharing import (
    ResourceSharingManager,
    amount_of,
    plain_allocation,
    plain_move,
    plain_offer,
)
from distributed_grid.coordinator.client.results import JobResult
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.history.summary import performance
from distributed_grid.protocol.jobs import Priority, State
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.resources import ResourceType


class GridOrchestrator(Connected):
    """Runs commands on borrowed capacity.

    `initialize()` connects and `shutdown()` disconnects; `async with GridOrchestrator(config)` does both. The default
    configuration is the one that `grid` would find. Its parts are `boosts`, `sharing`, `metrics`, `scheduler`,
    `resources` and `predictor`, over the same connection; `client` is the full API."""

    def __init__(self, config: ClusterConfig | None = None) -> None:
        super().__init__(config)
        self.metrics = ResourceMetricsCollector(self.config, self.client)
        self.sharing = ResourceSharingManager(self.config, self.client)
        self.scheduler = IntelligentScheduler(self.config, self.client)
        self.resources = DynamicResourceManager(self.config, self.client)
        self.predictor = ResourcePerformancePredictor(self.config, self.client)
        self.boosts = self.sharing.boosts
        self._shipping: asyncio.Task[str] | None = None
        self._shipping_next: dict[Path, asyncio.Task[str]] = {}
        self._naming: dict[str, asyncio.Lock] = {}

    async def shutdown(self) -> None:
        """Disconnect: it may be used in another event loop then. What was started stays."""
        await super().shutdown()
        self._shipping = None
        self._shipping_next.clear()
        self._naming.clear()

    async def run_with_shared_resources(
        self,
        command: str | Sequence[str],
        resource_type: ResourceType | str,
        amount: float | int | str,
        priority: str | Priority = "medium",
        job_id: str | None = None,
        *,
        nodes: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        ship: bool = True,
        directory: str | Path = ".",
        workdir: str = "",
        time_limit: float | str | None = None,
        immediate: bool = False,
    ) -> JobResult:
        """Run a command with borrowed cores, GB of memory, or GPUs, and wait for its result.

        A job that fails is not an exception: see `result.success` and `result.exit_code`. An invalid request raises
        BadValue; one that no node could ever meet, or an unreachable grid, another GridError.

        The current directory (`directory`) is shipped unless `ship` is false or `workdir` names a directory on the
        node. `job_id` becomes the job's name; if this user has a live job with that name and the same command, its
        result is awaited instead of starting another. If the caller is cancelled, the job it started is too."""
        self.config.require_sharing()
        submission = describe_job(
            command,
            resources=amount_of(resource_type, amount),
            priority=priority,
            nodes=nodes,
            env=env,
            workdir=workdir,
            time_limit=time_limit,
            immediate=immediate,
            name=job_id or "",
        )
        if ship and not workdir:
            spec = replace(submission.spec, bundle=await self._ship(as_path("directory", directory)))
            submission = replace(submission, spec=spec)
        starting = asyncio.ensure_future(self._start(submission))
        try:
            job, _ = await asyncio.shield(starting)
            return await self.client.result(job)
        except asyncio.CancelledError:
            with contextlib.suppress(GridError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    job, started = await starting  # it may run although we have not heard of it yet
                    if started:
                        await self.client.cancel(job, reason="its caller was cancelled")
            raise

    async def get_shared_resource_status(self) -> dict[str, list[dict[str, Any]]]:
        """Return the resources that are offered and lent: `{"offers": [...], "allocations": [...]}`, plain values
        only."""
        shared = await self.client.shared()
        return {
            "offers": [plain_offer(one) for one in shared.offers],
            "allocations": [plain_allocation(one) for one in shared.allocations],
        }

    # --- jobs with a name ---------------------------------------------------------------------------------------------

    async def _start(self, submission: Submission) -> tuple[str, bool]:
        """The job's id, and whether it is a new one."""
        name = submission.spec.name
        if not name:
            return (await self.client.submit_many([submission]))[0], True
        async with self._naming.setdefault(name, asyncio.Lock()):
            if (live := await self._living(name)) is not None:
                if live.spec.argv != submission.spec.argv:
                    raise BadValue(
                        f"the job_id {name!r} is taken",
                        why=f"{live.id} has it, is not over yet, and runs another command",
                        hint="use another job_id, or wait for that job",
                    )
                return live.id, False
            return (await self.client.submit_many([submission]))[0], True

    async def _living(self, name: str) -> Any:
        """Return this user's job of that name that has not ended."""
        try:
            view = await self.client.show(name)
        except RequestRefused as refused:
            if refused.code != "unknown-job":
                raise
            return None
        mine = view.user == self.client.user and view.spec.name == name
        return view if mine and view.state is not State.ENDED else None

    # --- shipping -----------------------------------------------------------------------------------------------------

    async def _ship(self, directory: Path) -> str:
        """Ship a directory as it is now or a little later: concurrent callers share one scan of it."""
        task = self._shipping_next.get(directory)
        if task is None:
            task = asyncio.create_task(self._ship_after(directory, self._shipping))
            self._shipping_next[directory] = self._shipping = task
        return await asyncio.shield(task)

    async def _ship_after(self, directory: Path, before: "asyncio.Task[str] | None") -> str:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._shipping_next.pop(directory, None)  # later callers need a newer scan
        return await self.client.ship(directory, ceiling=self.config.shipping.ceiling)


class ResourceSharingOrchestrator:
    """Borrows for a node, monitors all nodes, and schedules tasks.

    `initialize()` connects, `start()` begins to poll the nodes every `monitoring_interval_seconds`, and `stop()`
    disconnects; what was borrowed stays until it expires or is released. `ssh_manager` is accepted since the guide
    passes one, and not used. Its parts `metrics`, `sharing`, `scheduler` and `boosts`, and `client`, are the full
    APIs."""

    def __init__(self, cluster_config: ClusterConfig | None = None, ssh_manager: object = None) -> None:
        self.config = cluster_config or load()
        self.client = GridClient(self.config.client_url(), trusts=self.config.coordinator.user)
        self.metrics = ResourceMetricsCollector(self.config, self.client)
        self.sharing = ResourceSharingManager(self.config, self.client)
        self.scheduler = IntelligentScheduler(self.config, self.client)
        self.boosts = self.sharing.boosts

    async def initialize(self) -> None:
        """Connect. Raises GridUnavailable if no coordinator answers."""
        await self.client.connect()

    async def start(self) -> None:
        """Poll the nodes, now and regularly. Raises GridError if that fails now."""
        await self.metrics.start()

    async def stop(self) -> None:
        """Stop polling and disconnect."""
        await self.metrics.stop()
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
        """The grid's status in plain values: its `nodes` (as the snapshots), live `jobs` by state, the `boosts` as from
        `ResourceBoostManager.get_boost_status`, how it lends by itself (`mode`, `policy`, and its last `moves` with
        their reasons), the `performance`, and in `trouble` why no jobs are accepted."""
        status = await self.metrics.look()
        balancing = await self.client.balancing()
        return {
            "grid": status.grid,
            "nodes": self.get_node_resource_snapshots(),
            "jobs": dict(status.counts),
            "boosts": await self.boosts.get_boost_status(),
            "mode": balancing.balancing.mode.value,
            "policy": balancing.balancing.policy.value,
            "moves": [plain_move(one) for one in balancing.recent],
            "performance": performance(status).plain(),
            "trouble": status.trouble,
        }

    async def request_resources(
        self,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: Priority | str = Priority.NORMAL,
        duration_minutes: float | None = None,
        duration: float | str | None = None,
    ) -> str | None:
        """Borrow cores, GPUs or GB for this node for an hour, `duration_minutes`, or a `duration` in seconds or as
        `30m`: as `ResourceSharingManager.request_resource`, a boost where there is a Ray cluster and else a hold."""
        return await self.sharing.request_resource(
            node_id, resource_type, amount, priority, duration, duration_minutes=duration_minutes
        )

    async def release_resources(self, allocation_id: str | None) -> bool:
        """Release what was borrowed: as `ResourceSharingManager.release_resource`."""
        return await self.sharing.release_resource(allocation_id)

    def get_node_resource_snapshots(self) -> dict[str, dict[str, Any]]:
        """The nodes at the last poll: as `ResourceMetricsCollector.get_all_latest_snapshots`."""
        return self.metrics.get_all_latest_snapshots()
