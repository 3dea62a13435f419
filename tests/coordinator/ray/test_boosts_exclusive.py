"""The placement groups of exclusive boosts: asked for once their raylets start, gone when these are to end. With a real
Ray: tests/ray/test_exclusive.py."""

import asyncio
import math
from typing import Any

from distributed_grid.coordinator.core.model import Active, Attempt, Job
from distributed_grid.coordinator.ray.boosts import Groups
from distributed_grid.coordinator.ray.bridge_client import Bridge
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import JobSpec, Request, State
from distributed_grid.protocol.resources import Grant, Resources, ResourceType


class Played(Bridge):
    """Has the groups that it is asked for at once."""

    def __init__(self, *groups: str) -> None:
        super().__init__("192.0.2.1:6379", {})
        self.groups = dict.fromkeys(groups, "CREATED")
        self.asked: list[tuple[str, Any]] = []
        self.slow: asyncio.Event | None = None

    async def ask(self, what: str, *, seconds: float = 10.0, **words: Any) -> Any:
        self.asked.append((what, words))
        if what == "reserve":
            if self.slow is not None:
                await self.slow.wait()
            self.groups[words["name"]] = "CREATED"
        elif what == "release":
            return self.groups.pop(words["name"], None) is not None
        return self.groups


def boost(name: str = "j-a", exclusive: bool = True, state: State = State.STARTING, started: float = 5.0) -> Job:
    lent = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 2000, exclusive=exclusive)
    spec = JobSpec(("ray",), boost=lent, time_limit=60.0)
    made = Job(id=name, key=name, user="ann", spec=spec, request=Request(Resources(cpu=2000)), submitted=1.0)
    made.phase = Active(state=state, attempt=Attempt("", Grant(cores=(0, 1)), started))
    made.begun = state is State.RUNNING
    return made


async def looked(groups: Groups, *jobs: Job, now: float = 6.0) -> None:
    groups.reconcile(jobs, now)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_group_over_all_of_it_is_asked_for_when_the_raylet_starts_and_not_again() -> None:
    ray = Played()
    groups = Groups(ray, ())
    await looked(groups, boost(started=0.0), boost("j-shared", exclusive=False))
    assert not ray.asked and not groups
    await looked(groups, boost())
    ((what, words),) = ray.asked
    assert (what, words["name"], words["selector"]) == ("reserve", "grid-boost-j-a", {"grid-boost": "j-a"})
    assert words["bundle"] == {"CPU": 2.0, "boost_gpu-master": 2.0}
    await looked(groups, boost(state=State.RUNNING))
    assert len(ray.asked) == 1 and groups


async def test_it_goes_when_the_boost_stops_or_ended_or_its_time_is_over() -> None:
    for jobs, now in (([boost(state=State.STOPPING)], 6.0), ([], 6.0), ([boost(state=State.RUNNING)], 65.0)):
        ray = Played("grid-boost-j-a")
        groups = Groups(ray, [boost(state=State.RUNNING)])  # as a coordinator that starts again finds it
        await looked(groups, boost(state=State.RUNNING), now=64.0)
        assert not ray.asked
        await looked(groups, *jobs, now=now)
        assert ray.groups == {} and not groups


async def test_one_that_is_still_asked_for_goes_again_until_that_is_over() -> None:
    ray = Played()
    ray.slow = asyncio.Event()
    groups = Groups(ray, ())
    await looked(groups, boost())
    await looked(groups, boost(state=State.STOPPING))
    assert ray.groups == {} and groups
    ray.slow.set()
    await looked(groups)
    await looked(groups)
    assert ray.groups == {} and not groups


async def test_it_is_known_when_the_next_one_goes_by_its_time() -> None:
    lent = boost(state=State.RUNNING), boost("j-b", state=State.RUNNING, started=25.0)
    groups = Groups(Played(), lent)
    assert groups.rest(lent, 60.0) == 5.0
    assert groups.rest(lent, 70.0) == 15.0
    assert groups.rest([boost()], 0.0) == math.inf, "its time has not begun"
    assert groups.rest([boost("j-c")], 0.0) == math.inf, "of those that have no group"
