"""Jobs that leave something behind, hide it, or fight their end: what a job holds is free only when nothing of it
lives, and then nothing of it does."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobView, State
from tests.e2e.scenes import Scene, lasting, scene

DEAF = """
import os, signal, sys, time
for n in range(1, 65):
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
"""
DAEMON = (
    DEAF
    + """
word, how = sys.argv[1:]
for _ in range(3):
    if os.fork():
        os._exit(3)
    os.setsid()
if "close" in how:
    os.closerange(0, 4096)
os.chdir("/")
environment = {} if "clear" in how else dict(os.environ)
os.execve("/bin/sh", ["sh", "-c", "sleep 600; true", word], environment)  # what begins at once
"""
)
FORKER = (
    DEAF
    + """
end, said = time.monotonic() + 60, ""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if sys.argv[2] == "stays" and os.fork():
    time.sleep(60)
while time.monotonic() < end:  # always another process, never the same for long
    if os.fork():
        os._exit(0)
    os.setsid()
    if not said:
        print(said := "it forks", flush=True)
    time.sleep(0.002)
"""
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Scene]:
    """A grid with one node of four virtual cores."""
    with lasting(cores=4) as made:
        yield made


@pytest.fixture
async def client(grid: Scene) -> AsyncIterator[GridClient]:
    async with GridClient(grid.url) as made:
        yield made


def living(word: str) -> list[int]:
    """Return all processes with this word in their command line, of any user."""
    return [*commands(word)]


def commands(word: str) -> dict[int, list[bytes]]:
    """Return their command lines, by pid."""
    found = {}
    # The newest first: what forks all the time is gone when the others have been looked at.
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if word.encode() in argv:
                    found[pid] = argv
    return found


async def free(grid: Scene) -> bool:
    return sum(view.room.cpu for view in await grid.offers("n1")) == 4000


async def over_and_gone(grid: Scene, client: GridClient, job: str, word: str) -> JobView:
    """Wait for the job's end. At no moment is it over while something of it lives."""
    async with asyncio.timeout(60):
        while True:
            view = await client.show(job)
            if view.state is State.ENDED:
                assert living(word) == []
                break
            await asyncio.sleep(0.01)
    await grid.until(lambda: free(grid), "all cores are free again")
    return view


def word() -> str:
    return f"leftover-{os.getpid()}-{time.monotonic_ns()}"


# --- what hides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "clear", "close", "clear,close"])
async def test_a_daemon_holds_its_cores_until_it_is_gone(grid: Scene, client: GridClient, how: str) -> None:
    name = word()
    job = await client.submit([sys.executable, "-c", DAEMON, name, how], cpus=4, grace=5)
    waits = await client.submit(["true"])
    await grid.until(lambda: _only_one(name), "only the daemon is left of it")
    assert (await client.show(job)).state is not State.ENDED
    assert (await client.show(waits)).state is State.WAITING
    view = await over_and_gone(grid, client, job, name)
    assert view.outcome is not None and (view.outcome.cause, view.outcome.code) == (Cause.EXITED, 3)
    assert (await client.wait(waits)).started >= view.ended


def _only_one(name: str) -> bool:
    return [b"sleep 600; true" in argv for argv in commands(name).values()] == [True]


@pytest.mark.parametrize("how", ["stays", "goes"])
@pytest.mark.parametrize("grace", [0, 0.3])
async def test_a_job_that_forks_all_the_time_is_gone_with_the_cancel(
    grid: Scene, client: GridClient, grace: float, how: str
) -> None:
    name = word()
    job = await client.submit([sys.executable, "-c", FORKER, name, how])
    await grid.until(lambda: _printed(grid, client, job), "it forks")
    await client.cancel(job, grace=grace)
    await over_and_gone(grid, client, job, name)


async def test_a_job_that_traps_all_signals_gets_its_grace_and_no_more(grid: Scene, client: GridClient) -> None:
    name = word()
    script = DEAF + "print(flush=True)\nwhile True: time.sleep(9)"
    job = await client.submit([sys.executable, "-c", script, name], grace=0.5)
    await grid.until(lambda: _printed(grid, client, job), "it is deaf")
    began = time.monotonic()
    await client.cancel(job)
    view = await over_and_gone(grid, client, job, name)
    assert 0.4 < time.monotonic() - began < 30
    assert view.outcome is not None and (view.outcome.cause, view.outcome.signal) == (Cause.CANCELLED, 9)


async def _printed(grid: Scene, client: GridClient, job: str) -> bool:
    allocation = (await client.show(job)).allocation
    return any(file.stat().st_size for file in grid.place.glob(f"n1/allocs/{allocation}/stdout"))


async def test_a_child_that_holds_stdout_open_does_not_keep_the_job_from_ending(
    grid: Scene, client: GridClient
) -> None:
    name = word()
    job = await client.submit(["sh", "-c", f"sh -c 'sleep 600; true' {name} & echo early; exit 5"])
    await over_and_gone(grid, client, job, name)
    result = await client.result(job)
    assert (result.exit_code, result.stdout) == (5, "early\n")


