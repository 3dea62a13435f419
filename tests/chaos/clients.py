"""The users of a campaign: they submit at a steady rate, each job under a key, and keep what they were told."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from distributed_grid.coordinator.client import GridClient, GridUnavailable, JobResult, RequestRefused
from distributed_grid.protocol.jobs import After, Cause, JobView, State
from distributed_grid.protocol.messages import Submission
from tests.chaos import gangs
from tests.chaos import many as many_jobs
from tests.chaos.jobs import Plan, Shipment, draw
from tests.chaos.world import World

FOREVER = 3600.0
WAITING_MOST = 250
"""Jobs that are not over: while there are more, none are submitted."""


@dataclass
class Told:
    """The grid's answers to clients, to be compared with the final state."""

    plans: dict[str, Plan] = field(default_factory=dict)
    """All jobs whose submission was acknowledged."""
    ended: dict[str, JobView] = field(default_factory=dict)
    """Those that somebody watched, as they stood when their end was told."""
    results: dict[str, JobResult] = field(default_factory=dict)
    """Those whose output was read."""
    streams: dict[str, bytes] = field(default_factory=dict)
    """What came of those whose stdout was read while they ran."""
    after: dict[str, tuple[After, tuple[str, ...]]] = field(default_factory=dict)
    """Those that wait for others."""
    gangs: list[tuple[str, ...]] = field(default_factory=list)
    """Those that are a gang together."""
    cancelled: set[str] = field(default_factory=set)
    """Those that were cancelled though their plan says nothing of it."""
    habits: Counter[str] = field(default_factory=Counter)
    """How often users did something out of the ordinary."""
    broken: list[str] = field(default_factory=list)
    """Promises broken in front of a client's eyes."""


