"""The watch over idle nodes: from buckets to forecasts, over restarts of the coordinator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distributed_grid.coordinator.core.commands import Event, ForecastsReported
from distributed_grid.coordinator.core.trends.idle import STEP
from distributed_grid.coordinator.history.history import TURNS, History
from distributed_grid.coordinator.history.idle import IDLE, IdleWatch
from distributed_grid.protocol.history.buckets import SECONDS
from tests.coordinator.history.scene import Clock, bucket, numbers, told


class Scene:
    """A history with its watch, under a clock that is moved."""

    def __init__(self, path: Path) -> None:
        self.clock, self.path = Clock(), path
        self.put: list[Event] = []
        self.begin()

    def begin(self) -> None:
        self.history = History(self.path, 1 << 30, self.clock)
        self.watch = IdleWatch(self.history, lambda name: IDLE, self.put.append)

    async def again(self) -> None:
        """The coordinator is stopped and started."""
        self.watch.keep()
        await self.history.close()
        self.begin()

    async def measure(self, minutes: int, foreign: float, node: str = "lab1") -> None:
        """So many minutes pass with this use by the owner; the watch looks each five."""
        for minute in range(minutes):
            for _ in range(60 // SECONDS):
                self.clock.now += SECONDS
                self.history.store(node, "b", told(self.clock, bucket(numbers(self.clock, 1)[0], foreign, 0.0)))
            if minute % 5 == 4:
                await self.written()
                await self.watch.follow(node)

    async def written(self) -> None:
        for _ in range(TURNS):
            self.history.tick()
            if (writing := self.history._writing) is not None:
                await writing


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path / "history.db")
    yield made
    await made.history.close()


async def test_a_node_is_idle_since_its_owner_used_it_last(scene: Scene) -> None:
    await scene.measure(20, 0.8)
    assert scene.watch.forecast("lab1") is None
    await scene.measure(30, 0.1)
    found = scene.watch.forecast("lab1")
    assert found is not None and 25 * 60 <= found.idle <= 35 * 60
    assert [one.seconds for one in found.lasting] == [1800, 7200, 14400]
    assert found.peak == pytest.approx(0.1, abs=0.01), "what its owner used even then"


@pytest.mark.parametrize("late", [60.0, 150.0, 280.0])
async def test_a_node_is_idle_for_no_longer_than_it_was_measured(scene: Scene, late: float) -> None:
    scene.clock.now += late
    began = scene.clock.now
    for _ in range(3):
        await scene.measure(5, 0.1)
        found = scene.watch.forecast("lab1")
        assert found is None or found.idle <= found.made - began
    assert found is not None and found.idle == 600.0, "two whole intervals of five minutes"
    scene.clock.now += 7200.0
    again = scene.clock.now
    await scene.measure(15, 0.1)
    found = scene.watch.forecast("lab1")
    assert found is not None and found.idle <= found.made - again, "nor than since it was measured again"


async def test_memory_of_the_owner_counts_as_use_and_the_grids_own_use_does_not(scene: Scene) -> None:
    scene.watch = IdleWatch(scene.history, lambda name: IDLE._replace(memory=0.05), scene.put.append)
    await scene.measure(20, 0.1)
    assert scene.watch.forecast("lab1") is None


async def test_what_was_learned_and_since_when_it_is_idle_outlives_the_coordinator(scene: Scene) -> None:
    await scene.measure(20, 0.8)
    await scene.measure(200, 0.1)
    before = scene.watch.forecast("lab1")
    assert before is not None and before.lasting[0].told > 0
    await scene.again()
    await scene.measure(5, 0.1)
    found = scene.watch.forecast("lab1")
    assert found is not None and found.idle == before.idle + 300.0 and found.lasting[0].told == before.lasting[0].told
    assert sum(scene.watch._pool.cases) >= before.lasting[0].told


async def test_a_node_that_is_silent_is_not_forecast(scene: Scene) -> None:
    await scene.measure(30, 0.1)
    assert scene.watch.forecast("lab1")
    scene.clock.now += 1500.0
    assert scene.watch.forecast("lab1") is None and scene.watch.forecast("nobody") is None


async def test_a_node_that_is_renamed_has_no_past_of_its_own_and_its_old_name_no_forecast(scene: Scene) -> None:
    await scene.measure(240, 0.1)
    before = scene.watch.forecast("lab1")
    await scene.measure(30, 0.1, node="lab9")
    found = scene.watch.forecast("lab9")
    assert before is not None and before.lasting[0].cases > 0
    assert found is not None and 0 < found.idle <= 1800.0 and not any(one.cases for one in found.lasting)
    assert scene.watch.forecast("lab1") is None
    scene.watch.tell(["lab1", "lab9"])
    (told_of,) = (one for one in scene.put if isinstance(one, ForecastsReported))
    assert told_of.nodes.get("lab1") is None and told_of.nodes["lab9"] == found


async def test_of_a_node_that_is_gone_only_what_it_learned_is_kept_and_it_counts_once(scene: Scene) -> None:
    """Machines come and go by the thousand, each with a name of its own."""
    await scene.measure(240, 0.1)
    cases = list(scene.watch._pool.cases)
    scene.watch.forget()
    assert list(scene.watch._nodes) == ["lab1"], "it is there"
    scene.clock.now += 3700.0
    await scene.written()
    scene.watch.forget()
    assert scene.watch._nodes == {} and scene.watch._pool.cases == cases
    await scene.measure(10, 0.1)
    found = scene.watch.forecast("lab1")
    assert found is not None and found.lasting[0].told > 0 and scene.watch._pool.cases == cases


async def test_a_cut_is_waited_out_and_then_observed(scene: Scene) -> None:
    await scene.measure(30, 0.1)
    scene.clock.now += 1200.0
    await scene.watch.follow("lab1")
    late = [bucket(number, 0.1, 0.0) for number in numbers(scene.clock, 120)]
    scene.history.store("lab1", "b", told(scene.clock, *late))
    await scene.watch.follow("lab1")
    found = scene.watch.forecast("lab1")
    assert found is not None and found.idle >= 45 * 60


async def test_what_cannot_be_read_of_the_past_is_learned_anew(scene: Scene) -> None:
    await scene.measure(30, 0.1)
    scene.history.learned["lab1"] = b"\xc1"
    await scene.history.close()
    scene.begin()
    await scene.measure(10, 0.1)
    assert scene.watch.forecast("lab1")


async def test_the_ledger_is_told_of_each_forecast_once_and_of_its_end(scene: Scene) -> None:
    await scene.measure(30, 0.1)
    scene.watch.tell(["lab1", "nobody"])
    scene.watch.tell(["lab1", "nobody"])
    assert scene.put == [ForecastsReported({"lab1": scene.watch.forecast("lab1")})]
    scene.clock.now += 3 * STEP
    scene.watch.tell(["lab1"])
    scene.watch.tell(["lab1"])
    assert scene.put[1:] == [ForecastsReported({"lab1": None})]


async def test_of_a_node_in_use_the_ledger_hears_what_holds_once_it_is_left_and_nobody_else(scene: Scene) -> None:
    await scene.measure(30, 0.1)
    await scene.measure(30, 0.9)
    scene.watch.tell(["lab1"])
    (told,) = scene.put
    assert isinstance(told, ForecastsReported)
    found = told.nodes["lab1"]
    assert found is not None and found.idle == 0.0 and [one.seconds for one in found.lasting] == [1800, 7200, 14400]
    await scene.measure(10, 0.9)
    scene.watch.tell(["lab1"])
    assert scene.put == [told], "that is told again where it has changed, only"
    assert scene.watch.forecast("lab1") is None