# --- what harms its own place -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        'cd / && rm -rf "$GRID_WORKDIR" && echo done',
        'rm -rf "$GRID_WORKDIR"; cd /; echo done',
        'mkdir -p a/b && chmod 000 a "$GRID_WORKDIR" && echo done',
        'd=$(dirname "$GRID_WORKDIR"); chmod 000 "$d"; echo done',
        'mkdir x; mv "$GRID_WORKDIR" "$GRID_WORKDIR-moved"; ln -s / "$GRID_WORKDIR"; echo done',
    ],
    ids=["deleted", "deleted below itself", "locked", "folder locked", "replaced by a link"],
)
async def test_a_job_that_harms_its_working_directory_only_harms_itself(
    grid: Scene, client: GridClient, script: str
) -> None:
    job = await client.submit(["sh", "-c", script])
    result = await asyncio.wait_for(client.result(job), 60)
    assert result.exit_code == 0 and result.stdout in ("done\n", "")
    with contextlib.suppress(GridError):
        assert await client.files(job, "etc/pass*") == []
    assert (await asyncio.wait_for(client.run(["echo", "next"]), 60)).stdout == "next\n"


# --- floods of output -------------------------------------------------------------------------------------------------


def _resident(pid: int, what: str = "VmHWM") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{what}:")[2].split()[0]) << 10


@pytest.mark.parametrize("read", [False, True], ids=["nobody reads", "a client reads"])
async def test_a_flood_of_output_costs_the_coordinator_nothing(grid: Scene, client: GridClient, read: bool) -> None:
    coordinator = grid.parts["coordinator"].pid
    before = _resident(coordinator, "VmRSS")
    most = before
    job = await client.submit(["timeout", "3", "cat", "/dev/zero"])

    async def take() -> int:
        taken = 0
        async for _, data in client.stream(job):
            taken += len(data)
            if (await client.show(job)).state is State.ENDED:
                break
        return taken

    reading = asyncio.create_task(take()) if read else None
    silent = 0.0
    async with asyncio.timeout(60):
        while (await client.show(job)).state is not State.ENDED:
            silent = max(silent, *(one.silent_for for one in await client.nodes()))
            most = max(most, _resident(coordinator, "VmRSS"))
            await asyncio.sleep(0.05)
        if reading is not None:
            assert await reading > 1 << 20
    assert silent < 10, "it is taken for disconnected then"
    assert most - before <= 16 << 20, f"{(most - before) >> 20} MiB more"
    view = await client.show(job)
    assert view.outcome is not None and view.outcome.code == 124


# --- everything is killed ---------------------------------------------------------------------------------------------


async def test_the_jobs_of_a_killed_supervisor_run_on_and_never_start_again(tmp_path: Path) -> None:
    async with ten(tmp_path, "n1") as (grid, client, jobs):
        os.kill(_supervisor(grid), signal.SIGKILL)
        await _all_end_once(grid, client, jobs, tmp_path)


async def test_all_three_are_killed_at_once_and_come_back(tmp_path: Path) -> None:
    async with ten(tmp_path, "n1") as (grid, client, jobs):
        queued = await client.submit(["echo", "at last"])
        os.kill(_supervisor(grid), signal.SIGKILL)
        grid.kill("coordinator")
        grid.kill("n1")
        await grid.coordinator()
        grid.again("n1")
        await _all_end_once(grid, client, jobs, tmp_path)
        assert (await asyncio.wait_for(client.result(queued), 60)).stdout == "at last\n"


@asynccontextmanager
async def ten(starts: Path, node: str) -> AsyncIterator[tuple[Scene, GridClient, list[str]]]:
    """A separate grid with ten running jobs that note each start. They end when there is a file `go`."""
    async with scene() as grid:
        await grid.agent(node, cores=list(range(10)), virtual=True)
        async with GridClient(grid.url) as client:
            script = f"echo start >> {starts}/$0; until [ -e {starts}/go ]; do sleep 0.1; done"
            jobs = [await client.submit(["sh", "-c", script, f"{n}"]) for n in range(10)]
            try:
                await grid.until(lambda: len(list(starts.iterdir())) == 10, "all ten run")
                yield grid, client, jobs
            finally:
                (starts / "go").touch()


async def _all_end_once(grid: Scene, client: GridClient, jobs: list[str], starts: Path) -> None:
    """Half of them are cancelled, half go on to their end; all of it is told, and then all cores are free."""
    await grid.until(lambda: _all_run(client, jobs), "they run on")
    await client.cancel(*jobs[:5], grace=1)
    cancelled = await asyncio.wait_for(asyncio.gather(*map(client.wait, jobs[:5])), 60)
    assert {view.outcome and view.outcome.cause for view in cancelled} == {Cause.CANCELLED}
    (starts / "go").touch()
    views = await asyncio.wait_for(asyncio.gather(*map(client.wait, jobs[5:])), 60)
    assert {view.outcome and view.outcome.cause for view in views} <= {Cause.EXITED, Cause.SUPERVISOR_LOST}
    await grid.until(lambda: _all_ten(grid), "all cores are free again")
    assert all(view.attempt == 1 for view in cancelled + views)
    assert all((starts / f"{n}").read_text() == "start\n" for n in range(10))
    assert (await asyncio.wait_for(client.run(["echo", "again"]), 60)).stdout == "again\n"


async def _all_run(client: GridClient, jobs: list[str]) -> bool:
    return all([(await client.show(job)).state is State.RUNNING for job in jobs])


async def _all_ten(grid: Scene) -> bool:
    return sum(view.room.cpu for view in await grid.offers("n1")) == 10_000


def _supervisor(grid: Scene) -> int:
    return int(json.loads((grid.place / "n1" / "supervisor.pid").read_text())["pid"])
