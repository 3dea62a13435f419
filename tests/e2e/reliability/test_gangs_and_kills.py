"""Coordinator and agents are killed with -9 while a gang runs: it stays one, and no member runs twice."""

import asyncio
from pathlib import Path

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import Cause, JobView, State
from tests.e2e.scenes import Scene, scene


def member(place: Path, first: str, second: str) -> list[str]:
    """Each member notes its start; rank 0 does `first`, rank 1 waits for a file and does `second`."""
    wait = f"until [ -e {place}/go ]; do sleep 0.05; done"
    return ["sh", "-c", f"echo start >> {place}/starts$RANK; if [ $RANK = 0 ]; then {first}; else {wait}; {second}; fi"]


async def began(grid: Scene, client: GridClient, *command: str) -> str:
    """A gang on both nodes, of which both members have started."""
    gang = await client.submit(list(command), nodes=2)
    await grid.until(lambda: all((grid.place / f"starts{rank}").exists() for rank in (0, 1)), "both have started")
    return gang


async def ended(grid: Scene, client: GridClient, gang: str) -> list[JobView]:
    views = [await asyncio.wait_for(client.wait(f"{gang}_{rank}"), 60) for rank in (0, 1)]
    assert [(grid.place / f"starts{rank}").read_text() for rank in (0, 1)] == ["start\n", "start\n"]
    assert (await client.show_array(gang)).ended
    return views


async def test_what_came_of_one_member_is_kept_while_everything_around_it_is_killed() -> None:
    async with scene() as grid:
        await grid.agent("n1", virtual=True)
        await grid.agent("n2", virtual=True)
        async with GridClient(grid.url) as client:
            gang = await began(grid, client, *member(grid.place, "exit 0", "exit 0"))

            async def waits() -> bool:
                view = await client.show(f"{gang}_0")
                return view.state is State.WAITING and view.reason is not None and view.reason.code == "Gang"

            await grid.until(waits, "the first is done and waits for the other")
            grid.kill("coordinator")
            grid.kill("n1")
            grid.kill("n2")
            await grid.coordinator()
            grid.again("n1")
            grid.again("n2")
            (grid.place / "go").touch()
            views = await ended(grid, client, gang)
            assert [view.outcome and (view.outcome.cause, view.outcome.code) for view in views] == [
                (Cause.EXITED, 0)
            ] * 2
            assert [view.attempt for view in views] == [1, 1]


async def test_a_member_that_fails_while_the_coordinator_is_dead_ends_the_others_when_that_is_back() -> None:
    async with scene() as grid:
        await grid.agent("n1", virtual=True)
        await grid.agent("n2", virtual=True)
        async with GridClient(grid.url) as client:
            gang = await began(grid, client, *member(grid.place, "exec sleep 600", f"touch {grid.place}/over; exit 3"))
            grid.kill("coordinator")
            (grid.place / "go").touch()
            await grid.until((grid.place / "over").exists, "it has failed")
            await grid.coordinator()
            first, second = await ended(grid, client, gang)
            assert first.outcome is not None and first.outcome.cause is Cause.GANG
            assert second.outcome is not None and (second.outcome.cause, second.outcome.code) == (Cause.EXITED, 3)
