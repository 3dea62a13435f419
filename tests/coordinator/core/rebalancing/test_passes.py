"""Passes in the ledger: moves are ordinary requests and cancellations, and a replay decides the same."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    DemandReported,
    DrainRequested,
    Event,
    ForecastsReported,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    RayletJoined,
    Rebalanced,
    Send,
    SettingsRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.rebalancing.view import RayLook, Waiting
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.coordinator.eventlog.decisions import decisions
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Extend, Started, Stop
from distributed_grid.protocol.nodes import Lending, Sample
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from tests.coordinator.core.scene import facts, job, join, state_of, step

HEAD = "192.0.2.1:6379"
LOOK = RayLook(target="head", address=HEAD, user="ann", ray="2.60.0", python="3.11.7", total=Resources(MILLI, GIB))
FOUR = Waiting("4 CPU", Resources(4 * MILLI), 1, fits=False)
RAY = {"ray": "2.60.0", "ray_python": "3.11.9"}
EVERY = 30.0


class Grid:
    """Nodes with Ray that are idle, and the passes of a ledger over them."""

    def __init__(self, *nodes: str, mode: str = "dynamic_balancing", policy: str = "balanced", cores: int = 8) -> None:
        balancing = Balancing(mode=OffloadingMode(mode), policy=PolicyName(policy), interval=EVERY)
        self.ledger = Ledger(policy=Policy(balancing=balancing))
        self.state = self.ledger.state
        self.now, self.passes = 1000.0, 0
        for name in nodes:
            self.add(name, cores)

    def add(self, name: str, cores: int = 8, **more: Any) -> None:
        join(self.ledger, facts(name, cores, 16 * GIB, **(RAY | more)), self.now, idle_since=1.0, expires_in=1e6)
        self.sample(name)

    def sample(self, name: str, **more: Any) -> None:
        step(self.ledger, HeartbeatReceived(name, Sample(at=self.now, memory_total=16 * GIB, **more)), self.now)

    def look(self, *waiting: Waiting, idle: dict[str, float] | None = None, **more: Any) -> list[Command]:
        """One pass later."""
        self.now, self.passes = self.now + EVERY, self.passes + 1
        for name in self.state.nodes:
            self.sample(name)
        ids = tuple(f"j-{'a' * 10}{self.passes:02}{at}"[-14:] for at in range(8))
        look = replace(LOOK, waiting=waiting, idle=idle or {}, **more)
        return step(self.ledger, DemandReported(look, ids), self.now)

    def lend(self) -> Job:
        """A boost that the grid has lent by itself, and that has joined."""
        for _ in range(3):
            self.look(FOUR)
        (boost,) = self.boosts()
        self.joins(boost)
        return boost

    def joins(self, boost: Job) -> None:
        allocation = boost.allocation
        step(self.ledger, MessageReceived(boost.node, Started(allocation=allocation, pid=1)), self.now)
        step(self.ledger, RayletJoined(allocation, "raynode"), self.now)

    def boosts(self) -> list[Job]:
        return [one for one in self.state.jobs.values() if one.spec.boost is not None]


def stops(commands: list[Command]) -> list[str]:
    return [one.message.text for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]


def test_what_waits_long_enough_gets_a_boost_by_itself() -> None:
    grid = Grid("lab1")
    grid.look(FOUR)
    grid.look(FOUR)
    assert not grid.boosts()
    commands = grid.look(FOUR)
    (boost,) = grid.boosts()
    spec = boost.spec.boost
    assert spec == Boost("head", HEAD, ResourceType.CPU, 4 * MILLI, ray="2.60.0", python="3.11.7", automatic=True)
    assert (boost.node, boost.user, boost.request.priority) == ("lab1", "ann", Priority.LOW)
    assert "lent by the grid itself: 1 task that asks for 4 CPU waits in Ray for 1m00s" in boost.story[1].text
    (told,) = (one for one in commands if isinstance(one, Rebalanced))
    assert told.applied and told.moves[0].boost == boost.id


@pytest.mark.parametrize(("idle", "lent"), [(600.0, 1), (0.0, 0)], ids=["idle", "in use"])
def test_under_predictive_the_forecast_of_an_idle_node_spares_its_wait_and_that_of_one_in_use_does_not(
    idle: float, lent: int
) -> None:
    grid = Grid("lab1", policy="predictive")
    lasting = tuple(IdleChance(seconds, 0.99, 31, 31) for seconds in (1800.0, 7200.0, 14_400.0))
    for _ in range(4):
        node = grid.state.nodes["lab1"]
        assert node.offer is not None
        node.offer = replace(node.offer, idle_since=grid.now + EVERY - 5.0)  # for five seconds by the next pass
        step(grid.ledger, ForecastsReported({"lab1": IdleForecast(grid.now, idle, lasting)}), grid.now)
        grid.look(FOUR)
    assert len(grid.boosts()) == lent


def test_what_is_on_its_way_is_not_lent_twice() -> None:
    grid = Grid("lab1", "lab2")
    for _ in range(8):
        grid.look(FOUR)
    assert len(grid.boosts()) == 1


@pytest.mark.parametrize("mode", ["share_and_offload", "offload_only"])
def test_in_the_other_modes_nothing_is_lent_by_itself(mode: str) -> None:
    grid = Grid("lab1", mode=mode)
    for _ in range(5):
        grid.look(FOUR)
    assert not grid.boosts()
    last = grid.state.balancing.last
    assert last is not None and not last.applied
    assert [(one.kind, one.source) for one in last.moves] == [(MoveKind.LEND, "lab1")]


def test_nothing_is_lent_while_the_disk_fails() -> None:
    grid = Grid("lab1")
    grid.state.store_failing = True
    for _ in range(5):
        grid.look(FOUR)
    assert not grid.boosts()


def test_an_unused_boost_is_given_back_and_one_in_use_is_kept_and_renewed() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    until = boost.started + boost.spec.time_limit
    extended: list[Command] = []
    for _ in range(40):
        extended += grid.look(idle={boost.id: 0.0})
    assert state_of(grid.ledger, boost.id) is State.RUNNING
    assert any(isinstance(one, Send) and isinstance(one.message, Extend) for one in extended)
    assert boost.started + boost.spec.time_limit > until
    assert not stops(grid.look(idle={boost.id: 59.0}))
    (why,) = stops(grid.look(idle={boost.id: 60.0}))
    assert why == "given back: Ray has used nothing of it for 1m00s (sustained: 60 s)"
    assert grid.state.balancing.moved["lab1"].kind is MoveKind.GIVE_BACK


def test_what_was_lent_and_left_unused_while_it_waits_on_is_not_lent_again() -> None:
    grid = Grid("lab1", "lab2", policy="aggressive")
    boost = grid.lend()
    idle = 1.0
    while not stops(grid.look(FOUR, idle={boost.id: idle})):
        idle += EVERY
        assert len(grid.boosts()) == 1
    for _ in range(10):
        grid.look(FOUR)
    assert len(grid.boosts()) == 1  # that which is stopping
    last = grid.state.balancing.last
    assert last is not None and last.unserved[0].why.startswith("a boost was lent for it, and Ray left it unused")


def test_a_boost_that_somebody_asked_for_is_never_given_back() -> None:
    grid = Grid("lab1")
    theirs = job("j-bob", Request(Resources(2 * MILLI)), grid.now, "bob")
    theirs.spec = replace(theirs.spec, boost=Boost("head", HEAD, ResourceType.CPU, 2 * MILLI), time_limit=36_000.0)
    step(grid.ledger, JobsSubmitted(1, (theirs,)), grid.now)
    grid.joins(grid.state.jobs["j-bob"])
    for at in range(40):
        assert not stops(grid.look(idle={"j-bob": at * EVERY}))
    last = grid.state.balancing.last
    assert last is not None and [(one.boost, one.user) for one in last.hints] == [("j-bob", "bob")]


def test_a_boost_that_nobody_asked_for_gives_way_to_a_job_that_waits() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    for _ in range(10):
        grid.look(idle={boost.id: 0.0})
    step(grid.ledger, JobsSubmitted(2, (job("j-bob", Request(Resources(6 * MILLI)), grid.now, "bob"),)), grid.now)
    (why,) = stops(grid.look(idle={boost.id: 0.0}))
    assert (
        why
        == "given back: a job of bob waits for 6 cpu, which lab1 would have; a boost that nobody asked for gives way"
    )


def test_a_job_that_would_not_start_there_anyway_takes_nothing_back() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    for _ in range(10):
        grid.look(idle={boost.id: 0.0})
    grid.add("big", 64, ray="", ray_python="")
    full = job("j-full", Request(Resources(64 * MILLI)), grid.now, "bob")
    step(grid.ledger, JobsSubmitted(2, (full, job("j-bob", Request(Resources(32 * MILLI)), grid.now, "bob"))), grid.now)
    assert not stops(grid.look(idle={boost.id: 0.0}))


def gang(grid: Grid, each: int) -> None:
    """Two of bob's that start together."""
    request = Request(Resources(each * MILLI), Priority.HIGH, gang=2)
    template = job("g", request, grid.now, "bob")
    group = Group(
        id="g", key="key-g", user="bob", kind=GroupKind.GANG, spec=template.spec, request=request,
        submitted=grid.now, count=2, array=Array(((0, 1, 1),)),
    )  # fmt: skip
    step(grid.ledger, JobsSubmitted(7, (template,), (group,)), grid.now)


