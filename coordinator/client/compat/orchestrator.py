"""`GridOrchestrator`: the API of the resource sharing guide, over one client connection."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient, describe_job
from distributed_grid.coordinator.client.compat.boosts import ResourceBoostManager
from distributed_grid.coordinator.client.output import JobResult
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Priority, State
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.nodes import AllocationView, OfferView
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType, parse_amount, parse_kind

_GOODBYE = 5.0  # seconds to cancel the job of a caller who was cancelled


class GridOrchestrator:
    """Runs commands on borrowed capacity.

    `initialize()` connects and `shutdown()` leaves; `async with GridOrchestrator(config)` does both. Without a
    configuration the one that `grid` would find is used. `boosts` lends capacity to a Ray cluster, and `client` is the
    fuller API behind it.
    """

    def __init__(self, config: ClusterConfig | None = None) -> None:
        self.config = config or load()
        self.client = GridClient(self.config.client_url())
        self.boosts = ResourceBoostManager(self.config, self.client)
        self._shipping: asyncio.Task[str] | None = None
        self._shipping_next: dict[Path, asyncio.Task[str]] = {}
        self._naming: dict[str, asyncio.Lock] = {}

    async def initialize(self) -> None:
        """Connect. Raises GridUnavailable where no coordinator answers."""
        await self.client.connect()

    async def shutdown(self) -> None:
        """Leave. Jobs that are still running run on."""
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

        A job that fails is not an exception: look at `result.success` and `result.exit_code`. What cannot be asked
        raises BadValue; what no node could ever meet, or a grid that cannot be reached, another GridError.

        The current directory (`directory`) is shipped along unless `ship` is false or `workdir` names a directory on
        the node. `job_id` becomes the job's name; where this user's job of that name is not over yet and has the same
        command, its result is waited for instead of starting it a second time. A caller who is cancelled cancels the
        job it started.
        """
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
                async with asyncio.timeout(_GOODBYE):
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
        """This user's job of that name that is not over yet."""
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
        """Ship a directory as it is now or a little later: callers of the same moment share one look at it."""
        task = self._shipping_next.get(directory)
        if task is None:
            task = asyncio.create_task(self._ship_after(directory, self._shipping))
            self._shipping_next[directory] = self._shipping = task
        return await asyncio.shield(task)

    async def _ship_after(self, directory: Path, before: "asyncio.Task[str] | None") -> str:
        if before is not None:
            await asyncio.wait([before])
        del self._shipping_next[directory]  # who comes from now on wants a newer look
        return await self.client.ship(directory)


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
