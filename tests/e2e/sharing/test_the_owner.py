"""What a node offers is measured: the owner's use shrinks the offer, our own jobs never make a node look busy."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Shared
from distributed_grid.protocol.nodes import NodeState
from tests.e2e.scenes import Scene, scene

BURN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


@pytest.fixture
def idle_machine() -> None:
    """Nobody else uses much of it: else nothing that is measured could be told from what others do."""
    for _ in range(60):
        if max(psutil.cpu_percent(0.5, percpu=True)) < 50:
            return
    pytest.skip("this machine has been busy with others' programs for half a minute")


@pytest.fixture
def busy_core_0() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody's program, which keeps core 0 busy from the moment it is asked to."""
    process = subprocess.Popen([sys.executable, "-c", "input()\n" + BURN % 0], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


async def shared(client: GridClient) -> Shared:
    return await client.shared("lab")


async def test_a_foreign_busy_process_shrinks_the_offer_within_two_samples(
    busy_core_0: subprocess.Popen[bytes], idle_machine: None
) -> None:
    async with scene() as grid:
        await grid.agent("lab", cores=[0], interval=1.0, cpu_percent_max=60)
        async with GridClient(grid.url) as client:
            await grid.until(lambda: all_cpu(client), "the core is offered, as nobody uses it")
            assert busy_core_0.stdin
            busy_core_0.stdin.write(b"\n")
            busy_core_0.stdin.flush()
            samples = {await grid.until(lambda: newest(client), "a sample was told")}

            async def not_offered() -> bool:
                samples.add(await newest(client))
                return await no_cpu(client)

            await grid.until(not_offered, "the core is not offered any more")
            assert len(samples) - 1 <= 3, "two samples, and one that was under way"
            withheld = (await shared(client)).offers[0].withheld
            assert any("cpu" in w.what and "%" in w.why for w in withheld), withheld


async def newest(client: GridClient) -> float:
    """Return when the node was last measured; 0: that was not reported yet."""
    sample = (await client.nodes())[0].sample
    return sample.at if sample is not None else 0.0


async def all_cpu(client: GridClient) -> bool:
    return (await shared(client)).offers[0].room.cpu == 1000


async def no_cpu(client: GridClient) -> bool:
    return (await shared(client)).offers[0].room.cpu == 0


async def test_our_own_busy_job_shrinks_the_offer_by_what_it_holds_and_no_more(idle_machine: None) -> None:
    async with scene() as grid:
        await grid.agent("lab", cores=[0, 1], interval=0.5, cpu_percent_max=95)
        async with GridClient(grid.url) as client:
            job = await client.submit([sys.executable, "-c", "while True: pass"])
            await grid.until(lambda: quiet(client), "the job is seen to be busy, and as our own", patience=60)
            await grid.until(lambda: one_core_left(client), "just the other core is offered, while that is so")
            await client.cancel(job)


async def quiet(client: GridClient) -> bool:
    """Whether this test's job burns a core, and others use hardly any of one (other tests may run beside this one)."""
    sample = (await client.nodes())[0].sample
    return sample is not None and sample.own_cpu > 0.8 and all(percent < 50 for percent in sample.cores.values())


async def one_core_left(client: GridClient) -> bool:
    offer = (await shared(client)).offers[0]
    return await quiet(client) and offer.room.cpu == 1000 and not [w for w in offer.withheld if w.what == "cpu"]


async def test_a_process_that_appears_on_a_gpu_before_the_claim_sends_the_job_elsewhere_at_once() -> None:
    async with scene() as grid:
        # Samples far apart, so that the newest one is from before the process appeared.
        start = (grid.agent(name, cores=[0, 1], virtual=True, gpus=1, interval=12) for name in ("gpu1", "gpu2"))
        await asyncio.gather(*start)
        grid.set_gpus("gpu1", [{"used": 2 << 30, "processes": [{"pid": 1, "memory": 2 << 30}]}])
        async with GridClient(grid.url) as client:
            began = time.monotonic()
            result = await client.run(["sh", "-c", "echo $GRID_NODE"], gpus=1, nodes=["gpu1"])
            assert time.monotonic() - began < 10, "nobody had to wait for the next sample"
            assert (result.exit_code, result.stdout) == (0, "gpu2\n")
            story = [step.text for step in (await client.show(result.job_id)).story]
        assert any("process 1 of" in text for text in story), story


async def test_a_stopped_agent_offers_nothing_and_gets_no_job() -> None:
    async with scene() as grid:
        await grid.agent("still", cores=[0, 1], virtual=True)
        async with GridClient(grid.url) as client:
            grid.pause("still")
            await grid.until(lambda: not_up(client), "the node is not up any more")
            job = await client.submit(["true"])
            await grid.until(lambda: gone(grid), "its offer is gone")
            view = await client.show(job)
            assert (view.state, view.attempt) == (State.WAITING, 0)
            assert view.reason is not None and view.reason.text
            grid.resume("still")
            assert (await asyncio.wait_for(client.result(job), 60)).exit_code == 0


async def not_up(client: GridClient) -> bool:
    return (await client.nodes())[0].state is not NodeState.UP


async def gone(grid: Scene) -> bool:
    return not await grid.offers()


STRANGER = [{"used": 2 << 30, "processes": [{"pid": 1, "memory": 2 << 30}]}]


async def test_a_job_is_recalled_from_a_gpu_that_its_owner_takes_and_runs_elsewhere_with_its_age() -> None:
    async with scene() as grid:
        for name in ("gpu1", "gpu2"):
            await grid.agent(name, cores=[0, 1], virtual=True, gpus=1, owner_after=0, owner_hold=0)
        async with GridClient(grid.url) as client:
            script = 'echo "$GRID_NODE"; [ "$GRID_NODE" = gpu2 ] || sleep 600'
            job = await client.submit(["sh", "-c", script], gpus=1, nodes=["gpu1"])
            before = await running(grid, client, job)
            grid.set_gpus("gpu1", STRANGER)
            result = await asyncio.wait_for(client.result(job), 60)
            assert (result.exit_code, result.stdout) == (0, "gpu2\n")
            view = await client.show(job)
        assert (view.node, view.evicted, view.retried, view.submitted) == ("gpu2", 1, 0, before.submitted)
        story = [step.text for step in view.story]
        assert any(text.startswith("recalled: the owner of gpu1 is back (process 1") for text in story), story
        assert any("recalled by signal 15" in text and "waits again" in text for text in story), story


async def test_a_suspended_job_is_seen_everywhere_to_be_so_and_ends_as_if_nothing_had_been() -> None:
    async with scene() as grid:
        # A young job is suspended rather than recalled.
        await grid.agent("lab", cores=[0, 1], virtual=True, gpus=1, owner_after=0, owner_hold=3600, owner_quiet=0)
        async with GridClient(grid.url) as client:
            job = await client.submit(["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo done"], gpus=1)
            await running(grid, client, job)
            grid.set_gpus("lab", STRANGER)
            view = await grid.until(lambda: suspended(client, job), "it is suspended")
            assert view.state is State.RUNNING and "process 1" in view.suspended.why
            assert "process 1" in (await client.shared("lab")).allocations[0].suspended
            said = subprocess.run(
                [sys.executable, "-m", "distributed_grid.cli.main", "--coordinator", grid.url, "job", "show", job],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert "suspended: the owner is back (process 1" in said.stdout, said
            (folder,) = (grid.place / "lab" / "jobs").glob(f"*/{view.allocation}")
            (folder / "go").touch()
            grid.set_gpus("lab", [{}])
            result = await asyncio.wait_for(client.result(job), 60)
            assert (result.exit_code, result.stdout) == (0, "done\n")
            view = await client.show(job)
        assert view.suspended is None and view.outcome is not None and view.outcome.suspended > 0
        assert [step.text.split()[0] for step in view.story][-3:] == ["suspended:", "goes", "exited"]


async def running(grid: Scene, client: GridClient, job: str) -> JobView:
    async def there() -> JobView | None:
        view = await client.show(job)
        return view if view.state is State.RUNNING else None

    found: JobView = await grid.until(there, f"{job} runs")
    return found


async def suspended(client: GridClient, job: str) -> JobView | None:
    view = await client.show(job)
    return view if view.suspended is not None else None
