"""A job that may take longer than a machine goes on starts elsewhere, or on a new machine; only where there is neither,
on that one.
"""

from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.model import Group
from distributed_grid.coordinator.core.scaling.events import CreateMachine, MachineAnswered
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind
from distributed_grid.protocol.groups import GroupKind, parse_array
from distributed_grid.protocol.jobs import Priority, Request, State
from distributed_grid.protocol.messages import Started
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import Pool, ScalingMode
from tests.coordinator.core.scaling.test_lists import SHAPE, Stage, calls, machine
from tests.coordinator.core.scene import facts, job, join

ONE = Request(Resources(1000, GIB))
HOUR = 3600.0


def pool(**more: Any) -> Pool:
    given: dict[str, Any] = {"max": 4, "idle": 4 * HOUR, "boot": 10.0, "join_within": 100.0, "life": 3 * HOUR}
    return Pool(name="a", provider="p", shapes=(SHAPE,), **(given | more))


def old(name: str = "a-1-1", left: float = HOUR, **more: Any) -> Machine:
    """A machine that joined long ago, and whose jobs are told to leave in so many seconds."""
    given: dict[str, Any] = {"born": 1000.0 - 2 * HOUR, "joined": 1010.0 - 2 * HOUR, "ends_by": 1060.0 + left}
    return machine(MachineState.JOINED, name=name, handle=f"i-{name}", **(given | more))


def stage(*machines: Machine, of: Pool | None = None, mode: ScalingMode = ScalingMode.ACT) -> Stage:
    """A grid with these machines, all of which offer."""
    found = Stage(*machines, pools=(of or pool(),), mode=mode)
    found.told()
    for one in machines:
        join(found.ledger, facts(one.name), found.now)
    found.settle(1.0)
    return found


def submit(at: Stage, name: str, limit: float, request: Request = ONE, seconds: float = 2.0, **spec: Any) -> list[Any]:
    given = job(name, request, at.now, time_limit=limit, grace=0.0, **spec)
    return calls(at.tell(JobsSubmitted(1, (given,)), seconds), CreateMachine)


def node(at: Stage, name: str) -> str:
    """Where a job is; empty: it waits."""
    one = at.ledger.state.jobs[name]
    return "" if one.state is State.WAITING else one.node


def test_a_job_that_would_be_cut_off_gets_a_new_machine_and_one_that_fits_takes_the_old_one() -> None:
    grid = stage(old())
    assert len(submit(grid, "long", 2 * HOUR)) == 1
    assert not submit(grid, "short", HOUR / 2)
    assert (node(grid, "long"), node(grid, "short")) == ("", "a-1-1")
    said = why(grid.ledger.state, "long", None, grid.now)
    assert said.reason.code == "Machine"
    assert "a-1-1 has room, but its machine has 59m5" in said.reason.text and "may take 2h" in said.reason.text
    assert "a-7-1 of pool a is creating" in said.reason.text
    assert "its machine has" in {one.node: one.why for one in said.verdicts}["a-1-1"]
    grid.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-2"), 5.0)
    join(grid.ledger, facts("a-7-1"), grid.now)
    grid.settle(1.0)
    assert node(grid, "long") == "a-7-1"


def test_a_job_that_would_be_cut_off_starts_on_a_node_that_stays() -> None:
    grid = stage(old())
    join(grid.ledger, facts("lab", cores=64), grid.now)
    assert not submit(grid, "long", 2 * HOUR)
    assert node(grid, "long") == "lab"


def test_where_no_machine_may_come_a_job_starts_on_the_one_that_ends_and_its_story_says_so() -> None:
    for given in ({"max": 1}, {"life": 2 * HOUR}):
        grid = stage(old(), of=pool(**given))
        assert not submit(grid, "long", 2 * HOUR)
        assert node(grid, "long") == "a-1-1"
        story = " ".join(one.text for one in grid.ledger.state.jobs["long"].story)
        assert "starts on a-1-1, though its machine has 59m5" in story and "no machine comes" in story
    grid = stage(old(), mode=ScalingMode.PLAN)
    submit(grid, "long", 2 * HOUR)
    assert node(grid, "long") == "a-1-1", "nothing is created by itself"
    grid = stage(old())
    submit(grid, "now", 2 * HOUR, Request(Resources(1000, GIB), immediate=True))
    assert node(grid, "now") == "a-1-1", "it does not wait"
    grid = stage(old())
    submit(grid, "named", 2 * HOUR, Request(Resources(1000, GIB), nodes=("a-1-1",)))
    assert node(grid, "named") == "a-1-1", "its user has named it"