def test_a_job_that_would_delay_whom_the_node_is_reserved_for_takes_nothing_back() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    for _ in range(10):
        grid.look(idle={boost.id: 0.0})
    grid.add("other", 4, ray="", ray_python="")
    busy = job("busy", Request(Resources(4 * MILLI), constraints=Constraints(only=("other",))), grid.now, "bob")
    step(grid.ledger, JobsSubmitted(6, (busy,)), grid.now)
    gang(grid, 1)
    step(grid.ledger, JobsSubmitted(8, (job("large", Request(Resources(8 * MILLI)), grid.now, "eve"),)), grid.now)
    assert {one.node for one in grid.state.reservations.by_job.values() if one.job == "g_0"} == {"lab1", "other"}
    assert not stops(grid.look(idle={boost.id: 0.0}))
    step(grid.ledger, CancelRequested(9, ("g",)), grid.now)
    (why,) = stops(grid.look(idle={boost.id: 0.0}))
    assert "a job of eve waits for 8 cpu, which lab1 would have" in why


def test_a_gang_takes_back_what_is_lent_of_a_node_that_is_reserved_for_it() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    for _ in range(10):
        grid.look(idle={boost.id: 0.0})
    grid.add("other", 8, ray="", ray_python="")
    gang(grid, 6)
    (why,) = stops(grid.look(idle={boost.id: 0.0}))
    assert "a job of bob waits for 6 cpu, which lab1 would have" in why


