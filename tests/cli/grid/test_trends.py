"""`grid trends`, `grid top`, `grid cluster summary`: what they print of an answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.trends import amount, sparkline
from distributed_grid.cli.main import main
from distributed_grid.protocol.history.trends import Forecast, IdleChance, Measured, NodeTrends, Trend
from distributed_grid.protocol.messages import (
    Durations,
    GetForecast,
    GetStatus,
    GetTrends,
    NodeForecast,
    Status,
    Trends,
)
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.pressure import Pressure
from tests.coordinator.core.scene import facts

CPU = Trend(
    what=Measured.CPU, step=10.0, buckets=90, level=0.42, spread=0.1, p95=0.8, slope=-0.12, last=0.4, owner=0.3,
    points=(0.0, 0.5, -1.0, 1.0),
)  # fmt: skip
NET = Trend(what=Measured.NET, step=10.0, buckets=90, level=2048.0, p95=1e6, slope=-512.0, last=0.0, points=(1.0, 2.0))
LASTING = (
    IdleChance(1800.0, 0.9),
    IdleChance(7200.0, 0.81, 31, 25, 1204, 987),
    IdleChance(14400.0, 0.5, 9, 4, 200, 40, False),
)
WAITS = Durations(1204, 0.5, 61.0, 90.0)
SURE = replace(CPU, forecast=Forecast(900.0, 0.4, 0.22, 0.61, 573))


def node(name: str, score: float | None, *trends: Trend) -> NodeTrends:
    pressure = None if score is None else Pressure(score, score, score)
    owner = None if score is None else Pressure(score / 2)
    seen = -1.0 if score is None else 4.0
    return NodeTrends(
        node=name, state=NodeState.UP, total=Resources(4000), all=pressure, owner=owner, trends=trends, seen=seen
    )


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against these nodes."""

    def run(*words: str, nodes: tuple[NodeTrends, ...] = (), trouble: str = "") -> Result:
        def ask(self: Invocation, make: Callable[[int], Any]) -> Any:
            asked = make(1)
            if isinstance(asked, GetTrends):
                return Trends(1, nodes, asked.window, 1e9, trouble)
            if isinstance(asked, GetForecast):
                return (
                    NodeForecast(1, asked.node, 11_400.0, LASTING)
                    if trouble == ""
                    else NodeForecast(1, "n", why=trouble)
                )
            assert isinstance(asked, GetStatus)
            view = NodeView(facts=facts("a"), state=NodeState.UP, offered=Resources(1000))
            return Status(
                id=1,
                grid="g",
                software="1",
                epoch=1,
                up_for=1.0,
                nodes=(view,),
                counts={},
                ended={},
                at=1.0,
                waits=WAITS,
                runs=WAITS,
            )

        monkeypatch.setattr(Invocation, "ask", ask)
        return CliRunner().invoke(main, words)

    return run


def test_bars_are_parts_of_one_and_rates_by_their_highest_with_gaps_left_out() -> None:
    assert sparkline(CPU) == "▁▅ █" and sparkline(NET) == "▅█"
    assert sparkline(replace(NET, points=(0.0, 0.0))) == "▁▁"


def test_amounts_are_percent_or_bytes_a_second() -> None:
    assert [amount(Measured.CPU, 0.42), amount(Measured.CPU, -0.12, "+")] == ["42 %", "-12 %"]
    assert [amount(Measured.NET, 2048.0, "+"), amount(Measured.NET, -512.0, "+")] == ["+2K/s", "-512B/s"]


def test_trends_of_a_node_have_its_pressure_and_forecasts(grid: Callable[..., Result]) -> None:
    done = grid("trends", "lab1", nodes=(node("lab1", 0.5, SURE, NET),))
    head, header, cpu, net, last = done.output.splitlines()
    assert head == "lab1, up, last 15m · pressure 0.50, of the owner alone 0.25 · measured 4.0s ago"
    assert header.endswith("IN 15m, 90 %") and cpu.endswith("40 %, 22 % to 61 %") and "-12 % an hour" in cpu
    assert "-512B/s an hour" in net and last == "90 of 90 intervals of 10s were measured"


def test_a_node_without_a_trend_says_why(grid: Callable[..., Result]) -> None:
    young = Trend(what=Measured.CPU, step=10.0, buckets=2, why="2 of at least 3 buckets")
    done = grid("trends", nodes=(node("lab1", None, young),))
    assert "2 of at least 3 buckets" in done.output and done.exit_code == 0
    assert grid("trends").output == "no node is known yet\n"


