"""Demand: what could start on one more machine, and what not."""

from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    Accepted,
    JobsSubmitted,
    MessageReceived,
    Rejected,
    RunTimesPredicted,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Condition, HeldBack
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.demand import demand_of, view_of
from distributed_grid.coordinator.core.scaling.events import ScalingConfigured
from distributed_grid.coordinator.core.scaling.packing import Demand
from distributed_grid.protocol.jobs import After, Request
from distributed_grid.protocol.messages import Started
from distributed_grid.protocol.messages.rights import Rights, Rules
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Pool, Scaling, Shape
from tests.coordinator.core.scene import facts, job, join

POOL = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(16_000, 32 * GIB)),), boot=60)
NOW = 100.0


def ledger(**policy: Any) -> Ledger:
    found = Ledger(epoch=7, policy=Policy(scaling=Scaling(pools=(POOL,)), **policy))
    join(found, facts("lab1"), 0.0)
    return found


def submit(to: Ledger, name: str, cpus: int = 4, at: float = 0.0, **more: Any) -> list[Any]:
    spec = {key: more.pop(key) for key in ("time_limit",) if key in more}
    wanted = Request(Resources(cpus * 1000, GIB), **more)
    return to.handle(JobsSubmitted(1, (job(name, wanted, at, **spec),)), at) + to.settle(at)


def demand(of: Ledger) -> Demand:
    return demand_of(of.state, of.state.policy.scaling, NOW)


def test_what_runs_is_no_demand_and_what_waits_is() -> None:
    grid = ledger()
    submit(grid, "j-1")
    submit(grid, "j-2", 3)
    submit(grid, "j-3", 3)
    assert [(one.count, one.jobs) for one in demand(grid).asks] == [(2, ("j-2", "j-3"))]


def test_a_request_that_only_a_pool_could_meet_is_taken_and_says_so() -> None:
    grid = ledger()
    out = submit(grid, "j-1", 8)
    assert [type(one) for one in out if isinstance(one, Accepted | Rejected)] == [Accepted]
    reason = grid.state.jobs["j-1"].reason
    assert reason is not None and reason.code == "Machine" and "pool a" in reason.text
    assert [one.jobs for one in demand(grid).asks] == [("j-1",)]


def test_a_request_that_no_pool_could_meet_either_is_refused() -> None:
    out = submit(ledger(), "j-1", 17)
    assert [one.code for one in out if isinstance(one, Rejected)] == ["never-fits"]


def test_what_a_quota_does_not_allow_is_no_demand() -> None:
    grid = ledger(rights=Rules(default=Rights(cores=6000)))
    submit(grid, "j-1", 4)
    for number in range(2, 6):
        submit(grid, f"j-{number}", 2)
    assert sum(one.count for one in demand(grid).asks) == 1
    assert {one.code for one in demand(grid).left_out} == {"quota"}


def test_a_job_that_nothing_could_run_any_more_takes_nothing_of_its_users_quota_from_others() -> None:
    grid = ledger(rights=Rules(default=Rights(cores=20_000)))
    submit(grid, "j-1", 16)
    smaller = replace(POOL, shapes=(Shape(resources=Resources(8000, 32 * GIB)),))
    grid.handle(ScalingConfigured(Scaling(pools=(smaller,))), 0.0)
    submit(grid, "j-2")
    submit(grid, "j-3")
    assert grid.state.jobs["j-2"].node == "lab1"
    assert [one.jobs for one in demand(grid).asks] == [("j-1",), ("j-3",)]


def test_what_names_its_node_is_no_demand() -> None:
    grid = ledger()
    submit(grid, "j-1")
    submit(grid, "j-2", 4, constraints=Constraints(only=("lab1",)))
    assert not demand(grid).asks and [one.code for one in demand(grid).left_out] == ["no-pool"]


def test_what_a_running_job_frees_before_a_machine_is_up_is_counted_on() -> None:
    grid = ledger()
    submit(grid, "j-1", time_limit=20.0, at=1.0)
    submit(grid, "j-2", at=2.0)
    soon = view_of(grid.state, grid.state.policy.scaling, NOW).soon
    assert [one.keys for one in soon] == [["lab1"]] and soon[0].capacity.left.cpu == 4000


def test_what_is_predicted_to_end_before_a_machine_is_up_is_counted_on_until_it_runs_for_longer() -> None:
    grid = ledger()
    submit(grid, "j-1", time_limit=50_000.0, at=1.0)
    submit(grid, "j-2", at=2.0)
    scaling = grid.state.policy.scaling
    assert view_of(grid.state, scaling, 4.0).soon == [], "its limit is far away"
    grid.handle(MessageReceived("lab1", Started(allocation="j-1.1")), 3.0)
    grid.handle(RunTimesPredicted((("j-1", 50.0),)), 3.0)
    assert [one.keys for one in view_of(grid.state, scaling, 4.0).soon] == [["lab1"]]
    assert view_of(grid.state, scaling, 60.0).soon == [], "the prediction was wrong: the limit counts again"


def test_how_long_a_job_takes_on_a_machine_is_what_is_predicted_and_never_more_than_its_limit() -> None:
    grid = ledger()
    submit(grid, "j-1")
    for name, limit in (("a", 9000.0), ("b", 9000.0), ("c", 500.0), ("d", 0.0)):
        submit(grid, name, 3, at=2.0, **({"time_limit": limit} if limit else {}))
    submit(grid, "e", 2, at=2.0, time_limit=9000.0, requeue=False)
    assert sorted(one.lasts for one in demand(grid).asks) == [0.0, 505.0, 9005.0, 9005.0], "with their grace"
    grid.handle(RunTimesPredicted((("a", 700.0), ("c", 700.0), ("d", 800.0), ("e", 700.0))), 3.0)
    found = {one.jobs: one.lasts for one in demand(grid).asks}
    assert found[("a", "b")] == 9005.0, "nothing is known of b"
    assert (found[("c",)], found[("d",)], found[("e",)]) == (505.0, 800.0, 9005.0), "e could not be run again"
    grid.handle(RunTimesPredicted((("b", 650.0),)), 4.0)
    assert {one.jobs: one.lasts for one in demand(grid).asks}[("a", "b")] == 700.0


def test_a_question_changes_nothing() -> None:
    grid = ledger()
    submit(grid, "j-1")
    submit(grid, "j-2")
    before = (grid.next_deadline(), dict(grid.state.queue.turns), grid.state.scaling.copy())
    demand(grid)
    view_of(grid.state, grid.state.policy.scaling, NOW)
    assert (grid.next_deadline(), dict(grid.state.queue.turns), grid.state.scaling) == before


def test_what_waits_for_a_dependency_or_a_time_is_no_demand() -> None:
    grid = ledger()
    submit(grid, "j-1")
    first = job("j-2", Request(Resources(4000, GIB)))
    first.phase = HeldBack(after=(Condition("j-1", After.ENDED),))
    later = job("j-3", Request(Resources(4000, GIB)))
    later.begin = 1000.0
    grid.handle(JobsSubmitted(1, (first, later)), 1.0)
    grid.settle(1.0)
    assert demand(grid) == Demand(), "a queue that only waits for its own jobs scales nothing"
