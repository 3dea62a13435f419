"""A node without its agent's outer half: a launcher, its supervisor, and everything that was reported."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.gpus.base import cuda
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.walls.forkserver import ForkServer
from distributed_grid.protocol.jobs import PASSED_ON, JobSpec, Outcome
from distributed_grid.protocol.messages import Exited, Launch, Started, Stop
from distributed_grid.protocol.nodes import Known
from distributed_grid.protocol.resources import Grant
from tests.agent import supervisors
from tests.processes import allocation_of


class Bench:
    """Launches commands and waits for what is reported; `restart` is a new agent, `kill_supervisor` the worst case."""

    def __init__(
        self,
        state_dir: Path,
        limit: int = 256 << 20,
        pids: int = 0,
        cgroup: str = "none",
        nice: int = 0,
        walls: str = "none",
    ) -> None:
        self.dir = state_dir
        self.reports: list[Started | Exited] = []
        self.log: list[str] = []
        self.known: list[Known] = []
        self._limit = limit
        self._pids = pids
        self._cgroup = cgroup
        self._nice = nice
        self._walls = walls
        self._changed = asyncio.Event()
        self._folders = workdir.Folders(state_dir)
        self._count = 0
        self._ours = secrets.token_hex(4)  # supervisors find their jobs by id: no other run on this machine has these
        self._supervisors: set[int] = set()
        self.launcher = self._make()

    def _make(self, process: Any = None) -> Launcher:
        how = self._limit, self.log.append, self._pids, self._cgroup, self._nice, self._walls
        return Launcher(self.dir, self._take, *how, process=process)

    def _take(self, report: Started | Exited) -> None:
        self.reports.append(report)
        self._changed.set()

    async def start(self) -> None:
        if (process := supervisors.started(self.dir, self._limit, self._cgroup, self._walls)) is not None:
            self.launcher = self._make(process)
        self.known = await self.launcher.start()
        self._supervisors.add(self.launcher.supervisor_pid)

    async def restart(self) -> None:
        """The agent is gone without a word, and another one comes."""
        await self.launcher.close()
        self.reports.clear()
        self.launcher = self._make()
        await self.start()

    async def kill_supervisor(self) -> None:
        old = self.launcher.supervisor_pid
        os.kill(old, signal.SIGKILL)
        await self.until(lambda: self.launcher.supervisor_pid != old)
        self._supervisors.add(self.launcher.supervisor_pid)

    def launch(
        self,
        *argv: str,
        grant: Grant | None = None,
        id: str = "",
        directory: Path | None = None,
        lease: float = 0.0,
        since: float = 0.0,
        chain: str = "",
        **spec: Any,
    ) -> str:
        """Launch it, leased from `since` on (seconds since boot, 0: from now on) if `lease` is not 0. It waits for the
        others of its `chain`, which has the id of the first."""
        self._count += 1
        id = id or f"j-{self._ours}{self._count}.1"
        launch = Launch(
            allocation=id,
            job=id.partition(".")[0],
            user="u",
            epoch=1,
            grant=grant or Grant(),
            spec=JobSpec(argv=argv, **spec),
            lease=lease,
        )
        self._folders.make(id)
        gpus = cuda([share.uuid for share in launch.grant.gpus])
        env = workdir.build_env(launch, "node1", directory, workdir.inherited(os.environ, PASSED_ON), gpus)
        self.launcher.launch(launch, directory, env, since or procs.now(), chain=chain)
        return id

    def stop(self, id: str, grace: float = 5.0, cause: str = "cancelled") -> None:
        self.launcher.stop(Stop(allocation=id, grace=grace, cause=cause))

    def withdraw(self, id: str) -> None:
        self.launcher.withdraw(Stop(allocation=id, cause="withdrawn", unless_started=True))

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait for a condition that a report or the world makes true."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                with_report = asyncio.create_task(self._changed.wait())
                await asyncio.wait([with_report], timeout=0.01)
                with_report.cancel()

    async def started(self, id: str) -> int:
        """The pid of its main process."""
        try:
            await self.until(lambda: self._find(Started, id) or self.outcomes(id))
        except TimeoutError:
            raise AssertionError(f"{id} has not started; below the supervisor:\n{self._below()}") from None
        report = self._find(Started, id)
        assert isinstance(report, Started), self.outcomes(id)
        return report.pid

    async def spawner(self, id: str) -> int:
        """The pid of its spawner."""
        seen = procs.stat(await self.started(id))
        assert seen is not None, f"{id} is over"
        return seen.parent

    async def idle_spawner(self) -> int:
        """The pid of a spawner whose job is over: the next job of its kind begins there."""
        id = self.launch("sleep", "600")
        spawner = await self.spawner(id)
        self.stop(id)
        await self.ended(id)
        return spawner

    async def begun(self, id: str) -> None:
        """Wait until it has started. If it ended before its start could be reported, only the end is reported."""
        await self.until(lambda: self._find(Started, id) or any(one.started for one in self.outcomes(id)))

    def _below(self) -> str:
        """Describe what its processes do, for one that makes no progress."""
        lines = []
        for pid in sorted(procs.descendants([self.launcher.supervisor_pid])):
            with suppress(OSError):
                at = Path(f"/proc/{pid}")
                said = (at / "stat").read_text().rpartition(") ")[2].split()
                waits, shares = (at / "wchan").read_text(), (at / "schedstat").read_text().strip()
                lines.append(
                    f"{pid} of {said[1]} state {said[0]} nice {said[16]} in {waits}, ran and waited {shares} ns"
                )
        return "\n".join(lines)

    def _find(self, kind: type, id: str) -> Started | Exited | None:
        return next((one for one in self.reports if isinstance(one, kind) and one.allocation == id), None)

    def outcomes(self, id: str) -> list[Outcome]:
        return [one.outcome for one in self.reports if isinstance(one, Exited) and one.allocation == id]

    async def ended(self, id: str) -> Outcome:
        await self.until(lambda: self.outcomes(id))
        return self.outcomes(id)[0]

    async def run(self, *argv: str, **how: Any) -> Outcome:
        return await self.ended(self.launch(*argv, **how))

    def folder(self, id: str) -> Path:
        """Return its own working directory."""
        return self.dir / "jobs" / self.launcher.slots.slot(id) / id

    def read(self, id: str, stream: str = "stdout") -> bytes:
        return (workdir.folder(self.dir, id) / stream).read_bytes()

    async def wrote(self, id: str, lines: int = 1) -> list[str]:
        """The first lines of its output, when they are there. The supervisor knows of its start by then, too: what it
        is told of a job before that has another meaning."""
        path = workdir.folder(self.dir, id) / "stdout"
        await self.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines)
        await self.until(lambda: self.launcher.pids.get(id) or self._is_over(id))
        return path.read_text().splitlines()

    def _is_over(self, id: str) -> bool:
        known = any(one.allocation == id and one.outcome is not None for one in self.known)
        return known or bool(self.outcomes(id))

    def alive(self, *ids: str) -> list[int]:
        """Return all processes of these allocations in the process table."""
        return [pid for pid in procs.all_pids() if allocation_of(pid) in ids and runs(pid)]

    async def close(self) -> None:
        """Leave nothing running, by pid."""
        await self.launcher.close()
        for pid in self._supervisors:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        ids = [path.name for path in (self.dir / "allocs").glob("*")]
        async with asyncio.timeout(60):
            while left := self.alive(*ids):
                for pid in left:
                    if (seen := procs.stat(pid)) is not None:
                        procs.send(pid, seen.start, signal.SIGKILL)
                await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether the process is alive, zombies not counted."""
    seen = procs.stat(pid)
    return seen is not None and seen.state not in "ZX"


@asynccontextmanager
async def renewed(bench: Bench) -> AsyncIterator[None]:
    """Leases are renewed meanwhile."""

    async def renew() -> None:
        while True:
            bench.launcher.renew(procs.now())
            await asyncio.sleep(0.05)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()


def removed(base: Path) -> bool:
    """Take away a control group and those in it; False if the kernel is not done with a process there yet."""
    try:
        for path in (*base.glob("*/"), base):
            with suppress(FileNotFoundError):  # a supervisor may have been quicker
                path.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
async def make_bench(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    made: list[Bench] = []

    async def make(limit: int = 256 << 20, cgroup: str = "none", nice: int = 0, walls: str = "none") -> Bench:
        bench = Bench(tmp_path / f"node{len(made)}", limit, cgroup=cgroup, nice=nice, walls=walls)
        bench.dir.mkdir(mode=0o700)
        made.append(bench)
        await bench.start()
        return bench

    yield make
    for bench in made:
        await bench.close()


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    """The process that forks spawners."""
    made = ForkServer()
    yield made
    made.close()
    os.waitpid(made.pid, 0)


@pytest.fixture
async def bench(make_bench: Callable[..., Awaitable[Bench]]) -> Bench:
    return await make_bench()
