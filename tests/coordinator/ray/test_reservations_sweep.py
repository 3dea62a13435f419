"""Groups that a coordinator left in Ray, and the next one lets go of. With a real Ray: tests/ray/test_exclusive.py."""

import asyncio
from typing import Any

import pytest

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.ray import reservations
from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay
from tests.coordinator.core.placement import test_ray
from tests.coordinator.core.scene import facts, join


class Left(Bridge):
    """Ray with these groups, which cannot be asked so many times before it can. One process is as another."""

    def __init__(self, *groups: str, down: int = 0) -> None:
        super().__init__("192.0.2.1:6379", {})
        self.groups = dict.fromkeys(groups, "CREATED")
        self.down = down
        self.begun = self.closed = 0

    def another(self) -> Bridge:
        self.begun += 1
        return self

    async def close(self) -> None:
        self.closed += 1

    async def ask(self, what: str, *, seconds: float = 10.0, **words: Any) -> Any:
        if self.down:
            self.down -= 1
            raise NoRay("there is no Ray")
        return self.groups.pop(words["name"]) if what == "release" else dict(self.groups)


async def test_what_is_for_nobody_goes_and_nothing_else() -> None:
    ledger = test_ray.scene()
    test_ray.submit(ledger, "j-a")
    ray = Left("grid-job-j-a.1", "grid-job-j-a.0", "grid-job-j-gone.1", "grid-boost-j-a", "grid-boost-j-gone", "grid-x")
    gone = await reservations.sweep(ledger.state, ray)
    assert gone == ["grid-job-j-a.0", "grid-job-j-gone.1", "grid-boost-j-gone"]
    assert list(ray.groups) == ["grid-job-j-a.1", "grid-boost-j-a", "grid-x"]


async def test_a_job_that_ray_has_not_placed_has_no_group() -> None:
    ledger = Ledger()
    join(ledger, facts("lab"))
    test_ray.submit(ledger, "j-a")
    assert "j-a.1" in ledger.state.allocations
    ray = Left("grid-job-j-a.1")
    assert await reservations.sweep(ledger.state, ray) == ["grid-job-j-a.1"]


async def test_where_ray_cannot_be_asked_it_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "SWEEP_FIRST", 0.01)
    ray = Left("grid-job-j-gone.1", down=3)
    async with asyncio.timeout(60):
        await reservations.sweep_until_done(GridState(), ray)
    assert ray.groups == {} and ray.begun == ray.closed == 1, "no process stays that nobody needs"


async def test_where_nothing_is_left_no_process_becomes_a_driver() -> None:
    ray = Left("grid-x")
    assert await reservations.sweep(GridState(), ray) == [] and ray.begun == 0