def test_what_gave_way_to_a_job_is_lent_again_when_that_is_over() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    for _ in range(10):
        grid.look(FOUR, idle={boost.id: 0.0})
    step(grid.ledger, JobsSubmitted(2, (job("j-bob", Request(Resources(6 * MILLI)), grid.now, "bob"),)), grid.now)
    assert stops(grid.look(FOUR, idle={boost.id: 0.0}))
    over = Exited(allocation=boost.allocation, outcome=Outcome(Cause.CANCELLED), returned=True)
    step(grid.ledger, MessageReceived("lab1", over), grid.now)
    theirs = grid.state.jobs["j-bob"].allocation
    step(grid.ledger, MessageReceived("lab1", Started(allocation=theirs, pid=2)), grid.now)
    step(
        grid.ledger,
        MessageReceived("lab1", Exited(allocation=theirs, outcome=Outcome(Cause.EXITED), returned=True)),
        grid.now,
    )
    for _ in range(12):
        grid.look(FOUR)
    assert [one.node for one in grid.boosts()] == ["lab1"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"members": ("lab1",)}, "it is a node of this Ray cluster itself"),
        ({"target": "lab1"}, "it is a node of this Ray cluster itself"),
        ({"ray": "2.61.0"}, "its Ray is 2.60.0 with Python 3.11.9, the cluster's 2.61.0 with 3.11.7"),
    ],
)
def test_nodes_of_the_cluster_and_those_that_cannot_join_it_lend_nothing(more: dict[str, Any], why: str) -> None:
    grid = Grid("lab1")
    for _ in range(5):
        grid.look(FOUR, **more)
    assert not grid.boosts()
    assert passes.lender_view(grid.state, grid.state.nodes["lab1"], grid.now).why == why


def test_where_no_ray_cluster_is_known_that_is_why_a_node_lends_nothing() -> None:
    grid = Grid()
    grid.state.policy = replace(grid.state.policy, owner_rule=True)
    grid.add("lab1", walls="none", owners=("eve",))
    view = passes.lender_view(grid.state, grid.state.nodes["lab1"], grid.now)
    assert view.why == "no Ray cluster is known that it could lend to" and view.excess == Resources()


def test_the_owner_of_a_node_says_whose_boosts_it_runs() -> None:
    grid = Grid()
    grid.state.policy = replace(grid.state.policy, owner_rule=True)
    grid.add("lab1", walls="none", owners=("eve",))
    for _ in range(5):
        grid.look(FOUR)
    assert not grid.boosts()
    view = passes.lender_view(grid.state, grid.state.nodes["lab1"], grid.now)
    assert view.why.startswith("it runs jobs of its owners only (eve)")


def test_drains_come_before_every_policy() -> None:
    grid = Grid("lab1", policy="aggressive")
    step(grid.ledger, DrainRequested(3, ("lab1",), "op"), grid.now)
    for _ in range(5):
        grid.look(FOUR)
    assert not grid.boosts()


