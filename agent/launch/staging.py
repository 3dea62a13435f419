"""Prepares a launch for its start: measures again, fetches the shipped files, makes the folder. A problem of this node
declines the launch, so the job goes to another node; the job ends only for a cause that every node would have."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distributed_grid.agent.core.commands import Ready
from distributed_grid.agent.data.blobs import BlobCache
from distributed_grid.agent.data.disk import Disk
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch import raylet, workdir
from distributed_grid.agent.launch.isolation import Account, RunAs
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.launch.raylet import WalledFolder
from distributed_grid.agent.sampling.probe import Meter
from distributed_grid.agent.supervisor.job import SLOT_LOST
from distributed_grid.agent.walls import enclosure
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited, Launch, Stale
from distributed_grid.protocol.nodes import Sample
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.unix import boot_clock

FRESH = 1.0
"""Seconds for which a sample is recent enough for a claim of cores and memory. GPUs are always measured again."""
PATIENCE = 5.0
"""Seconds that a claim waits for a measurement."""
_OF_A_USER = frozenset({"HOME", "TMPDIR", "USER", "LOGNAME", "SHELL"})

log = get_logger("agent")


@dataclass(eq=False)
class Staging:
    """The launches that are being prepared. `verify` checks a launch against a sample, `done` gets the result: Ready,
    Stale, or Exited. `run_as` finds the account of each, `launcher` the slot of those that need files, `shows` the
    variables by which programs see GPUs."""

    state_dir: Path
    node: str
    meter: Meter
    blobs: BlobCache
    disk: Disk
    verify: Callable[[Launch, Sample], Stale | None]
    done: Callable[[Ready | Stale | Exited], None]
    run_as: RunAs
    environment: dict[str, str]
    ray: raylet.RaySettings
    launcher: Launcher
    files: JobFiles
    shows: Callable[[Sequence[str]], dict[str, str]]
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _raylets: dict[str, raylet.Lease] = field(default_factory=dict, init=False)
    _clearing: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._folders = workdir.Folders(self.state_dir)

    def begin(self, launch: Launch) -> None:
        """Prepare it: at once where measuring is quick and nothing was shipped, as for most jobs."""
        if why := self.disk.trouble or self.launcher.gone:
            self.done(Stale(allocation=launch.allocation, reason=why))
            return
        slow = launch.grant.gpus or launch.spec.bundle or launch.spec.boost or self.run_as.needed
        try:
            sample = self.meter.at_once(boot_clock() - FRESH) if not slow else None
        except OSError as error:
            self.done(_unmeasured(launch.allocation, error))
            return
        if sample is not None:
            self.done(self.verify(launch, sample) or self._make_folder(launch))
            return
        task = asyncio.create_task(self._stage_slowly(launch), name=launch.allocation)
        self._tasks[launch.allocation] = task
        task.add_done_callback(lambda done: self._ended(launch.allocation, done))

    def order(self, launch: Launch) -> tuple[Launch, Path | None, dict[str, str], Account | None]:
        """Return the launcher's arguments for a launch that is ready: its directory (None: one of its own), its
        environment, and its account (None: the walls decide)."""
        account = self.run_as.take(launch.allocation)
        directory = Path(launch.spec.workdir) if launch.spec.workdir else None
        gpus = self.shows([share.uuid for share in launch.grant.gpus])
        environment = workdir.build_env(launch, self.node, directory, self._base(launch, account), gpus)
        environment[workdir.RECALL_VARIABLE] = workdir.recall_path(self.state_dir, launch.allocation)
        if (lease := self._raylets.pop(launch.allocation, None)) is not None:
            launch = raylet.as_job(launch, lease)
            environment = raylet.for_ray(environment) | lease.environment
        return launch, directory, environment, account

    def _base(self, launch: Launch, account: Account | None) -> dict[str, str]:
        """Return the variables that a job inherits from the agent's environment. Variables about a user come from the
        job's user or its slot."""
        if account is not None:
            return self.environment | account.environment()
        if self.launcher.walls != enclosure.USER:
            hidden = self.launcher.walls == enclosure.NAMESPACE and launch.user not in self.launcher.owners
            return {name: text for name, text in self.environment.items() if not (hidden and name in _OF_A_USER)}
        return {name: text for name, text in self.environment.items() if name not in _OF_A_USER}

    def stop(self, allocation: str) -> None:
        """Cancel its preparation."""
        self.run_as.take(allocation)
        self._raylets.pop(allocation, None)
        if (task := self._tasks.pop(allocation, None)) is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel all preparations."""
        for task in self._tasks.values():
            task.cancel()

    def _ended(self, allocation: str, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(allocation) is task:
            del self._tasks[allocation]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("preparing failed", allocation=allocation, exc_info=error)
            self.done(_failed(allocation, f"the agent failed to prepare it: {error!r}"))

    async def _stage_slowly(self, launch: Launch) -> None:
        if not isinstance(result := await self._stage(launch), Ready):
            if self._raylets.pop(launch.allocation, None) is not None:
                raylet.ended(launch.allocation)
            self.launcher.unreserve(launch.allocation)
        self.done(result)

    async def _stage(self, launch: Launch) -> Ready | Stale | Exited:
        try:
            account = await self.run_as.find(launch)
        except GridError as error:
            return _failed(launch.allocation, error.why, Cause.SPAWN_FAILED)
        if launch.spec.boost is not None:  # most boosts get a spawner of their own, which is made meanwhile
            self.launcher.announce(launch, account)
        stale = await self._measure_and_verify(launch)
        if stale is None and launch.spec.bundle and not launch.spec.workdir:
            slot = ""
            try:
                slot = await self.launcher.reserve(launch, account)
                await self._unpack(launch, slot)
            except (GridError, OSError) as error:
                if slot and await self._is_lost(launch, account, slot):
                    return Stale(allocation=launch.allocation, reason=SLOT_LOST)
                why = f"{error.what}: {error.why}" if isinstance(error, GridError) else str(error)
                return await self._unpacking_failed(launch.allocation, why)
            stale = await self._measure_and_verify(launch)  # fetching may have taken a while
        if stale is None and (boost := launch.spec.boost) is not None:
            walled = None
            try:
                walled = None if account is not None else await self._walled_folder(launch)
                lease = await self._prepare_raylet(launch, boost, account, walled)
            except GridError as error:
                if walled is not None and await self._is_lost(launch, account, walled.slot):
                    return Stale(allocation=launch.allocation, reason=SLOT_LOST)
                why = f"{error.what}: {error.why}" if error.why else error.what
                todo = f"; to do there: {error.hint}" if error.hint else ""
                return _failed(launch.allocation, why + todo, Cause.NOT_JOINED)
            self._raylets[launch.allocation] = lease
        return stale or self._make_folder(launch)

    async def _prepare_raylet(
        self, launch: Launch, boost: Boost, account: Account | None, walled: WalledFolder | None
    ) -> raylet.Lease:
        """Prepare the raylet of a boost. If that is cancelled, it goes on in its thread, and what it has made is
        removed after it. Raises GridError."""
        preparing = asyncio.to_thread(raylet.prepare, launch, boost, self.node, self.ray, account, walled)
        thread = asyncio.create_task(preparing, name=launch.allocation)
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            clearing = asyncio.create_task(_clear(launch.allocation, walled, thread), name=launch.allocation)
            self._clearing.add(clearing)
            clearing.add_done_callback(self._clearing.discard)
            raise

    async def _measure_and_verify(self, launch: Launch) -> Stale | None:
        gpus = bool(launch.grant.gpus)
        try:
            if not gpus and (quick := self.meter.at_once(boot_clock() - FRESH)) is not None:
                return self.verify(launch, quick)
            async with asyncio.timeout(PATIENCE):
                sample = await self.meter.since(boot_clock() - (0.0 if gpus else FRESH), gpus)
        except (TimeoutError, OSError) as error:
            return _unmeasured(launch.allocation, error)
        return self.verify(launch, sample)

    async def _is_lost(self, launch: Launch, account: Account | None, slot: str) -> bool:
        """Whether the slot that was reserved for it is gone, with its spawner or the supervisor."""
        try:
            return await self.launcher.reserve(launch, account) != slot
        except GridError:
            return False

    async def _unpack(self, launch: Launch, slot: str) -> None:
        async with self.blobs.bundle(launch.spec.bundle) as manifest:
            await asyncio.to_thread(self.files.lay_out, slot, launch.allocation, manifest, self.blobs.directory)

    async def _walled_folder(self, launch: Launch) -> WalledFolder | None:
        """The raylet's folder inside its walls, if they hide one that we would make."""
        walls = self.launcher.walls
        private = walls == enclosure.NAMESPACE and launch.user not in self.launcher.owners
        if walls != enclosure.USER and not private:
            return None
        return WalledFolder(self.files, self.state_dir, await self.launcher.reserve(launch), private)

    async def _unpacking_failed(self, allocation: str, why: str) -> Stale | Exited:
        """Handle that the shipped files could not be unpacked: Stale if the disk is to blame, and what was unpacked is
        removed."""
        await self.disk.check()
        if self.disk.trouble:
            return Stale(allocation=allocation, reason=self.disk.trouble)
        return _failed(allocation, why)

    def _make_folder(self, launch: Launch) -> Ready | Stale | Exited:
        """Make its folder, which shows too whether the disk can be written."""
        gang = launch.gang
        if gang is not None and gang.rank == 0 and not raylet.port_is_free(gang.port):
            return Stale(allocation=launch.allocation, reason=f"port {gang.port} is in use", device="port")
        try:
            self._folders.make(launch.allocation)
        except OSError as error:
            return Stale(allocation=launch.allocation, reason=self.disk.failed(error))
        except GridError as error:
            return _failed(launch.allocation, f"its working directory could not be made: {error}")
        return Ready(launch.allocation)


async def _clear(allocation: str, walled: WalledFolder | None, preparing: asyncio.Task[raylet.Lease]) -> None:
    """Remove what was prepared for a raylet that is not to start, the copy of its cluster's token with it."""
    await asyncio.wait([preparing])
    if preparing.exception() is None and walled is not None:
        with suppress(GridError, OSError):  # its slot is gone, and takes with it what its user has in /tmp
            await asyncio.to_thread(walled.remove, allocation)
    raylet.ended(allocation)


def _unmeasured(allocation: str, error: OSError) -> Stale:
    why = f"this node could not be measured: {error}" if str(error) else "measuring this node hangs"
    return Stale(allocation=allocation, reason=why)


def _failed(allocation: str, why: str, cause: Cause = Cause.WORKDIR_FAILED) -> Exited:
    return Exited(allocation=allocation, outcome=Outcome(cause, text=why, started=False))
