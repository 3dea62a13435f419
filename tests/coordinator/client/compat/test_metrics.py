"""`ResourceMetricsCollector` as the intelligent sharing guide has it, against a real coordinator and played agents."""

import asyncio
from pathlib import Path

import pytest

from distributed_grid.core import BadValue, GridClient, GridUnavailable, RequestRefused
from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector, ResourceType
from tests.coordinator.api.test_history_trends import measured
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node


async def test_snapshots_say_what_nodes_have_and_how_much_pressure_they_are_under(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await measured(grid, "n1", 30), await measured(grid, "n2", 0)]
        collector = ResourceMetricsCollector(config(grid.url))
        assert collector.get_all_latest_snapshots() == {}
        await collector.start()
        snapshots = collector.get_all_latest_snapshots()
        assert list(snapshots) == ["n1", "n2"]
        assert snapshots["n1"]["state"] == "up" and snapshots["n1"]["cpu"]["total"] == 4.0
        assert 0 < snapshots["n1"]["owner_pressure"] < snapshots["n1"]["pressure"] <= 1
        assert snapshots["n2"]["pressure"] is None
        await collector.stop()
        assert collector.get_all_latest_snapshots() == snapshots
        with pytest.raises(GridUnavailable, match="closed"):
            await collector.client.status()
        for worker in workers:
            await worker.close()


async def test_a_trend_has_the_three_windows_of_the_guide(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await measured(grid, "n1", 60), await measured(grid, "n2", 2)]
        async with ResourceMetricsCollector(config(grid.url)) as collector:
            for kind in ("cpu", ResourceType.CPU, "CPU"):
                trend = await collector.get_resource_trend("n1", kind)
                assert (trend["node"], trend["resource"], list(trend["windows"])) == ("n1", "cpu", ["5m", "15m", "1h"])
                found = trend["windows"]["5m"]
                assert found["why"] == "" and abs(found["level"] - 0.75) < 0.01 and abs(found["slope_per_hour"]) < 0.1
                assert 0 <= found["owner"] < found["level"] <= found["p95"]
            told = (await collector.get_resource_trend("n1", "memory"))["windows"]["15m"]["forecast"]
            assert told is None or told["low"] <= told["value"] <= told["high"]
            short = await collector.get_resource_trend("n2", "cpu")
            assert {one["why"] for one in short["windows"].values()} == {"2 of at least 3 buckets"}
            assert (await collector.get_resource_trend("n1", "gpu"))["windows"]["5m"] == {
                "why": "the node has none",
                "buckets": 0,
            }
            with pytest.raises(BadValue, match="no trend of 'cpus'") as refused:
                await collector.get_resource_trend("n1", "cpus")
            assert refused.value.hint.startswith("did you mean cpu?")
            for nobody in ("", None):
                with pytest.raises(BadValue, match="is no node"):
                    await collector.get_resource_trend(nobody, "cpu")  # type: ignore[arg-type]
            with pytest.raises(RequestRefused, match="n3"):
                await collector.get_resource_trend("n3", "cpu")
        for worker in workers:
            await worker.close()


async def test_the_summary_adds_up_the_cluster_and_has_the_guides_performance_metrics(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await measured(grid, "n1", 30)
        await client.result(await client.submit("true"))
        async with ResourceMetricsCollector(config(grid.url), client) as collector:
            summary = await collector.get_cluster_summary()
        assert summary["nodes"] == {"up": 1} and summary["busiest"] == "n1"
        assert summary["total"]["cpu"] == 4.0 and summary["offered"]["cpu"] == 4.0 and summary["lent"]["cpu"] == 0.0
        assert summary["used"]["cpu"]["all"] > summary["used"]["cpu"]["owner"]
        assert 0 < summary["pressure"]["owner"] < summary["pressure"]["all"] <= 1
        performance = summary["performance"]
        assert list(performance) == [
            "task_execution_time",
            "resource_efficiency",
            "allocation_success_rate",
            "rebalancing_frequency",
        ]
        assert performance["allocation_success_rate"] == 1.0 and performance["task_execution_time"]["median"] >= 0
        assert (await client.status()).placed == 1, "a client that was given stays connected"
        await worker.close()


async def test_nodes_are_polled_until_it_is_stopped_also_after_its_connection_was_lost(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        often = config(grid.url, resource_sharing__monitoring_interval_seconds="0.05")
        async with ResourceMetricsCollector(often) as collector:
            worker = await agent(grid.url)
            await _seen(collector, 1)
            await collector.client.close()
            second = await agent(grid.url, node("n2"))
            await _seen(collector, 2)
            await second.close()
        await worker.close()


async def test_it_is_stopped_and_started_again_where_the_event_loop_that_polled_is_closed(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        collector = ResourceMetricsCollector(config(grid.url))

        def program() -> None:
            for call in (collector.start, collector.stop, collector.start, collector.get_cluster_summary):
                asyncio.run(call())
            asyncio.run(collector.stop())

        await asyncio.to_thread(program)


async def _seen(collector: ResourceMetricsCollector, count: int) -> None:
    async with asyncio.timeout(60.0):
        while len(collector.get_all_latest_snapshots()) < count:  # noqa: ASYNC110 (as its user would)
            await asyncio.sleep(0.02)
