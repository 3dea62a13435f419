"""Answers about trends, from a coordinator over real sockets."""

import asyncio
import itertools
from pathlib import Path
from typing import Any
from unittest.mock import ANY

from distributed_grid.coordinator.api import history as module
from distributed_grid.coordinator.api.history import step_of
from distributed_grid.coordinator.history.idle import IdleLimits
from distributed_grid.core import GridClient
from distributed_grid.protocol.history.trends import WINDOWS, Measured
from distributed_grid.protocol.messages import (
    Buckets,
    Failed,
    GetForecast,
    GetShared,
    GetTrends,
    NodeForecast,
    Trends,
    joined,
    next_page,
)
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import Resources
from tests.coordinator.ends import PATIENCE, ClientEnd, Coordinator, agent, client, coordinator, node
from tests.coordinator.history.scene import bucket

numbers = itertools.count(1)


async def measured(grid: Coordinator, name: str, count: int) -> Any:
    """A node that has told so many buckets, and is known to have."""
    worker = await agent(grid.url, node(name))
    for first in range(500 - count, 500, 50):
        await worker.say(Buckets(at=5010.0, buckets=tuple(map(bucket, range(first, min(500, first + 50))))))
    async with asyncio.timeout(PATIENCE):
        while count and grid.server._history.newest(name) != (bucket(499), ANY):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return worker


async def ask(end: ClientEnd, **asked: Any) -> Any:
    return await end.ask(GetTrends(next(numbers), **asked))


async def test_a_node_is_told_of_with_all_its_resources_and_forecasts(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await measured(grid, "n1", 30), await client(grid.url)
        answer: Trends = await ask(ann, node="n1", window=300.0)
        (one,) = answer.nodes
        assert [trend.what for trend in one.trends] == [Measured.CPU, Measured.MEMORY, Measured.DISK, Measured.NET]
        assert one.trends[0].buckets >= 28 and abs(one.trends[0].level - 0.75) < 0.01
        assert one.trends[0].forecast is None and one.trends[0].unsure
        assert one.all is not None and one.owner is not None and one.all.score > one.owner.score
        assert (one.state, one.total.cpu, 0 <= one.seen < 60) == (NodeState.UP, 4000, True)
        await worker.close()
        await ann.close()


async def test_all_nodes_are_told_of_by_name_and_those_without_a_trend_say_so(tmp_path: Path, monkeypatch: Any) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await measured(grid, name, count) for name, count in (("n2", 30), ("n1", 2), ("n3", 0))]
        ann = await client(grid.url)
        whole: Trends = await ask(ann)
        assert [one.node for one in whole.nodes] == ["n1", "n2", "n3"] and whole.past == ""
        assert whole.nodes[0].trends[0].why == "2 of at least 3 buckets"
        assert whole.nodes[1].trends[0].why == "" and whole.nodes[1].trends[0].unsure == ""
        assert whole.nodes[2].seen == -1.0 and whole.nodes[2].all is None
        monkeypatch.setattr(module, "LIST_BYTES", 10)
        asked: Any = GetTrends(next(numbers))
        page = answer = await ann.ask(asked)
        while (asked := next_page(asked, page, next(numbers))) is not None:
            page = await ann.ask(asked)
            answer = joined(answer, page)
        assert [one.node for one in answer.nodes] == ["n1", "n2", "n3"]
        for end in (*workers, ann):
            await end.close()


async def test_a_node_or_window_that_there_is_not_is_refused(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        assert (await ask(ann)).nodes == ()
        for asked, what in (({"node": "n9"}, "unknown node 'n9'"), ({"window": 7.0}, "there is no window of 7 s")):
            refused = await ask(ann, **asked)
            assert isinstance(refused, Failed) and refused.what == what
        await ann.close()


async def test_of_a_node_without_agent_nothing_is_forecast_since_nothing_measures_it(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as operator:
        await operator.declare_node("w1", Resources(4000))
        ann = await client(grid.url)
        found: NodeForecast = await ann.ask(GetForecast(next(numbers), "w1"))
        assert (found.lasting, found.why) == ((), "it has no agent, which would measure it")
        await ann.close()


async def test_a_node_is_forecast_where_it_is_followed_and_in_the_list_where_it_is_believed(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await measured(grid, "n1", 200), await client(grid.url)
        silent: NodeForecast = await ann.ask(GetForecast(next(numbers), "n1"))
        assert silent.lasting == () and silent.why.startswith("its owner uses it, or")
        grid.server._idle_limits = lambda name: IdleLimits(1.0, 1.0, 1.0)  # type: ignore[method-assign]
        grid.server.idle._limits = grid.server._idle_limits
        await grid.server.idle.follow("n1")
        found: NodeForecast = await ann.ask(GetForecast(next(numbers), "n1"))
        assert [one.seconds for one in found.lasting] == [1800.0, 7200.0, 14400.0] and found.idle_for > 1200
        assert (await ann.ask(GetShared(next(numbers)))).lasting == {}  # it has no past yet
        for learner in grid.server.idle._nodes["n1"]._learners:  # at some times of day one has learned a case by now
            learner.learned.cases, learner.learned.lasted, learner.learned.wrong = [9] * 10, [9] * 10, (0.0, 0.0)
        grid.server.idle.tell(["n1"])
        assert (await ann.ask(GetShared(next(numbers)))).lasting["n1"] > 0.9
        unknown = await ann.ask(GetForecast(next(numbers), "n9"))
        assert isinstance(unknown, Failed) and unknown.what == "unknown node 'n9'"
        await worker.close()
        await ann.close()


def test_windows_have_at_most_1440_values() -> None:
    assert {name: seconds / step_of(seconds) for name, seconds in WINDOWS.items()} == {
        "5m": 30, "15m": 90, "1h": 360, "1d": 1440, "1w": 672
    }  # fmt: skip
