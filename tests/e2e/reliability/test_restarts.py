"""Agents and coordinator are killed with -9 while jobs run: nothing is lost or runs twice, and no byte is missing."""

import asyncio
from pathlib import Path

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import State
from tests.e2e.scenes import Scene, scene

LINES = 30


def counting(place: Path, code: int) -> list[str]:
    """A job that notes its start in a file, prints half of its numbered lines, waits until there is a file `go`, prints
    the others for about three seconds, and exits with `code`."""
    script = (
        f"echo start >> {place}/starts{code}; i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); "
        f"if [ $i = {LINES // 2} ]; then until [ -e {place}/go ]; do sleep 0.1; done; else sleep 0.2; fi; done; "
        f"exit {code}"
    )
    return ["sh", "-c", script]


EXPECTED = "".join(f"line {number}\n" for number in range(LINES)).encode()


async def twenty(grid: Scene, client: GridClient) -> list[str]:
    """Twenty jobs at once, all running, and none that ends before `go`."""
    jobs = [await client.submit(counting(grid.place, n), name=f"job{n}") for n in range(20)]
    await grid.until(lambda: all_run(client, 20), "all twenty run")
    return jobs


async def all_run(client: GridClient, number: int) -> bool:
    return sum(view.state is State.RUNNING for view in await client.jobs()) >= number


async def all_went_well(grid: Scene, client: GridClient, jobs: list[str]) -> None:
    """Exit codes are exact, output is gapless, and each job started once."""
    for number, job in enumerate(jobs):
        result = await asyncio.wait_for(client.result(job), 60)
        assert (result.exit_code, result.stdout.encode()) == (number, EXPECTED), result
        assert (grid.place / f"starts{number}").read_text() == "start\n"


async def test_jobs_run_on_while_their_agent_is_killed_and_restarted() -> None:
    async with scene() as grid:
        await grid.agent("n1", cores=list(range(20)), virtual=True)
        async with GridClient(grid.url) as client:
            jobs = await twenty(grid, client)
            grid.kill("n1")
            (grid.place / "go").touch()
            grid.again("n1")
            await all_went_well(grid, client, jobs)


async def test_jobs_and_streams_run_on_while_the_coordinator_is_killed_and_restarted() -> None:
    async with scene() as grid:
        await grid.agent("n1", cores=list(range(20)), virtual=True)
        async with GridClient(grid.url) as client:
            jobs = await twenty(grid, client)
            queued = await client.submit(["sh", "-c", "echo at last"])
            streams = [asyncio.create_task(read(client, job)) for job in jobs[:3]]
            grid.kill("coordinator")
            (grid.place / "go").touch()
            await grid.coordinator()
            assert (await client.show(queued)).state in (State.WAITING, State.STARTING, State.RUNNING, State.ENDED)
            await all_went_well(grid, client, jobs)
            assert [await asyncio.wait_for(stream, 60) for stream in streams] == [EXPECTED] * 3
            assert (await asyncio.wait_for(client.result(queued), 60)).stdout == "at last\n"


async def read(client: GridClient, job: str) -> bytes:
    """Return all of a job's stdout, as it comes."""
    return b"".join([data async for stream, data in client.stream(job) if stream == "stdout"])


HEEDS = "trap 'echo term >> ended; exit 3' TERM; touch up; while :; do sleep 0.1; done"


async def test_a_cancel_while_the_agent_is_away_takes_effect_once_when_it_is_back() -> None:
    async with scene() as grid:
        await grid.agent("n1", cores=[0, 1], virtual=True)
        async with GridClient(grid.url) as client:
            job = await client.submit(["sh", "-c", HEEDS], workdir=str(grid.place))
            await grid.until(lambda: heeds(grid, client, job), "it runs and heeds SIGTERM")
            grid.kill("n1")
            await client.cancel(job)
            await client.cancel(job)
            grid.again("n1")
            view = await asyncio.wait_for(client.wait(job), 60)
            assert view.outcome is not None and (view.outcome.cause, view.outcome.code) == ("cancelled", 3)
            assert (grid.place / "ended").read_text() == "term\n"


async def test_a_cancel_while_the_coordinator_is_away_takes_effect_once_when_it_is_back() -> None:
    async with scene() as grid:
        await grid.agent("n1", cores=[0, 1], virtual=True)
        async with GridClient(grid.url) as client:
            job = await client.submit(["sh", "-c", HEEDS], workdir=str(grid.place))
            await grid.until(lambda: heeds(grid, client, job), "it runs and heeds SIGTERM")
            grid.kill("coordinator")
            cancel = asyncio.create_task(client.cancel(job))
            await grid.coordinator()
            await asyncio.wait_for(cancel, 60)
            view = await asyncio.wait_for(client.wait(job), 60)
            assert view.outcome is not None and view.outcome.cause == "cancelled"
            assert (grid.place / "ended").read_text() == "term\n"


async def heeds(grid: Scene, client: GridClient, job: str) -> bool:
    return (grid.place / "up").exists() and (await client.show(job)).state is State.RUNNING
