"""Jobs that leave before owners come, in ledgers that go on for hours: nothing goes to and fro."""

import random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.commands import (
    BalancingRequested,
    Command,
    DemandReported,
    ForecastsReported,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Launch, Started, Stop
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.sharing.moves import Move
from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, OffloadingMode, PolicyName
from tests.coordinator.core.rebalancing.test_stays import NEVER_SILENT
from tests.coordinator.core.scene import facts, job, join, step
from tests.depth import tries

EVERY = 30.0
VALUES = POLICIES[PolicyName.PREDICTIVE]


class Made(NamedTuple):
    at: float
    move: Move


class World:
    """Nodes of four cores, each as likely to stay idle for half an hour, two and four hours as told, and jobs that run
    for many hours. Nodes do at once what they are told."""

    def __init__(self, likely: list[list[float]], cores: list[int]) -> None:
        balancing = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=PolicyName.PREDICTIVE, interval=EVERY)
        self.ledger = Ledger(policy=Policy(balancing=balancing, **NEVER_SILENT))
        self.state, self.now, self.made = self.ledger.state, 1000.0, list[Made]()
        for number in range(len(likely)):
            join(self.ledger, facts(f"n{number}"), self.now, expires_in=1e9)
        self.jobs = [
            job(f"j{number}", Request(Resources(cpu=one * MILLI)), self.now, time_limit=1e6)
            for number, one in enumerate(cores)
        ]
        self.tell(step(self.ledger, JobsSubmitted(1, tuple(self.jobs)), self.now))
        self.expect(likely)

    def expect(self, likely: list[list[float]]) -> None:
        known: dict[str, IdleForecast | None] = {}
        for number, parts in enumerate(likely):
            parts = sorted(parts, reverse=True)
            lasting = [IdleChance(hours * 3600.0, part, 31, 25) for hours, part in zip((0.5, 2, 4), parts, strict=True)]
            known[f"n{number}"] = IdleForecast(self.now, 600.0, tuple(lasting))
        self.tell(step(self.ledger, ForecastsReported(known), self.now))

    def look(self) -> list[Move]:
        """One pass later."""
        self.now += EVERY
        before = {name: one.node for name, one in self.state.jobs.items() if one.state is State.RUNNING}
        self.tell(step(self.ledger, DemandReported(None), self.now))
        last = self.state.balancing.last
        assert last is not None and last.applied
        for move in last.moves:
            assert before[move.job] == move.source != move.target and move.reason and move.undone_by
            assert self.state.jobs[move.job].node == move.target, "it goes where it was said to go"
            self.made.append(Made(self.now, move))
        return list(last.moves)

    def tell(self, commands: list[Command]) -> None:
        """The nodes start what is launched and end what is stopped."""
        while commands:
            more: list[Command] = []
            for one in commands:
                if isinstance(one, Send) and isinstance(one.message, Launch):
                    told: Started | Exited = Started(allocation=one.message.allocation, pid=1)
                elif isinstance(one, Send) and isinstance(one.message, Stop):
                    outcome = Outcome(cause=Cause.DRAINED, signal=15, seconds=1.0)
                    told = Exited(allocation=one.message.allocation, outcome=outcome, returned=True)
                else:
                    continue
                more += step(self.ledger, MessageReceived(one.node, told), self.now)
            commands = more


LIKELY = st.lists(
    st.sampled_from([[0.05, 0.05, 0.05], [0.3, 0.1, 0.0], [0.7, 0.6, 0.5], [0.85, 0.5, 0.3], [0.95, 0.95, 0.9]]),
    min_size=2,
    max_size=5,
)
CORES = st.lists(st.integers(1, 3), min_size=1, max_size=5)


@settings(max_examples=tries(10, 4), deadline=None)
@given(LIKELY, CORES)
def test_under_constant_forecasts_no_move_is_undone_and_then_none_is_made(
    likely: list[list[float]], cores: list[int]
) -> None:
    world = World(likely, cores)
    for _ in range(150):
        assert len(world.look()) <= VALUES.moves
    ways = [(one.move.job, one.move.source, one.move.target) for one in world.made]
    assert not {(name, target, source) for name, source, target in ways} & set(ways), "to and fro"
    assert not any(one.at > world.now - 50 * EVERY for one in world.made), "it comes to rest"
    sure = {f"n{at}": min(parts) for at, parts in enumerate(likely)}  # for four hours: longer is not looked ahead
    assert all(sure[source] < VALUES.confidence <= sure[target] for _, source, target in ways), "and no circle"
    assert len({one.id for one in world.state.jobs.values()}) == len(cores), "and no job is lost"


@settings(max_examples=tries(8, 3), deadline=None)
@given(st.integers(1, 5), CORES, st.integers(0, 1 << 30))
def test_noise_makes_one_move_a_cooldown_and_node_and_jobs_keep_their_min_hold(
    nodes: int, cores: list[int], seed: int
) -> None:
    chance = random.Random(seed)
    world = World([[0.8, 0.5, 0.3]] * nodes, cores)
    for _ in range(120):
        world.expect([[chance.uniform(0.0, 1.0) for _ in range(3)] for _ in range(nodes)])
        world.look()
    for at, (first, one) in enumerate(world.made):
        for then, other in world.made[at + 1 :]:
            if one.source == other.source:
                assert then - first >= VALUES.cooldown
            if one.job == other.job:
                assert then - first >= VALUES.min_hold
    world.ledger.check()


def test_there_may_be_no_node_or_one_or_one_that_goes_and_comes() -> None:
    empty = Ledger(
        policy=Policy(balancing=Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=PolicyName.PREDICTIVE))
    )
    step(empty, DemandReported(None), 1000.0)
    assert empty.state.balancing.last is not None and not empty.state.balancing.last.moves
    world = World([[0.1, 0.1, 0.1]], [2])
    for _ in range(40):
        assert not world.look()
    step(world.ledger, NodeDown("n0", "session-n0"), world.now)
    assert not world.look()
    step(world.ledger, NodeUp(facts("n1"), "session-n1"), world.now)
    step(world.ledger, ForecastsReported({"n0": None, "n9": None}), world.now)
    assert not world.look() and set(world.state.nodes) == {"n0", "n1"}


def test_impossible_forecasts_and_a_clock_that_stands_still_move_nothing_twice() -> None:
    nan, inf = float("nan"), float("inf")
    world = World([[nan, -inf, inf], [7.0, nan, -3.0]], [2, 2, 2])
    for _ in range(40):
        world.look()
    world = World([[0.1, 0.1, 0.1], [0.9, 0.9, 0.9]], [4])
    for _ in range(40):
        world.look()
        world.now -= EVERY
    assert not world.made, "none has run for a moment"


def test_a_policy_that_is_set_while_a_job_is_on_its_way_moves_no_other_and_loses_none() -> None:
    world = World([[0.1, 0.1, 0.1], [0.95, 0.95, 0.95]], [4])
    source = world.state.jobs["j0"].node
    while not (stops := [one for one in _stops(step(world.ledger, DemandReported(None), world.now))]):
        world.now += EVERY
        if world.now > 1e5:
            assert source == "n1", "it began where it may stay"
            return
    step(world.ledger, BalancingRequested(1, policy=PolicyName.CONSERVATIVE, by="ann"), world.now)
    assert not _stops(step(world.ledger, DemandReported(None), world.now + EVERY))
    world.tell([Send("n0", one) for one in stops])
    assert world.state.jobs["j0"].state is State.RUNNING and world.state.jobs["j0"].node == "n1"


def _stops(commands: list[Command]) -> list[Stop]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]
