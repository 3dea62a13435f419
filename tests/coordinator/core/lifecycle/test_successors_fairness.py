"""What successors do to shares and to the order of service: the same load with and without them, in simulated time."""

import random
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import pytest

from distributed_grid.coordinator.core.commands import (
    Event,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.queue import chains
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request
from distributed_grid.protocol.messages import Exited, Launch, Started, Stop
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join
from tests.depth import tries

WAY = 0.003
"""Seconds that a message takes from the coordinator to a node or back."""


class Simulated:
    """A ledger with one node of so many cores; each job runs for as long as its name says in `lasts`."""

    def __init__(self, cores: int) -> None:
        self.ledger, self.now, self.count = Ledger(watched=()), 0.0, 0  # a view of each change is not looked at
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.lasts: dict[str, float] = {}
        self.live: set[str] = set()
        self.behind: dict[str, Launch] = {}
        self.gone: set[str] = set()
        self.started: dict[str, float] = {}
        self.held: dict[str, float] = defaultdict(float)
        self.followed = 0
        join(self.ledger, facts("n1", cores, memory=64 * GIB), 0.0)

    def at(self, delay: float, do: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.events, (self.now + delay, self.number, do))

    def happen(self, event: Event) -> None:
        for command in self.ledger.handle(event, self.now) + self.ledger.settle(self.now):
            if isinstance(command, Send) and isinstance(message := command.message, Launch | Stop):
                self.at(WAY, partial(self.hear, message))

    def tell(self, message: Started | Exited) -> None:
        self.at(WAY, lambda: self.happen(MessageReceived("n1", message)))

    def submit(
        self, user: str, seconds: list[float], priority: Priority = Priority.MEDIUM, cores: int = 1
    ) -> list[str]:
        names = [f"j{self.count + n}" for n in range(len(seconds))]
        self.count += len(seconds)
        self.lasts |= dict(zip(names, seconds, strict=True))
        request = Request(Resources(1000 * cores, GIB), priority)
        self.happen(JobsSubmitted(1, tuple(job(name, request, self.now, user=user) for name in names)))
        return names

    def hear(self, message: Launch | Stop) -> None:
        name = message.allocation
        if isinstance(message, Launch):
            predecessor = message.predecessor
            if predecessor in self.live or predecessor in [one.allocation for one in self.behind.values()]:
                self.behind[predecessor] = message
            else:
                self.start(message)
            return
        before = next((one for one, waits in self.behind.items() if waits.allocation == name), None)
        if before is not None:
            del self.behind[before]
            if (next_one := self.behind.pop(name, None)) is not None:
                self.behind[before] = next_one
            self.tell(Exited(allocation=name, outcome=Outcome(cause=Cause(message.cause), started=False)))

    def start(self, launch: Launch) -> None:
        name = launch.allocation
        self.live.add(name)
        self.started[launch.job] = self.now
        self.tell(Started(allocation=name))
        self.at(self.lasts[launch.job], lambda: self.end(launch))

    def end(self, launch: Launch) -> None:
        name, seconds = launch.allocation, self.lasts[launch.job]
        self.live.discard(name)
        behind = self.behind.pop(name, None)
        outcome = Outcome(cause=Cause.EXITED, seconds=seconds)
        self.at(WAY, lambda: self.ended(launch, Exited(allocation=name, outcome=outcome, returned=behind is None)))
        if behind is not None:
            self.followed += 1
            self.start(behind)

    def ended(self, launch: Launch, message: Exited) -> None:
        self.held[launch.user] += self.now - self.ledger.state.allocations[launch.allocation].granted
        self.happen(MessageReceived("n1", message))

    def run(self, until: float) -> None:
        beat = 1.0
        while self.now < until:
            due = self.events[0][0] if self.events else until
            deadline = self.ledger.next_deadline() or until
            step = min(due, deadline, beat, until)
            self.now = max(self.now, step)
            if step == beat:
                beat += 1.0
                self.happen(HeartbeatReceived("n1", Sample(at=self.now)))
            elif self.events and step == due:
                heappop(self.events)[2]()
            else:
                self.happen(Tick())


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets a successor."""
    monkeypatch.setattr(chains.Chains, "mark", lambda self, tail: None)


def shares_of(seed: int, seconds: float) -> tuple[dict[str, float], int]:
    """Twenty users, each with many short jobs or some long ones, on eight cores: the part of what was held of each."""
    rng, grid = random.Random(seed), Simulated(8)
    for number in range(20):
        if number % 4 == 3:
            lasts = [rng.uniform(0.6, 1.5) for _ in range(100)]
        else:
            lasts = [rng.uniform(0.01, 0.06) * (1 + number % 3) for _ in range(900)]  # more than fit into its share
        grid.submit(f"u{number:02}", lasts)
    grid.run(seconds)
    total = sum(grid.held.values())
    return {user: held / total for user, held in grid.held.items()}, grid.followed


def test_twenty_users_have_the_shares_that_they_have_without_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    with_them, followed = shares_of(1, 60.0)
    without(monkeypatch)
    as_ever, none = shares_of(1, 60.0)
    assert followed > 1000 and none == 0
    for user, share in as_ever.items():
        assert with_them[user] == pytest.approx(share, abs=0.005), f"{user}, as part of the grid"


def start_of_a_newcomer(seed: int, seconds: float) -> tuple[float, int]:
    """One user has short jobs waiting for four cores; another one comes with one job. How long that one waits."""
    rng, grid = random.Random(seed), Simulated(4)
    many = min(4000, int(20 / seconds))  # four cores have enough to do until well after that
    grid.submit("ann", [rng.uniform(seconds / 2, seconds) for _ in range(many)])
    grid.run(1.0 + rng.random() * 0.1)
    (name,) = grid.submit("ben", [0.01])
    came = grid.now
    while name not in grid.started:
        assert grid.now < came + 3.0
        grid.run(grid.now + 0.05)
    return grid.started[name] - came, grid.followed


@pytest.mark.parametrize("seconds", [0.004, 0.02, 0.2])
def test_nobody_starts_later_than_by_one_run_because_of_successors(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(tries(2, 1))
    with_them = [start_of_a_newcomer(seed, seconds) for seed in seeds]
    without(monkeypatch)
    as_ever = [start_of_a_newcomer(seed, seconds) for seed in seeds]
    assert all(followed for _, followed in with_them)
    late = [one - other for (one, _), (other, _) in zip(with_them, as_ever, strict=True)]
    assert max(late) <= seconds + 2 * WAY, f"{late} (one run lasts {seconds}, a way {WAY})"


def starts_before_short_jobs(seed: int, seconds: float) -> tuple[list[float], int]:
    """Large jobs that come first wait for long ones, beside one user's short jobs, and others come between them. When
    they start."""
    rng, grid = random.Random(seed), Simulated(8)
    long = grid.submit("ben", [rng.uniform(0.7, 2.0) for _ in range(rng.choice((1, 2)))], cores=rng.choice((2, 3)))
    grid.submit("ann", [rng.uniform(seconds / 2, seconds) for _ in range(2000)])
    grid.run(0.5 + rng.random() * 0.1)
    names = grid.submit("carl", [rng.uniform(0.2, 0.5) for _ in range(2)], Priority.HIGH, cores=rng.randint(2, 7))
    grid.run(grid.now + rng.random() / 2)
    names += grid.submit("dora", [0.05], Priority.HIGH, cores=rng.choice((1, 4)))
    while not all(name in grid.started for name in long + names):
        assert grid.now < 20.0
        grid.run(grid.now + 0.5)
    return [grid.started[name] for name in names], grid.followed


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_nor_does_anybody_for_whom_room_is_awaited_while_short_jobs_follow_each_other(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = range(tries(2, 1))
    with_them = [starts_before_short_jobs(seed, seconds) for seed in seeds]
    without(monkeypatch)
    as_ever = [starts_before_short_jobs(seed, seconds) for seed in seeds]
    assert all(followed for _, followed in with_them)
    for seed, (starts, _), (others, _) in zip(seeds, with_them, as_ever, strict=True):
        late = [one - other for one, other in zip(starts, others, strict=True)]
        assert max(late) <= seconds + 2 * WAY, f"seed {seed}: {late} (one run lasts {seconds}, a way {WAY})"