@pytest.mark.parametrize("name", PolicyName)
def test_a_node_keeps_what_its_offer_withholds_under_every_policy(name: PolicyName) -> None:
    grid = Grid(policy=name)
    join(
        grid.ledger,
        facts("lab1", 8, 16 * GIB, ray="2.60.0", ray_python="3.11.9"),
        grid.now,
        idle_since=1.0,
        expires_in=1e6,
        cores=(0, 1, 2),
    )  # max_share_cpu: 3
    grid.sample("lab1")
    many = replace(FOUR, each=Resources(MILLI), count=100, text="1 CPU")
    for _ in range(40):
        grid.look(many)
    lent = sum(one.request.resources.cpu for one in grid.boosts())
    assert lent <= 3 * MILLI


def test_a_node_whose_owner_is_busy_does_not_lend_and_one_full_of_our_jobs_is_not_in_need() -> None:
    grid = Grid("lab1")
    node = grid.state.nodes["lab1"]
    grid.look()
    grid.sample("lab1", foreign_cpu=3.0)
    assert "its owner's cpu pressure is 0.38" in passes.lender_view(grid.state, node, grid.now).why
    grid.sample("lab1", own_cpu=8.0)
    view = passes.lender_view(grid.state, node, grid.now)
    assert view.why == "" and view.owner is not None and view.all is not None
    assert (view.owner.score, view.all.cpu) == (0.0, 1.0)


def test_a_pass_without_an_answer_of_ray_does_nothing_and_says_why() -> None:
    grid = Grid("lab1")
    grid.look(FOUR), grid.look(FOUR)
    step(grid.ledger, DemandReported(None, trouble="there is no Ray"), grid.now)
    last = grid.state.balancing.last
    assert last is not None and last.trouble == "there is no Ray"
    grid.look(FOUR)
    assert not grid.boosts(), "what waited before was not seen to wait on"


def test_a_proposal_changes_nothing() -> None:
    grid = Grid("lab1", mode="share_and_offload")
    for _ in range(3):
        grid.look(FOUR)
    before = checkpoint.encode(checkpoint.take(grid.ledger))
    found = passes.proposed(grid.state, replace(LOOK, waiting=(FOUR,)), grid.now + 10)
    assert [one.source for one in found.moves] == ["lab1"]
    assert checkpoint.encode(checkpoint.take(grid.ledger)) == before


def test_a_ledger_from_a_checkpoint_decides_the_same() -> None:
    grid = Grid("lab1", "lab2", policy="aggressive")
    grid.look(FOUR)
    taken = checkpoint.convert(msgspec.msgpack.decode(checkpoint.encode(checkpoint.take(grid.ledger))))
    other = checkpoint.resume(taken)
    many = replace(FOUR, count=5)
    for at in range(12):
        now = grid.now + EVERY * (at + 1)
        waiting = (FOUR if at % 2 else many,)
        event = DemandReported(replace(LOOK, waiting=waiting), (f"j-{at:012}",))
        heard: list[Event] = [
            HeartbeatReceived(name, Sample(at=now, memory_total=16 * GIB)) for name in grid.state.nodes
        ]
        mine, its = ([decisions(step(one, each, now)) for each in (*heard, event)] for one in (grid.ledger, other))
        assert mine == its
    assert grid.boosts()


def test_who_is_barred_from_what_is_told_with_the_end() -> None:
    grid = Grid("lab1")
    grid.lend()
    barred = list(passes.barred_now(grid.state, grid.now))
    assert [(one.source, one.kind) for one in barred] == [("lab1", MoveKind.LEND), ("lab1", MoveKind.GIVE_BACK)]
    assert barred[0].until == grid.now + 120.0


def test_an_operators_limit_for_a_node_holds() -> None:
    """`can_share: false` takes the offer away; a pass does not ask such a node."""
    grid = Grid("lab1", policy="aggressive")
    step(grid.ledger, SettingsRequested(4, ("lab1",), Lending(can_share=False), (), "op"), grid.now)
    join(
        grid.ledger,
        facts("lab1", 8, 16 * GIB, ray="2.60.0", ray_python="3.11.9"),
        grid.now,
        idle_since=1.0,
        expires_in=1e6,
        cores=(),
        memory=0,
    )
    for _ in range(5):
        grid.look(FOUR)
    assert not grid.boosts()


def test_a_boost_that_somebody_ends_bars_its_lender_for_the_min_hold() -> None:
    grid = Grid("lab1")
    boost = grid.lend()
    step(grid.ledger, CancelRequested(5, (boost.id,), "released"), grid.now)
    grid.look(FOUR)
    moved = grid.state.balancing.moved["lab1"]
    assert (moved.at, moved.kind) == (grid.now, MoveKind.GIVE_BACK)
    why = passes.lender_view(grid.state, grid.state.nodes["lab1"], grid.now).why
    assert why == "had a boost back 0 s ago, lends again in 300 s"