class Users:
    """Some clients with their jobs. `submit` until cancelled; `finish` when all is whole again."""

    def __init__(self, world: World, seed: int, count: int, rate: float) -> None:
        self.told = Told()
        self._world = world
        self._names = [f"user{number}" for number in range(count)]
        self._pause = count / rate
        self._seed = seed
        self._lives: set[asyncio.Task[None]] = set()
        self._clients: list[tuple[GridClient, GridClient]] = []
        self.waiting = 0
        """Jobs that are not over, as the grid was last seen."""

    async def connect(self) -> None:
        """Two connections for each user."""
        for name in self._names:
            pair = [GridClient(self._world.url, user=name, patience=FOREVER) for _ in range(2)]
            for client in pair:
                await client.connect()
            self._clients.append((pair[0], pair[1]))

    async def close(self) -> None:
        """Leave."""
        for task in self._lives:
            task.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        for pair in self._clients:
            for client in pair:
                await client.close()

    async def submit(self) -> None:
        """Run all users at once, until cancelled."""
        await asyncio.gather(*(self._user(number) for number in range(len(self._names))))

    async def _user(self, number: int) -> None:
        dice = random.Random(f"{self._seed} user {number}")
        shipment = Shipment()
        apart = random.Random(f"{self._seed} many {number}")  # so that the other draws of a seed stay as they were
        together = random.Random(f"{self._seed} gangs {number}")
        while True:
            many = dice.choices([1, dice.randint(2, 8)], [9, 1])[0]
            await asyncio.sleep(many * dice.uniform(0, 2 * self._pause))
            while self.waiting > WAITING_MOST:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            if dice.random() < 0.03:
                shipment = await self._ship(number, dice)
            sent = shipment if dice.random() < 0.1 else Shipment()
            plans = [draw(dice, self._world.records, sent) for _ in range(many)]
            if apart.random() < many_jobs.SHARE:
                self._begin(many_jobs.live(self.told, self._clients[number], self._world.records, apart))
            if together.random() < gangs.SHARE:
                self._begin(gangs.live(self.told, self._clients[number], self._world.records, together))
            self._begin(self._life(self._clients[number], plans, random.Random(dice.random())))

    def _begin(self, life: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(life)
        self._lives.add(task)
        task.add_done_callback(self._over)

    async def _ship(self, number: int, dice: random.Random) -> Shipment:
        """Ship something that no node has yet."""
        directory = self._world.place / f"shipped{number}"
        directory.mkdir(exist_ok=True)
        content = dice.randbytes(dice.choice([10, 10_000, 400_000]))
        (directory / "shipped").write_bytes(content)
        self.told.habits["shipped a directory"] += 1
        return Shipment(await self._clients[number][0].ship(directory), content)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._lives.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.told.broken.append(f"a client failed with {error!r}")

    async def finish(self, seconds: float) -> None:
        """Wait until every client has been answered all it asked."""
        _, late = await asyncio.wait(self._lives, timeout=seconds) if self._lives else (None, set())
        self.told.broken += [f"a client was not answered in {seconds:g} s: {task!r}" for task in late]

    # --- one submission and what becomes of it ------------------------------------------------------------------------

    async def _life(self, clients: tuple[GridClient, GridClient], plans: list[Plan], dice: random.Random) -> None:
        """Submit these jobs together, then do with each what its plan says."""
        first, second = clients
        submissions = [plan.submission for plan in plans]
        if dice.random() < 0.05:
            self.told.habits["gone before the answer, and submitted by another"] += 1
            await self._leave(first, submissions, dice.choice([0.0, dice.uniform(0, 0.02), dice.uniform(0, 2)]))
            first = second
        asks = [first.submit_many(submissions)]
        if dice.random() < 0.1:
            self.told.habits["submitted twice"] += 1
            asks.append(self._again(second, submissions, dice.uniform(0, 3)))
        answers = await asyncio.gather(*asks)
        if any(answer != answers[0] for answer in answers):
            self.told.broken.append(f"the same keys gave different jobs: {answers}")
        jobs = [*zip(plans, answers[0], strict=True)]
        for plan, job in jobs:
            if job in self.told.plans:
                self.told.broken.append(f"{job} was given to two submissions")
            self.told.plans[job] = plan
        await asyncio.gather(*(self._care(first, second, plan, job) for plan, job in jobs))

    async def _leave(self, client: GridClient, submissions: list[Submission], after: float) -> None:
        """Submit, and go without waiting for the answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after):
                await client.submit_many(submissions)

    async def _again(self, client: GridClient, submissions: list[Submission], after: float) -> list[str]:
        await asyncio.sleep(after)
        return await client.submit_many(submissions)

    async def _care(self, client: GridClient, other: GridClient, plan: Plan, job: str) -> None:
        """Do what the plan says with an accepted job."""
        if plan.cancel_after:
            await asyncio.sleep(plan.cancel_after)
            await other.cancel(job, reason="the campaign wants it")
        if plan.streamed:
            try:
                pieces = [data async for stream, data in other.stream(job) if stream == "stdout"]
                self.told.streams[job] = b"".join(pieces)
            except GridUnavailable:  # the node was away for too long after the job's end
                self.told.habits["could not read a stream to its end"] += 1
        if plan.watched:
            view = self.told.ended[job] = await client.wait(job)
            if view.outcome is not None and view.outcome.cause is Cause.EXITED:
                self.told.results[job] = await client.result(job)

    # --- what the grid says in the end --------------------------------------------------------------------------------

    async def views(self) -> dict[str, JobView]:
        """Every job that was acknowledged or is listed, as it stands, with its story."""
        client = self._clients[0][0]
        listed = [view.id for view in await client.jobs(ended=True, limit=100_000)]
        known = [*dict.fromkeys([*self.told.plans, *listed])]
        views: dict[str, JobView] = {}
        for begin in range(0, len(known), 64):
            shown = await asyncio.gather(*(self._show(client, job) for job in known[begin : begin + 64]))
            views.update({view.id: view for view in shown if view is not None})
        return views

    async def _show(self, client: GridClient, job: str) -> JobView | None:
        try:
            return await client.show(job)
        except RequestRefused:
            return None

    async def read_again(self, views: dict[str, JobView]) -> None:
        """Read what could not be read while nodes were away."""
        client = self._clients[0][0]
        for job, result in list(self.told.results.items()):
            if result.output_error and job in views and views[job].state is State.ENDED:
                self.told.results[job] = await client.result(job)
