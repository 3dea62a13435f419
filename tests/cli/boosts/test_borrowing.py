"""`grid boost request` while it waits: signals, and a coordinator that goes away. With a played Ray."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from distributed_grid.protocol.jobs import State
from tests.coordinator.ends import PATIENCE, Coordinator, coordinator
from tests.coordinator.played_ray import PlayedRay
from tests.grid_fixture import GRID


@asynccontextmanager
async def asking(url: str, here: Path) -> AsyncIterator[Process]:
    """`grid boost request … --wait`."""
    words = ("boost", "request", "gpu-master", "cpu", "1", "--wait")
    environment = os.environ | {"GRID_COORDINATOR": url}
    process = await asyncio.create_subprocess_exec(*GRID, *words, cwd=here, env=environment, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_with(process: Process, word: str) -> str:
    """The next line on its stderr that has this."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while line := (await process.stderr.readline()).decode():
            if word in line:
                return line
    pytest.fail(f"it ended, and never said {word!r}")


def waiting(grid: Coordinator) -> list[str]:
    return [job.id for job in grid.ledger.state.jobs.values() if job.state is State.WAITING]


INT, TERM, HUP, QUIT = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


@pytest.mark.parametrize("signals", [(INT,), (INT, INT), (TERM,), (HUP,), (QUIT,)])
async def test_a_signal_takes_back_a_boost_that_waits(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    async with coordinator(tmp_path, ray=PlayedRay()) as grid, asking(grid.url, tmp_path) as process:
        await line_with(process, "waits: ")
        assert len(waiting(grid)) == 1
        for number in signals:
            process.send_signal(number)
        assert "taken back" in await line_with(process, "taken back")
        assert await process.wait() == 128 + signals[0]
        assert not waiting(grid)


async def test_a_signal_before_the_answer_takes_the_boost_back_when_it_is_known(tmp_path: Path) -> None:
    ray = PlayedRay()
    ray.answers.clear()
    async with coordinator(tmp_path, ray=ray) as grid, asking(grid.url, tmp_path) as process:
        async with asyncio.timeout(PATIENCE):
            await ray.asked.wait()
        process.send_signal(signal.SIGINT)
        ray.answers.set()
        await line_with(process, "taken back")
        assert await process.wait() == 130
        assert not waiting(grid)


async def test_where_the_coordinator_goes_away_and_comes_back_it_is_the_same_boost(tmp_path: Path) -> None:
    ray = PlayedRay()
    first = Coordinator(tmp_path, ray=ray)
    port = await first.server.listen("127.0.0.1", 0)
    async with asking(f"ws://127.0.0.1:{port}", tmp_path) as process:
        await line_with(process, "waits: ")
        (boost,) = waiting(first)
        await first.stop()
        await line_with(process, "connection lost")
        second = Coordinator(tmp_path, ray=ray)
        await second.server.listen("127.0.0.1", port)
        try:
            await line_with(process, "connected again")
            process.send_signal(signal.SIGTERM)
            assert boost in await line_with(process, "taken back")
            assert not waiting(second)
        finally:
            await second.stop()


async def test_who_leaves_while_the_coordinator_is_gone_is_told_what_may_be_left(tmp_path: Path) -> None:
    grid = Coordinator(tmp_path, ray=PlayedRay())
    port = await grid.server.listen("127.0.0.1", 0)
    async with asking(f"ws://127.0.0.1:{port}", tmp_path) as process:
        await line_with(process, "waits: ")
        await grid.stop()
        await line_with(process, "connection lost")
        process.send_signal(signal.SIGINT)
        assert "grid boost release" in await line_with(process, "may wait or be lent")
        assert await process.wait() == 130