def test_top_has_the_busiest_first_and_those_that_are_not_measured_last(grid: Callable[..., Result]) -> None:
    done = grid("top", nodes=(node("a", 0.1, CPU), node("b", 0.9, CPU), node("c", None)))
    lines = [line.split() for line in done.output.splitlines()]
    assert [line[0] for line in lines] == ["NODE", "b", "a", "c"]
    assert lines[1][2:4] == ["0.90", "0.45"] and "42 % (30)" in done.output
    assert grid("-o", "quiet", "top", nodes=(node("a", 0.1),)).output == "a 0.10\n"


def test_a_window_that_there_is_not_is_a_mistake_of_use(grid: Callable[..., Result]) -> None:
    assert grid("trends", "--window", "2h").exit_code == 2


def test_history_that_is_not_written_is_said_beside_the_answer(grid: Callable[..., Result]) -> None:
    done = grid("top", nodes=(node("a", 0.1),), trouble="database or disk is full")
    assert "history is not written now: database or disk is full" in done.output


def test_json_has_the_same_with_nulls_for_what_is_not_known(grid: Callable[..., Result]) -> None:
    told = json.loads(grid("-o", "json", "trends", "lab1", nodes=(node("lab1", 0.5, SURE, NET),)).output)
    (one,) = told["nodes"]
    assert one["trends"]["cpu"]["forecast"] == {"ahead": 900.0, "value": 0.4, "low": 0.22, "high": 0.61, "errors": 573}
    assert one["trends"]["cpu"]["points"] == [0.0, 0.5, None, 1.0] and one["trends"]["net"]["owner"] is None
    assert one["pressure"] == {"score": 0.5, "cpu": 0.5, "memory": 0.5, "gpu": None}
    empty = json.loads(grid("-o", "json", "top", nodes=(node("c", None),)).output)["nodes"][0]
    assert empty["pressure"] is None and empty["measured_ago"] is None


def test_a_forecast_says_what_it_is_made_of_and_how_often_the_like_came_true(grid: Callable[..., Result]) -> None:
    done = grid("node", "forecast", "lab1")
    head, _, half, two, four = done.output.splitlines()
    assert head == "lab1 has been idle for 3h10m; stays so:"
    assert half.split()[:3] == ["30m00s", "90", "%"] and half.endswith("none yet")
    assert "81 %" in two and "25 of 31 times" in two and two.endswith("82 % of 1,204 came true")
    assert four.endswith("20 % of 200 came true; not used: it is off by more than 5 %")
    told = json.loads(grid("-o", "json", "node", "forecast", "lab1").output)
    assert told["lasting"][1] == {
        "seconds": 7200.0, "probability": 0.81, "cases": 31, "lasted": 25, "told": 1204, "true": 987, "believed": True
    }  # fmt: skip
    assert grid("-o", "quiet", "node", "forecast", "lab1").output.splitlines()[1] == "7200 0.81"


def test_a_node_that_is_not_forecast_says_why(grid: Callable[..., Result]) -> None:
    done = grid("node", "forecast", "n", trouble="its owner uses it")
    assert done.output == "n: nothing is forecast: its owner uses it\n"


def test_the_summary_adds_up_the_grid(grid: Callable[..., Result]) -> None:
    done = grid("cluster", "summary", nodes=(node("a", 0.5, CPU),))
    assert "nodes     1 up" in done.output and "42 %  30 %" in done.output
    pressure, jobs = done.output.splitlines()[-2:]
    assert pressure == "pressure  0.50, of owners alone 0.25; busiest a"
    waited = "waited 0.5s (median), 1m01s (95 %); ran 0.5s (median), 1m01s (95 %)"
    assert jobs == f"jobs      {waited}; 1204 jobs ran and ended since the coordinator started"
    told = json.loads(grid("-o", "json", "cluster", "summary", nodes=(node("a", 0.5, CPU),)).output)
    assert told["waits"] == {"count": 1204, "median": 0.5, "p95": 61.0, "p99": 90.0}
    assert told["nodes"] == {"total": 1, "up": 1} and told["used"] == {"cpu": {"all": 0.42, "owner": 0.3}}
    assert "pressure" not in grid("cluster", "summary").output