def test_a_job_without_a_limit_starts_anywhere() -> None:
    grid = stage(old())
    submit(grid, "endless", 0.0)
    assert node(grid, "endless") == "a-1-1"


def test_a_job_that_waits_for_a_machine_which_never_comes_starts_on_the_one_that_ends() -> None:
    grid = stage(old())
    submit(grid, "long", 2 * HOUR)
    grid.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.CAPACITY, text="none left"), 40.0)
    assert node(grid, "long") == "a-1-1"


def test_a_machine_that_was_late_is_taken_by_the_job_it_was_created_for() -> None:
    grid = stage(old(), of=pool(join_within=1000.0))
    submit(grid, "long", 3 * HOUR - 75.0)
    grid.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-2"), 300.0)
    assert node(grid, "long") == ""
    join(grid.ledger, facts("a-7-1"), grid.now)
    assert not calls(grid.settle(30.0), CreateMachine)
    assert node(grid, "long") == "a-7-1"


def test_a_long_job_that_does_not_start_keeps_no_short_one_of_the_same_size_from_the_machine() -> None:
    grid = stage(old())
    new = (
        job("long", ONE, grid.now, time_limit=2 * HOUR, grace=0.0),
        job("short", ONE, grid.now, "ben", time_limit=60.0),
    )
    grid.tell(JobsSubmitted(1, new), 2.0)
    assert (node(grid, "long"), node(grid, "short")) == ("", "a-1-1")


def test_a_gang_needs_machines_that_all_go_on_for_long_enough() -> None:
    grid = stage(old(), old("a-1-2"), old("a-1-3", left=3 * HOUR))
    wanted = Request(Resources(1000, GIB), gang=2)
    first = job("g", wanted, grid.now, time_limit=2 * HOUR, grace=0.0)
    whole = Group(
        id="g", key=first.key, user="ann", kind=GroupKind.GANG, spec=first.spec, request=wanted, submitted=grid.now,
        count=2, array=parse_array("0-1"),
    )  # fmt: skip
    made = calls(grid.tell(JobsSubmitted(1, (first,), (whole,)), 2.0), CreateMachine)
    assert [one.machine.name for one in made] == ["a-7-1"], "one more, beside the one that goes on for three hours"
    assert not node(grid, "g_0")
    grid.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-2"), 1.0)
    join(grid.ledger, facts("a-7-1"), grid.now)
    grid.settle(1.0)
    assert {node(grid, "g_0"), node(grid, "g_1")} == {"a-1-3", "a-7-1"}


def test_what_is_free_soon_on_a_machine_that_ends_serves_no_job_that_takes_longer() -> None:
    grid = stage(old())
    for number in range(4):
        submit(grid, f"short-{number}", 20.0)
    assert len(submit(grid, "long", 2 * HOUR)) == 1


def test_a_dry_run_is_told_that_a_machine_ends_before_the_job_may_be_over() -> None:
    grid = stage(old())
    said = why(grid.ledger.state, None, ONE, grid.now, "ann", lasts=2 * HOUR)
    assert said.chosen == "" and "its machine has" in said.verdicts[0].why
    assert why(grid.ledger.state, None, ONE, grid.now, "ann", lasts=HOUR / 2).chosen == "a-1-1"


WHOLE = Resources(4000, GIB)
URGENT = Request(WHOLE, Priority.URGENT)


def full(of: Pool) -> Stage:
    """A machine with an hour left that is full of a job which may give way."""
    grid = stage(old(), of=of)
    state = grid.ledger.state
    state.policy = replace(state.policy, preempting=replace(state.policy.preempting, min_hold=0.1))
    submit(grid, "low", 0.0, Request(WHOLE, Priority.LOW), 0.5)
    grid.tell(MessageReceived("a-1-1", Started(allocation="low.1")), 0.5)
    return grid


def test_nobody_gives_way_on_a_machine_that_ends_before_the_urgent_job_is_over() -> None:
    grid = full(pool(max=2))
    assert why(grid.ledger.state, None, URGENT, grid.now, "ann", lasts=2 * HOUR).preempts is None
    short = why(grid.ledger.state, None, URGENT, grid.now, "ann", lasts=HOUR / 4).preempts
    assert short is not None and short.node == "a-1-1"
    assert len(submit(grid, "long", 2 * HOUR, URGENT, 1.0)) == 1, "another machine comes for it"
    assert grid.ledger.state.jobs["low"].state is State.RUNNING


def test_where_no_other_machine_comes_an_urgent_job_takes_the_one_that_ends() -> None:
    grid = full(pool(max=1))
    assert not submit(grid, "long", 2 * HOUR, URGENT, 1.0)
    assert grid.ledger.state.jobs["low"].state is State.STOPPING
