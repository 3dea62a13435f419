"""`grid boost`, where what it does can be seen without a Ray: against a coordinator in this process, and a played Ray.
With a real one: tests/ray."""

import asyncio
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Recalled
from tests.coordinator.client.compat.test_boosts import asked, config, scene
from tests.coordinator.ends import agent, node
from tests.grid_fixture import GRID


async def both(url: str, here: Path, *words: str) -> tuple[int, str, str]:
    """Its exit code, and what it said on stdout and on stderr."""
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | {"GRID_COORDINATOR": url}
    process = await asyncio.create_subprocess_exec(*GRID, *words, cwd=here, env=environment, stdout=pipe, stderr=pipe)
    out, said = await process.communicate()
    return process.returncode or 0, out.decode(), said.decode()


async def grid_command(url: str, here: Path, *words: str) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    code, _, said = await both(url, here, *words)
    return code, said


async def test_released_and_extended_are_boosts_and_never_another_job(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        older, newer = [await manager.request_boost(asked()) for _ in range(2)]
        job = await manager.client.submit("sleep 600")

        code, said = await grid_command(grid.url, tmp_path, "boost", "extend", "last", "10m")
        assert code == 0 and f"{newer} lasts 1h10m in all" in said
        code, said = await grid_command(grid.url, tmp_path, "boost", "release", "last")
        assert code == 0 and f"{newer}: released" in said, "whoever says `last` is told which that was"
        await manager.client.wait(newer or "")
        assert [one.boost_id for one in await manager.get_active_boosts()] == [older]

        for words in (("release", job), ("extend", job, "10m")):
            code, said = await grid_command(grid.url, tmp_path, "boost", *words)
            assert code == 2 and f"{job} is no boost" in said and "grid boost status" in said
        assert (await manager.client.show(job)).state is not State.ENDED

        assert (await grid_command(grid.url, tmp_path, "boost", "release", (older or "")[:9]))[0] == 0
        await manager.client.wait(older or "")
        code, said = await grid_command(grid.url, tmp_path, "boost", "release", "last")
        assert code == 2 and f"{job} is no boost" in said
        assert (await manager.client.show(job)).state is not State.ENDED


async def test_what_no_boost_is_called_is_answered_with_where_the_boosts_are(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        for words in (("release", "j-aaaaaaaaaaaa"), ("extend", "j-aaaaaaaaaaaa", "10m"), ("release", "last")):
            code, said = await grid_command(grid.url, tmp_path, "boost", *words)
            assert code == 1 and f"no boost '{words[1]}'" in said
            assert "grid boost status" in said and "grid jobs" not in said


async def test_the_beginning_of_an_id_is_looked_for_among_boosts_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        boost = await manager.request_boost(asked()) or ""
        begins: list[str] = []
        while begins.count(boost[2]) < 1 or max(map(begins.count, {*begins} - {boost[2]}), default=0) < 2:
            begins.append((await manager.client.submit("sleep 600"))[2])
        others = max({*begins} - {boost[2]}, key=begins.count)

        for words in (("release", others), ("extend", others, "10m")):
            code, said = await grid_command(grid.url, tmp_path, "boost", *words)
            assert (code, said.splitlines()[0]) == (1, f"error: no boost '{others}'")
        code, said = await grid_command(grid.url, tmp_path, "boost", "release", boost[2])
        assert code == 0 and f"{boost}: released" in said
        await manager.client.wait(boost)


async def test_last_is_the_newest_that_lives_and_not_one_that_was_never_lent(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        lent = await manager.request_boost(asked(3.0))
        assert await manager.request_boost(asked(2.0)) is None
        assert (await grid_command(grid.url, tmp_path, "boost", "release", "last"))[0] == 0
        await manager.client.wait(lent or "")
        assert await manager.get_active_boosts() == []
        code, said = await grid_command(grid.url, tmp_path, "boost", "release", "last")
        assert code == 0 and "ended already" in said


async def test_a_fraction_is_lent_as_whole_cores_and_that_is_said(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker):
        code, said = await grid_command(grid.url, tmp_path, "boost", "request", "gpu-master", "cpu", "1.5")
        assert code == 0 and "a raylet has whole cores: 2 cpu for 1.5" in said and "added 2 cpu at n1" in said
        assert len(worker.launched[0].grant.cores) == 2


@pytest.mark.parametrize(
    ("words", "code"), [(("--source", "n1"), 0), (("--only-source", "n1"), 1), (("--only-source", "n2"), 0)]
)
async def test_a_preferred_source_without_room_is_no_obstacle_and_the_only_one_is(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    async with scene(tmp_path) as (grid, ray, _), ResourceBoostManager(config(grid.url)) as manager:
        assert await manager.request_boost(asked(4.0))
        other = await agent(grid.url, node("n2"), runs=ray.joins)
        done, _ = await grid_command(grid.url, tmp_path, "boost", "request", "gpu-master", "cpu", "1", *words)
        assert done == code
        assert len(other.launched) == (code == 0)
        await other.close()


@pytest.mark.parametrize(("kind", "amount"), [("gpu", "1"), ("cpu", "9")])
async def test_what_no_node_has_is_said_in_the_guides_words(tmp_path: Path, kind: str, amount: str) -> None:
    async with scene(tmp_path) as (grid, _, worker):
        code, said = await grid_command(grid.url, tmp_path, "boost", "request", "gpu-master", kind, amount)
        assert code == 1 and "No nodes have sufficient available resources" in said and "why:" in said
        assert not worker.launched


async def test_who_borrows_is_told_that_it_is_taken_back_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        boost = await manager.request_boost(asked())
        assert boost is not None

        async def drains(message: object) -> None:
            """It is told to stop, and takes its time."""

        monkeypatch.setattr(worker, "react", drains)
        await worker.say(Recalled(allocation=f"{boost}.1", why="foreign CPU 87 % > 30 %", grace=15.0))
        async with asyncio.timeout(60.0), aclosing(manager.client.follow(boost)) as views:
            async for view in views:
                if view.state is State.STOPPING:
                    break
        why = "recalled: the owner of n1 is back (foreign CPU 87 % > 30 %); it has 15 s to end"
        (told,) = (await manager.get_boost_status())["boosts"]
        assert (told["boost_id"], told["state"], told["ending"]) == (boost, "stopping", why)
        code, shown, _ = await both(grid.url, tmp_path, "boost", "status")
        assert code == 0 and f"{boost} ends: {why}\n" in shown
