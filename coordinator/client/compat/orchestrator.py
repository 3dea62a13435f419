"""The orchestrators of the guides over one client connection: `GridOrchestrator` runs commands on borrowed capacity,
`ResourceSharingOrchestrator` borrows for a node's Ray cluster and monitors the nodes."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient, describe_job
from distributed_grid.coordinator.client.compat.boosts import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.coordinator.client.output import JobResult
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Priority, State, parse_priority
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType, parse_amount, parse_kind
from distributed_grid.protocol.text import parse_duration

_CANCEL_SECONDS = 5.0  # seconds to cancel the job of a caller who was cancelled


class GridOrchestrator:
    """Runs commands on borrowed capacity.

    `initialize()` connects and `shutdown()` disconnects; `async with GridOrchestrator(config)` does both. The default
    configuration is the one that `grid` would find. `boosts` lends capacity to a Ray cluster, and `client` is the full
    API."""

    def __init__(self, config: ClusterConfig | None = None) -> None:
        self.config = config or load()
        self.client = GridClient(self.config.client_url(), trusts=self.config.coordinator.user)
        self.boosts = ResourceBoostManager(self.config, self.client)
        self._shipping: asyncio.Task[str] | None = None
        self._shipping_next: dict[Path, asyncio.Task[str]] = {}
        self._naming: dict[str, asyncio.Lock] = {}

    async def initialize(self) -> None:
        """Connect. Raises GridUnavailable if no coordinator answers."""
        await self.client.connect()

    async def shutdown(self) -> None:
        """Disconnect. Running jobs continue."""
        await self.client.close()

    async def __aenter__(self) -> "GridOrchestrator":
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

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
            resources=_amount(resource_type, amount),
            priority=priority,
            nodes=nodes,
            env=env,
            workdir=workdir,
            time_limit=time_limit,
            immediate=immediate,
            name=job_id or "",
        )
        if ship and not workdir:
            spec = replace(submission.spec, bundle=await self._ship(Path(directory)))
            submission = replace(submission, spec=spec)
        starting = asyncio.ensure_future(self._start(submission))
        try:
            job, _ = await asyncio.shield(starting)
            return await self.client.result(job)
        except asyncio.CancelledError:
            with contextlib.suppress(GridError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    job, started = await starting  # it may run although we have not heard of it yet
                    if started:
                        await self.client.cancel(job, reason="its caller was cancelled")
            raise

    async def get_shared_resource_status(self) -> dict[str, list[dict[str, Any]]]:
        """What is offered and what is lent: `{"offers": [...], "allocations": [...]}`, plain values only."""
        shared = await self.client.shared()
        return {
            "offers": [_offer(one) for one in shared.offers],
            "allocations": [_allocation(one) for one in shared.allocations],
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
        """This user's live job of that name."""
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
        if before is not None:
            await asyncio.wait([before])
        del self._shipping_next[directory]  # later callers need a newer scan
        return await self.client.ship(directory, ceiling=self.config.shipping.ceiling)


def _amount(kind: ResourceType | str, amount: float | int | str) -> Resources:
    wanted = parse_kind(kind)
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        raise BadValue(f"{amount!r} is not an amount", hint="give a positive number such as 1, 0.5 or 4")
    text = repr(round(amount, 9)) if isinstance(amount, float) else str(amount)
    return parse_amount(wanted, text)


def _offer(view: OfferView) -> dict[str, Any]:
    return {
        "node": view.node,
        "state": str(view.state),
        **_units(view.room),
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


def _allocation(view: AllocationView) -> dict[str, Any]:
    return {
        "id": view.id,
        "job": view.job,
        "name": view.name,
        "user": view.user,
        "node": view.node,
        "state": str(view.state),
        **_units(view.grant.resources),
        "cores": list(view.grant.cores),
        "gpus": [gpu.uuid for gpu in view.grant.gpus],
        "priority": view.priority,
        "since": view.since,
        "ends": view.ends,
    }


def _units(amount: Resources) -> dict[str, float]:
    return {"cpu": amount.cpu / MILLI, "memory_gb": amount.memory / GIB, "gpu": amount.gpu / MILLI}


log = logging.getLogger("distributed_grid.sharing")


class ResourceSharingOrchestrator:
    """Borrows for a node's Ray cluster, and monitors all nodes.

    `initialize()` connects, `start()` begins to poll the nodes every `monitoring_interval_seconds`, and `stop()`
    disconnects; what was borrowed stays until it expires or is released. `ssh_manager` is accepted since the guide
    passes one, and not used. `boosts` and `client` are the full APIs."""

    def __init__(self, cluster_config: ClusterConfig | None = None, ssh_manager: object = None) -> None:
        self.config = cluster_config or load()
        self.client = GridClient(self.config.client_url(), trusts=self.config.coordinator.user)
        self.boosts = ResourceBoostManager(self.config, self.client)
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def initialize(self) -> None:
        """Connect. Raises GridUnavailable if no coordinator answers."""
        await self.client.connect()

    async def start(self) -> None:
        """Poll the nodes, now and regularly. Raises GridError if that fails now."""
        await self._poll()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_regularly(), name="snapshots")

    async def stop(self) -> None:
        """Stop polling and disconnect."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._polling = None
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
        `ResourceBoostManager.get_boost_status`, and in `trouble` why no jobs are accepted."""
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
        duration_minutes: float | None = None,
        duration: float | str | None = None,
    ) -> str | None:
        """Borrow cores, GPUs or GB for this node: a boost (docs/boosts.md), for an hour, `duration_minutes`, or a
        `duration` in seconds or as `30m`. Its id once Ray shows it; None if no node has it now: the log says why.
        Errors are those of `ResourceBoostManager`."""
        level = priority if isinstance(priority, Priority) else parse_priority(priority)
        seconds = _seconds(duration_minutes, duration)
        request = ResourceBoostRequest(node_id, parse_kind(resource_type), amount, level, seconds)
        return await self.boosts.request_boost(request)

    async def release_resources(self, allocation_id: str) -> bool:
        """Release what was borrowed: as `ResourceBoostManager.release_boost`."""
        return await self.boosts.release_boost(allocation_id)

    def get_node_resource_snapshots(self) -> dict[str, dict[str, Any]]:
        """The nodes at the last poll, by name; empty before `start()`. Each with its `state` and, for `cpu` (cores),
        `memory_gb` and `gpu` (devices), the `total`, what it offers and has lent; for cores and memory also the use by
        the grid's jobs (`own`) and by everybody else (`foreign`)."""
        return dict(self._snapshots)

    async def _poll(self) -> None:
        self._snapshots = {node.facts.name: _snapshot(node) for node in await self.client.nodes()}

    async def _poll_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.config.resource_sharing.monitoring_interval_seconds)
            try:
                await self._poll()
            except GridError as error:
                log.warning("the nodes cannot be looked at: %s", error.what)
                with contextlib.suppress(GridError):
                    await self.client.connect()


def _seconds(minutes: float | None, duration: float | str | None) -> float | None:
    """What was given as minutes, or as a duration; None: neither. Raises BadValue."""
    if minutes is not None and duration is not None:
        raise BadValue("duration_minutes and duration are two durations", hint="give one of them")
    if isinstance(duration, str):
        return parse_duration(duration)
    given = minutes if duration is None else duration
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise BadValue(f"{given!r} is no duration", hint="give minutes, or duration= with seconds or text such as 30m")
    return given * 60 if duration is None else given


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
