"""The wall clock is for display: one that jumps a day forward or back changes nothing, over restarts too.

The clock that jumps is `time.time` of coordinator and agent, which here adds what a file says. The clocks of the system
are not touched: what they measure, and nothing else, is to decide.
"""

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import Cause, JobView, State
from distributed_grid.protocol.nodes import NodeState
from tests.e2e import scenes
from tests.e2e.scenes import Scene, scene

DAY = 86400.0
JUMPING = """
import pathlib, sys, time
def jumping(real=time.time, by=pathlib.Path(sys.argv[2]).parent / "by"):
    try:
        return real() + float(by.read_text())
    except (OSError, ValueError):
        return real()
time.time = jumping
"""


@pytest.fixture(autouse=True)
def clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "BEFORE", JUMPING)


async def all_is_as_it_was(on: Scene, long: str, done: str) -> None:
    """Check that jobs are accepted and end, running ones run on, kept data is kept, and the node lends everything."""
    async with GridClient(on.url) as client:
        view = await client.wait(await client.submit(["true"]))
        assert view.outcome is not None and view.outcome.code == 0
        in_order(view)
        assert (await client.show(long)).state is State.RUNNING
        assert await client.logs(done) == (b"kept\n", b"")
        await on.until(lambda: is_heard(client), "the node is heard")


def in_order(view: JobView) -> None:
    times = [step.at for step in view.story]
    assert times == sorted(times)
    assert view.submitted <= view.started <= view.ended < view.submitted + 600


async def test_a_wall_clock_that_jumps_a_day_changes_nothing() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0, 1], virtual=True)
        wait = f"until [ -e {on.place}/gate ]; do sleep 0.05; done; exit 5"
        async with GridClient(on.url) as client:
            done = await client.submit(["echo", "kept"])
            await client.wait(done)
            long = await client.submit(["sh", "-c", wait], time_limit=3600, retry_on=["lost"], retries=1)
            await on.until(lambda: is_running(client, long), "the long job runs")
        for by in (DAY, -DAY, 0.0):
            (on.place / "by").write_text(str(by))
            await all_is_as_it_was(on, long, done)
        (on.place / "by").write_text(str(-DAY))
        on.kill("coordinator")
        on.kill("n1")
        await on.coordinator()
        await on.start_agent("n1")
        await all_is_as_it_was(on, long, done)
        (on.place / "gate").touch()
        async with GridClient(on.url) as client:
            view = await client.wait(long)
        assert view.outcome is not None and (view.outcome.cause, view.outcome.code) == (Cause.EXITED, 5)
        assert view.retried == 0
        in_order(view)


async def is_heard(client: GridClient) -> bool:
    (node,) = await client.nodes()
    return node.state is NodeState.UP and node.silent_for < 6


async def is_running(client: GridClient, job: str) -> bool:
    return (await client.show(job)).state is State.RUNNING
