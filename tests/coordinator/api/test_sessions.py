"""A user who asks for too much, over real sockets: slowed down and told, while others are served."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from distributed_grid.coordinator.api.relay import Client
from distributed_grid.coordinator.api.requests import Requests
from distributed_grid.coordinator.api.sessions import ASKING
from distributed_grid.coordinator.net import limits
from distributed_grid.protocol.messages import (
    Boosts,
    Cancel,
    Done,
    Failed,
    GetStatus,
    ListBoosts,
    RequestBoost,
    Status,
    Submit,
    Submitted,
)
from distributed_grid.protocol.resources import ResourceType
from tests.apart import apart
from tests.coordinator.ends import agent, client, coordinator, job, runs_on
from tests.coordinator.played_ray import PlayedRay


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has a millisecond of the coordinator's time a second."""
    monkeypatch.setattr(limits, "SHARE", 0.001)
    monkeypatch.setattr(limits, "AT_ONCE", 0.002)
    monkeypatch.setattr(limits, "SLOWEST", 0.05)
    monkeypatch.setattr(limits, "FAR_OVER", 0.5)


@pytest.mark.usefixtures("strict")
async def test_who_floods_by_many_connections_is_told_when_to_try_again_and_others_are_served(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = [await client(grid.url) for _ in range(20)]
        await asyncio.gather(*(end.say(*(GetStatus(number) for number in range(1, 500))) for end in ann))
        told = await ann[0].until(Failed)
        assert told.code == "busy" and "try again in" in told.hint
        bob = await client(grid.url, "bob")
        assert isinstance(await bob.ask(GetStatus(1)), Status)
        answered = sum(len(end.seen) for end in ann)
        assert answered < 20 * 400
        for end in (*ann, bob):
            await end.close()


@pytest.mark.usefixtures("strict")
async def test_a_cancel_is_done_at_once_however_much_its_user_has_asked_for(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (name,) = await ann.submit(job("sleep", "600"))
        pace = grid.server._clients._paces.of("ann")
        pace.spend(GetStatus(1), 60.0, time.monotonic())  # as much as a flood costs on a slow machine
        await ann.say(*(GetStatus(number) for number in range(1, 500)))
        again = await client(grid.url)
        assert pace.wait(GetStatus(1), time.monotonic()) > 0
        assert isinstance(await again.ask(Cancel(id=7777, jobs=(name,), grace=0)), Done)
        view = await ann.until(lambda seen: getattr(getattr(seen, "job", None), "outcome", None) is not None)
        assert view.job.outcome.cause == "cancelled"
        for end in (ann, again, worker):
            await end.close()


async def test_only_what_asks_ray_waits_while_its_head_does_not_answer(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray) as grid:
        ann, again = await client(grid.url), await client(grid.url)
        ray.answers.clear()
        await ann.say(*(ListBoosts(number) for number in range(1, ASKING + 1)))
        await ray.asked.wait()
        try:
            assert isinstance(await ann.ask(GetStatus(100)), Status)
            assert isinstance(await again.ask(GetStatus(101)), Status)
            await ann.say(ListBoosts(102), GetStatus(103))
            assert isinstance(await again.ask(GetStatus(104)), Status)
            told = [seen.id for seen in ann.seen if isinstance(seen, Status | Boosts)]
            assert told == [100], "of one connection no more than that wait at the same time"
        finally:
            ray.answers.set()
        assert isinstance(await ann.until(lambda seen: getattr(seen, "id", 0) == 103), Status)
        assert isinstance(await ann.until(lambda seen: getattr(seen, "id", 0) == 102), Boosts)
        assert sorted(seen.id for seen in ann.seen if isinstance(seen, Boosts)) == [*range(1, ASKING + 1), 102]
        for end in (ann, again):
            await end.close()


class TwoQuestions(PlayedRay):
    """A Ray that is slow to say whether it can be asked for groups."""

    def __init__(self) -> None:
        super().__init__()
        self.says = asyncio.Event()

    async def ask(self, what: str, *, seconds: float = 10.0, **words: Any) -> Any:
        answer = await super().ask(what, seconds=seconds, **words)
        if what == "reserved":
            await self.says.wait()
        return answer


def boost(number: int, exclusive: bool = False) -> RequestBoost:
    return RequestBoost(number, f"k{number}", "gpu-master", ResourceType.CPU, 1.0, wait=True, exclusive=exclusive)


async def test_orders_of_one_connection_are_carried_out_as_sent_and_nothing_else_waits(tmp_path: Path) -> None:
    ray = TwoQuestions()
    async with coordinator(tmp_path, ray=ray) as grid:
        ann, again = await client(grid.url), await client(grid.url)
        orders = [boost(1, exclusive=True), Submit(2, (job(),)), boost(3), Submit(4, (job(),))]
        try:
            await ann.say(*orders, GetStatus(5))
            assert isinstance(await ann.until(Status), Status)
            (other,) = await again.submit(job())
            assert isinstance(await ann.ask(Cancel(6, (other,))), Done)
            assert not [seen for seen in ann.seen if isinstance(seen, Submitted | Failed)]
        finally:
            ray.says.set()
        await ann.until(lambda seen: isinstance(seen, Submitted) and seen.id == 4)
        made = [seen for seen in ann.seen if isinstance(seen, Submitted)]
        assert [one.id for one in made] == [1, 2, 3, 4]
        submitted = [grid.ledger.state.jobs[one.jobs[0]].submitted for one in made]
        assert submitted == sorted(submitted)
        for end in (ann, again):
            await end.close()


async def test_who_leaves_while_ray_is_asked_is_gone_when_that_is_answered(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray) as grid:
        ann = await client(grid.url)
        ray.answers.clear()
        await ann.say(ListBoosts(1))
        await ray.asked.wait()
        await ann.close()
        ray.answers.set()
        async with asyncio.timeout(60):
            while grid.server._clients._connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def test_who_asks_one_thing_does_not_wait_for_who_asks_thousands_in_one_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    begun = asyncio.Event()
    handle = Requests.handle

    async def noted(self: Requests, asker: Client, message: Any, *before: Any) -> None:
        done.append(asker.user)
        begun.set()
        await handle(self, asker, message)

    async def ask() -> None:
        async with coordinator(tmp_path) as grid:
            ann, bob = await client(grid.url), await client(grid.url, "bob")
            await ann.say(*(GetStatus(number) for number in range(1, 5_000)))
            await begun.wait()
            await bob.ask(GetStatus(1))
            await ann.until(lambda seen: getattr(seen, "id", 0) == 4_999, 60)
            for end in (ann, bob):
                await end.close()

    monkeypatch.setattr(Requests, "handle", noted)

    # The loop that the service runs on: its clock stands still during a turn, so that turns cannot go by it.
    def scene() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(ask())
        assert done.index("bob") < 4_000

    apart(scene)
