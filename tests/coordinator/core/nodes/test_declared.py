"""A node without agent: what an operator declares of it is held by name, survives, and never runs anything."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    Event,
    Granted,
    JobsSubmitted,
    NodeDeclared,
    RecordNode,
    Rejected,
    RemovalRequested,
    Send,
    SettingsRequested,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.nodes import Lending, NodeState
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources, ResourceType
from tests.coordinator.core.scene import facts, job, join, step

WHOLE = Resources(8000, 16 * GIB, 2000)
ONLY = Constraints(only=("n9",))


class Grid:
    """A ledger with an ordinary node n1 of one core, and n9 without agent."""

    def __init__(self) -> None:
        self.ledger, self.now = Ledger(), 0.0
        join(self.ledger, facts("n1", cores=1, memory=GIB))
        self.out = self.declare(WHOLE, WHOLE)

    def step(self, event: Event) -> list[Command]:
        self.now += 1.0
        return step(self.ledger, event, self.now)

    def declare(self, whole: Resources, free: Resources, node: str = "n9", **more: Any) -> list[Command]:
        return self.step(NodeDeclared(1, node, whole, free, by="op", **more))

    def submit(self, name: str, wants: Resources, hold: bool = True, on: Constraints | None = ONLY) -> list[Command]:
        new = job(name, Request(wants, constraints=on), self.now)
        if hold:
            new.spec = holds.spec(3600.0, name)
        return self.step(JobsSubmitted(1, (new,)))

    def where(self, name: str) -> State:
        """Asked by a call: mypy takes an attribute for unchanged after it was compared."""
        return self.ledger.state.jobs[name].state

    def room(self) -> Resources:
        capacity = self.ledger.state.nodes["n9"].capacity
        assert capacity is not None
        return capacity.left


def answer(out: list[Command]) -> Granted | Rejected:
    (found,) = [one for one in out if isinstance(one, Granted | Rejected)]
    return found


def test_what_is_declared_is_recorded_and_up() -> None:
    grid = Grid()
    assert [one.facts.name for one in grid.out if isinstance(one, RecordNode)] == ["n9"]
    assert answer(grid.out) == Granted(1, "n9 is declared: 2 gpu, 8 cpu, 16G memory; all of it can be held now")
    node = grid.ledger.state.nodes["n9"]
    assert node.state is NodeState.UP and node.facts.declared == WHOLE and node.session == ""
    for _ in range(3):
        grid.now += 10_000.0
        grid.ledger.settle(grid.now)
    assert node.state is NodeState.UP, "nobody waits for its heartbeat"


def test_a_hold_that_names_it_takes_of_it_and_gives_it_back() -> None:
    grid = Grid()
    out = grid.submit("h", Resources(3000, GIB, 1000))
    assert grid.ledger.state.jobs["h"].state is State.RUNNING
    assert not [one for one in out if isinstance(one, Send)], "nobody there is told"
    assert grid.room() == Resources(5000, 15 * GIB, 1000)
    grid.step(CancelRequested(2, ("h",)))
    assert grid.room() == WHOLE and "h" not in grid.ledger.state.jobs


@pytest.mark.parametrize("on", [None, ONLY, Constraints(exclude=("n1",))])
def test_no_job_is_ever_started_there(on: Constraints | None) -> None:
    grid = Grid()
    out = grid.submit("j", Resources(2000), hold=False, on=on)
    assert [one.code for one in out if isinstance(one, Rejected)] == ["never-fits"], "n1 has one core"
    assert grid.submit("k", Resources(1000), hold=False, on=None) and grid.ledger.state.jobs["k"].node == "n1"
    grid.submit("l", Resources(1000), hold=False, on=None)
    assert grid.ledger.state.jobs["l"].state is State.WAITING


def test_a_hold_that_does_not_name_it_goes_elsewhere_or_waits() -> None:
    grid = Grid()
    grid.submit("h", Resources(1000), on=None)
    grid.submit("i", Resources(1000), on=None)
    jobs = grid.ledger.state.jobs
    assert (jobs["h"].node, jobs["i"].state) == ("n1", State.WAITING)


def test_a_job_cannot_go_into_such_a_hold() -> None:
    grid = Grid()
    grid.submit("h", Resources(2000))
    new = job("j", Request(Resources(1000), within="h"), grid.now)
    refused = answer(grid.step(JobsSubmitted(3, (new,))))
    assert isinstance(refused, Rejected)
    assert (refused.code, refused.why) == ("not-allowed", "it is a hold on n9, which has no agent")


def test_an_update_changes_what_is_free_beside_what_is_held() -> None:
    grid = Grid()
    grid.submit("h", Resources(3000))
    held = grid.ledger.state.allocations["h.1"].grant.cores
    grid.declare(Resources(), Resources(4000, GIB), known=True)
    assert grid.room() == Resources(1000, GIB), "of the four that others leave, three are held"
    assert set(held) <= set(grid.ledger.state.nodes["n9"].offer.cores)  # type: ignore[union-attr]
    grid.submit("i", Resources(2000))
    assert grid.where("i") is State.WAITING
    grid.declare(Resources(), Resources(5500, GIB), known=True)
    assert grid.where("i") is State.RUNNING and grid.room() == Resources(500, GIB)


def test_as_much_of_the_kinds_that_an_update_keeps_is_free_as_before() -> None:
    grid = Grid()
    grid.declare(Resources(), Resources(4000, GIB), known=True, kept=(ResourceType.GPU,))
    assert grid.room() == Resources(4000, GIB, 2000)
    grid.declare(Resources(), Resources(), known=True, kept=tuple(ResourceType))
    assert grid.room() == Resources(4000, GIB, 2000)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (NodeDeclared(1, "n1", WHOLE, WHOLE), "n1 has an agent"),
        (NodeDeclared(1, "n8", Resources(), WHOLE, known=True), "unknown node 'n8'"),
        (NodeDeclared(1, "n9", Resources(), Resources(9000), known=True), "9 cpu cannot be free on n9"),
        (SettingsRequested(1, ("n9",), Lending(can_share=False)), "n9 has no agent"),
    ],
)
def test_what_cannot_be_declared_is_refused_and_changes_nothing(asked: Event, says: str) -> None:
    grid = Grid()
    before = checkpoint.take(grid.ledger).nodes["n1"].facts
    out = grid.step(asked)
    refused = answer(out)
    assert isinstance(refused, Rejected) and says in refused.what, refused
    assert [one for one in out if one is not refused] == []
    assert grid.ledger.state.nodes["n1"].facts == before and grid.room() == WHOLE


def test_it_is_restored_with_its_holds_and_forgotten_when_nothing_is_held() -> None:
    grid = Grid()
    grid.submit("h", Resources(3000))
    grid.declare(Resources(), Resources(6000, GIB), known=True)
    old = grid.ledger.state
    grid.ledger = Ledger(epoch=2)
    grid.ledger.restore(
        old.jobs.values(), old.allocations.values(), [one.facts for one in old.nodes.values()], grid.now
    )
    grid.ledger.check()
    assert grid.room() == Resources(3000, GIB), "what was free is on disk"
    refused = answer(grid.step(RemovalRequested(4, ("n9",))))
    assert isinstance(refused, Rejected) and refused.code == "in-use"
    grid.step(CancelRequested(5, ("h",)))
    assert grid.room() == Resources(6000, GIB)
    assert answer(grid.step(RemovalRequested(6, ("n9",)))) == Granted(6, "n9 is forgotten")
    assert list(grid.ledger.state.nodes) == ["n1"]


def test_a_checkpoint_goes_on_with_it() -> None:
    grid = Grid()
    grid.submit("h", Resources(3000))
    grid.ledger = checkpoint.fork(grid.ledger, grid.ledger.state.policy)
    grid.ledger.check()
    grid.submit("i", Resources(6000))
    assert grid.where("i") is State.WAITING
    grid.step(CancelRequested(2, ("h",)))
    assert grid.where("i") is State.RUNNING


def test_an_agent_of_its_name_makes_it_an_ordinary_node() -> None:
    grid = Grid()
    grid.submit("h", Resources(3000))
    join(grid.ledger, facts("n9", cores=8, memory=16 * GIB), grid.now)
    grid.ledger.check()
    grid.submit("j", Resources(2000), hold=False, on=None)
    assert grid.ledger.state.jobs["j"].node == "n9" and "h" in grid.ledger.state.jobs
    refused = answer(grid.declare(WHOLE, WHOLE))
    assert isinstance(refused, Rejected) and refused.what == "n9 has an agent"


def test_a_dry_run_tells_whether_a_hold_could_be_there() -> None:
    grid = Grid()
    request = Request(Resources(3000), constraints=ONLY, hold=True)
    state = grid.ledger.state
    assert [(one.node, one.ok) for one in explain.why(state, None, request, grid.now).verdicts if one.ok] == [
        ("n9", True)
    ]
    (verdict,) = [
        one for one in explain.why(state, None, replace(request, hold=False), grid.now).verdicts if one.node == "n9"
    ]
    assert (verdict.ok, verdict.why) == (
        False,
        "has no agent, so nothing can be started there: it only takes holds that name it",
    )
