"""A job that holds what it does not use is told so where its owner looks, and released where that is the policy."""

import json

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import Cause
from tests.e2e.scenes import scene
from tests.e2e.sharing.test_nodes import grid


async def test_unused_cores_and_gpus_are_told_of_and_released() -> None:
    async with scene(unused={"window": 2.0, "policy": "release-after", "time": 1.0}) as on:
        await on.agent("n1", cores=[0, 1, 2, 3], virtual=True, gpus=1)
        done = grid(on, "run-shared", "--cpus", "4", "--gpus", "1", "--retry-on", "failed", "--no-ship", "sleep", "600")
        assert done.returncode == 128 + 15, done.stderr
        assert "holds 4 cores and 1 GPU and used none of them and no GPU for" in done.stderr
        assert "--cpus 0.1 with no --gpus would have been enough" in done.stderr
        assert "was released from n1: its GPU went unused for" in done.stderr
        async with GridClient(on.url) as client:
            view = await client.show("last")
            assert view.outcome is not None and view.outcome.cause is Cause.RELEASED and view.attempt == 1
            assert any("would have been enough" in step.text for step in view.story)
            on.set_gpus("n1", [{"utilisation": 95}])
            busy = await client.submit(["sh", "-c", "while :; do :; done"], cpus=1, gpus=1)
            await on.until(lambda: used(client, busy, 4.0), "it was told of for 4 s")
            view = await client.show(busy)
            assert view.used is not None and view.used.cpu > 0.1 and view.used.gpu > 0.9 and not view.unused
            await client.cancel(busy)
            await client.wait(busy)
        shown = json.loads(grid(on, "-o", "json", "job", "show", busy).stdout)["jobs"][0]
        assert shown["used"]["cpu_peak"] >= shown["used"]["cpu"] > 0.1 and shown["used"]["memory_peak"] > 0
        assert "did use" in grid(on, "job", "show", busy).stdout


async def used(client: GridClient, job: str, seconds: float) -> bool:
    view = await client.show(job)
    return view.used is not None and view.used.seconds >= seconds
