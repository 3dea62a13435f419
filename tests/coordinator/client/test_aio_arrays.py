"""Arrays and dependencies by the Python client."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, describe_job
from distributed_grid.protocol.jobs import Cause, State
from tests.coordinator.ends import agent, coordinator


async def test_an_array_and_what_waits_for_it(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url)
        array = await client.submit("true", array="1-5%2", name="sweep")
        last = await client.submit("true", after_ok=["sweep"])
        assert (await client.wait(last)).state is State.ENDED
        view = await client.show_array(array)
        assert (view.count, view.states, view.failed) == (5, {"ended": 5}, 0)
        assert [one.index for one in await client.members(array)] == [1, 2, 3, 4, 5]
        order = [launch.job for launch in worker.launched]
        assert order.index(last) == 5
        assert {launch.spec.env["GRID_ARRAY_INDEX"] for launch in worker.launched[:5]} == {"1", "2", "3", "4", "5"}
        await worker.close()


async def test_the_members_of_a_large_array_come_in_several_answers(tmp_path: Path) -> None:
    """Of many members, and of large ones: an answer holds 4 MiB."""
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        many = await client.submit("true", array="0-2499,5000", name="many")
        large = await client.submit(["echo", *["x" * 100_000] * 3], array="1-39:2")
        assert [one.index for one in await client.members(many)] == [*range(2500), 5000]
        assert [one.index for one in await client.members(large)] == [*range(1, 40, 2)]
        assert [one.index for one in await client.members("many_3-5,7")] == [3, 4, 5, 7]
        assert [one.index for one in await client.members("many_5000")] == [5000]


async def test_jobs_are_named_by_their_keys_also_over_several_calls(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        jobs = [describe_job("true", key="a"), describe_job("true", key="b", after=["a"])]
        first, second = await client.submit_many(jobs)
        assert await client.submit_many(jobs) == [first, second]
        (third,) = await client.submit_many([describe_job("true", key="c", after_any=["b"], after_ok=["a"])])
        assert [one.on for one in (await client.show(third)).after] == [first, second]
        await client.cancel(first)
        ended = await client.wait(third)
        assert ended.outcome is not None
        assert (ended.outcome.cause, ended.outcome.text) == (Cause.DEPENDENCY_FAILED, f"{first} was cancelled")


async def test_who_waits_for_nobody_is_refused_and_nothing_of_the_call_is_taken(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        with pytest.raises(RequestRefused, match="no job 'nobody'"):
            await client.submit_many([describe_job("true"), describe_job("true", after=["nobody"])])
        assert await client.jobs(ended=True) == []
