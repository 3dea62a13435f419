"""Passes: a plan is told in mode `plan`, done in mode `act`, and done once where an operator orders it."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Granted,
    JobsSubmitted,
    MessageReceived,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.model import Group
from distributed_grid.coordinator.core.scaling.budget import DAY
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    MachineAnswered,
    RecordMachine,
    ScalingConfigured,
    ScalingRequested,
)
from distributed_grid.coordinator.core.scaling.state import INTERVAL, PER_LINE, Answer, CallKind
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Exited, Launch
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import Limits, Pool, ScalingMode
from tests.coordinator.core.scaling.test_lists import SHAPE, Stage, calls, machine
from tests.coordinator.core.scene import facts, job, join

ROOT = Path(__file__).parents[4]


def test_in_mode_plan_nothing_is_created_and_the_plan_says_what_would_be() -> None:
    stage = Stage(mode=ScalingMode.PLAN)
    stage.told()
    assert not calls(stage.ask() + stage.settle(60), CreateMachine)
    last = stage.ledger.state.scaling.last
    assert last is not None and [one.jobs for one in last.creates] == [("j-1",)]
    assert "grid scale apply" in why(stage.ledger.state, "j-1", None, stage.now).reason.text


def test_an_operator_has_the_plan_done_once() -> None:
    stage = Stage(mode=ScalingMode.PLAN)
    stage.told()
    stage.ask()
    out = stage.tell(ScalingRequested(5, ScaleOrder.APPLY, by="ann"))
    assert [one.text for one in calls(out, Granted) if one.token == 5] == ["1 machine to be created"]
    assert len(calls(out, CreateMachine)) == 1
    assert "a-7-1 of pool a is creating since" in why(stage.ledger.state, "j-1", None, stage.now).reason.text


def test_a_paused_pool_creates_nothing_until_it_is_resumed() -> None:
    stage = Stage()
    stage.told()
    stage.tell(ScalingRequested(5, ScaleOrder.PAUSE, "a", "ann", "audit"))
    assert not calls(stage.ask() + stage.settle(30), CreateMachine)
    last = stage.ledger.state.scaling.last
    assert last is not None and "by ann: audit" in last.not_done[0].why
    assert calls(stage.tell(ScalingRequested(6, ScaleOrder.RESUME, "a", "ann"), 5), CreateMachine)


def test_each_of_many_equal_jobs_is_told_why_no_machine_is_created_for_it_also_while_one_comes_for_others() -> None:
    stage = Stage()
    stage.told()
    large = [job(f"large-{number}", Request(Resources(64_000, GIB)), stage.now) for number in range(8)]
    stage.tell(JobsSubmitted(1, tuple(large)))
    assert len(calls(stage.ask(), CreateMachine)) == 1
    said = {why(stage.ledger.state, one.id, None, stage.now).reason.text.rpartition("; ")[2] for one in large}
    assert said == {"no machine is created for it: a machine of pool a lends 4 cpu, 8G memory at the most"}


def test_a_machine_that_failed_is_not_said_to_be_on_its_way_while_it_ends() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"), 101.0)
    assert stage.state("a-7-1") is MachineState.ENDING
    assert "is ending since" not in why(stage.ledger.state, "j-1", None, stage.now).reason.text


def test_a_plan_of_before_says_nothing_after_the_configuration_was_changed() -> None:
    stage = Stage(limits=Limits(max_workers=0))
    stage.told()
    stage.ask()
    assert "(scaling.max_workers)" in why(stage.ledger.state, "j-1", None, stage.now).reason.text
    stage.tell(ScalingConfigured(replace(stage.scaling, mode=ScalingMode.OFF)), 60.0)
    assert "(scaling.max_workers)" not in why(stage.ledger.state, "j-1", None, stage.now).reason.text


def test_a_machine_is_remembered_as_long_as_it_counts_for_the_day_whatever_the_retention() -> None:
    stage = Stage(machine(MachineState.GONE, over=950.0, price=1.0), retention=10.0)
    stage.told(seconds=5.0)
    assert [*stage.machines] == ["a-1-1"]
    stage.now = DAY - 100.0
    stage.told(seconds=5.0)
    assert [*stage.machines] == ["a-1-1"]
    stage.now = DAY + 10.0
    stage.told(seconds=5.0)
    assert not stage.machines


def test_an_unknown_pool_is_refused_with_those_that_there_are() -> None:
    out = Stage().tell(ScalingRequested(5, ScaleOrder.PAUSE, "b", "ann"))
    assert [(one.what, one.hint) for one in calls(out, Rejected)] == [("there is no pool 'b'", "there are a")]


def test_an_operator_has_one_machine_created_within_the_limits_and_ended_when_it_is_empty() -> None:
    stage = Stage(mode=ScalingMode.PLAN, limits=Limits(max_workers=1))
    stage.told()
    out = stage.tell(ScalingRequested(5, ScaleOrder.CREATE, "a", "ann"))
    assert [one.text for one in calls(out, Granted)] == ["a-7-1"] and len(calls(out, CreateMachine)) == 1
    assert stage.machines["a-7-1"].why.startswith("ann ordered it")
    (refused,) = calls(stage.tell(ScalingRequested(6, ScaleOrder.CREATE, "a", "ann")), Rejected)
    assert refused.why == "there are 1 of 1 machines (scaling.max_workers)"
    assert calls(stage.tell(ScalingRequested(7, ScaleOrder.CREATE, "a", "ann", machine_type="x")), Rejected)
    (unknown,) = calls(stage.tell(ScalingRequested(8, ScaleOrder.END, machine="a-7-2")), Rejected)
    assert unknown.what == "there is no machine 'a-7-2'"
    assert unknown.hint == "did you mean a-7-1? see `grid scale status`"
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1"), stage.now)
    stage.tell(JobsSubmitted(1, (job("j-1", Request(Resources(1000, GIB)), stage.now),)))
    out = stage.tell(ScalingRequested(9, ScaleOrder.END, by="ann", machine="a-7-1"))
    assert [one.text for one in calls(out, Granted) if one.token] == ["a-7-1 is draining"] and not calls(
        out, EndMachine
    )
    stage.tell(ScalingRequested(10, ScaleOrder.APPLY, by="ann"))
    assert stage.state("a-7-1") is MachineState.DRAINING, "no plan takes back what an operator ordered"
    done = Outcome(cause=Cause.EXITED, code=0)
    out = stage.tell(MessageReceived("a-7-1", Exited(allocation="j-1.1", outcome=done)))
    assert [one.name for one in calls(out, EndMachine)] == ["a-7-1"]


def test_machines_that_turn_out_to_run_no_jobs_of_the_user_are_created_once_and_after_a_change_again() -> None:
    stage = Stage()
    stage.ledger.state.policy = replace(stage.ledger.state.policy, owner_rule=True)
    stage.told()
    assert len(calls(stage.ask(), CreateMachine)) == 1
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1", owners=("root",), walls="none"), stage.now)
    ended = stage.settle(500)
    assert len(calls(ended, EndMachine)) >= 1 and not calls(ended, CreateMachine)
    reason = why(stage.ledger.state, "j-1", None, stage.now).reason.text
    assert "pool a runs jobs of its owners only (root), as its walls are none, as a-7-1 did" in reason
    assert calls(stage.tell(ScalingRequested(6, ScaleOrder.RESUME, "a", "ann"), 5), CreateMachine)


@pytest.mark.parametrize("since", [0.0, 0.4, 90.0])
def test_a_machine_is_asked_for_within_a_second_and_gets_the_job_with_its_first_offer(since: float) -> None:
    """Of the time from the submission until the job runs this is the grid's part; the rest is the provider's."""
    stage = Stage()
    stage.told()
    stage.settle(since)
    submitted = stage.now
    out = stage.tell(JobsSubmitted(1, (job("j-1", Request(Resources(1000, GIB)), stage.now),)))
    while not calls(out, CreateMachine):
        due = stage.ledger.next_deadline()
        assert due is not None and due <= submitted + INTERVAL + PER_LINE
        out = stage.settle(due - stage.now)
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"), 20.0)
    came = join(stage.ledger, facts("a-7-1"), stage.now)
    assert [one.message.allocation for one in calls(came, Send) if isinstance(one.message, Launch)] == ["j-1.1"]


def test_what_starts_in_the_turn_of_a_plan_gets_no_machine() -> None:
    stage = Stage()
    stage.told()
    join(stage.ledger, facts("n1"), stage.now)
    stage.settle(2)
    stage.now += INTERVAL
    stage.ledger.state.deadlines.arm("scaling", "", stage.now)
    out = stage.tell(JobsSubmitted(1, (job("j-1", Request(Resources(1000, GIB)), stage.now),)))
    assert stage.ledger.state.jobs["j-1"].node == "n1" and stage.ledger.state.scaling.passed == stage.now
    assert not calls(out, CreateMachine), "a free node was there"


def test_the_first_offer_of_a_machine_in_the_turn_of_a_plan_calls_for_no_second_machine() -> None:
    stage = Stage()
    stage.told()
    assert len(calls(stage.ask(), CreateMachine)) == 1
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"), 20.0)
    stage.now += INTERVAL
    stage.ledger.state.deadlines.arm("scaling", "", stage.now)
    out = join(stage.ledger, facts("a-7-1"), stage.now)
    assert stage.ledger.state.jobs["j-1"].node == "a-7-1" and stage.ledger.state.scaling.passed == stage.now
    assert not calls(out, CreateMachine)


def test_a_gang_gets_machines_beside_the_nodes_that_are_there_and_is_told_so() -> None:
    pools = (Pool(name="a", provider="p", shapes=(SHAPE,), max=1), Pool(name="b", provider="p", shapes=(SHAPE,), max=1))
    stage = Stage(pools=pools)
    stage.told()
    join(stage.ledger, facts("n1"), stage.now)
    one = job("g", Request(Resources(4000, GIB), gang=3), stage.now)
    group = Group(
        id="g", key=one.key, user=one.user, kind=GroupKind.GANG, spec=one.spec, request=one.request,
        submitted=stage.now, count=3, array=Array(((0, 2, 1),)),
    )  # fmt: skip
    out = stage.tell(JobsSubmitted(1, (one,), (group,)))
    assert not calls(out, Rejected)
    assert sorted(one.machine.pool for one in calls(out + stage.settle(2), CreateMachine)) == ["a", "b"]
    reason = why(stage.ledger.state, "g_0", None, stage.now).reason
    assert reason.code == "Machine"
    assert reason.text.startswith("needs 4 cpu, 1G memory on each of 3 nodes; 1 could, and machines of pool a; ")


def test_a_job_that_asks_for_more_than_machines_offer_in_fact_gets_one_and_no_second_one() -> None:
    stage = Stage()
    stage.told()
    wanted = job("j-1", Request(Resources(1000, 8 * GIB)), stage.now)
    assert len(calls(stage.tell(JobsSubmitted(1, (wanted,)), 2.0), CreateMachine)) == 1
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    out = join(stage.ledger, facts("a-7-1"), stage.now, memory=7 * GIB)  # its own programs use the rest
    assert not calls(out + stage.settle(500), CreateMachine)
    reason = why(stage.ledger.state, "j-1", None, stage.now).reason.text
    assert "a machine of pool a lends 4 cpu, 7G memory at the most, as a-7-1 did" in reason


def test_a_type_is_left_alone_for_twice_as_long_each_time_that_a_machine_for_jobs_ran_none() -> None:
    stage = Stage()
    stage.told()
    pauses = []
    for number in (1, 2, 3):
        name, since = f"a-7-{number}", stage.now
        made = calls(stage.ask(f"j-{number}"), CreateMachine)
        while not made:
            assert stage.now < since + 500
            made = calls(stage.settle(5), CreateMachine)
        pauses.append(stage.now - since)
        stage.tell(CancelRequested(1, (f"j-{number}",), "ann"))
        stage.tell(MachineAnswered(name, CallKind.CREATE, 1, Answer.DONE, f"i-{number}"))
        join(stage.ledger, facts(name), stage.now)
        while stage.state(name) is not MachineState.ENDING:
            assert stage.now < since + 1000
            stage.settle(5)
    assert pauses == [pytest.approx(most, abs=12) for most in (0, 60, 120)]


def test_a_machine_that_falls_silent_keeps_no_job_from_another_one_and_ends_though_jobs_may_run_there() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1"), stage.now)
    stage.settle(1)
    assert stage.ledger.state.jobs["j-1"].node == "a-7-1"
    out = stage.settle(75)
    assert "j-1" not in stage.ledger.state.jobs and stage.ledger.state.nodes["a-7-1"].orphans, "it may run on"
    out += stage.ask("j-2")
    assert [one.machine.jobs for one in calls(out, CreateMachine)] == [("j-2",)]
    assert [one.name for one in calls(stage.settle(150), EndMachine)][:1] == ["a-7-1"]


def test_machines_of_a_pool_that_is_configured_no_more_end_by_order_also_where_there_is_no_pool_left() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1"), stage.now)
    none = ScalingConfigured(replace(stage.scaling, mode=ScalingMode.PLAN, pools=()))
    assert not calls(stage.tell(none, 30), EndMachine) and stage.state("a-7-1") is MachineState.JOINED
    stage.tell(ScalingRequested(5, ScaleOrder.APPLY, by="ann"))
    assert stage.state("a-7-1") is MachineState.DRAINING
    refused = calls(stage.tell(ScalingRequested(6, ScaleOrder.PAUSE, by="ann")), Rejected)
    assert [one.what for one in refused] == ["there is no pool"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_machine_on_its_way_ends_at_once_when_its_pool_is_configured_no_more(answered: bool) -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    if answered:
        stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    out = stage.tell(ScalingConfigured(replace(stage.scaling, pools=())), 3.0)
    assert stage.state("a-7-1") is MachineState.ENDING and [one.name for one in calls(out, EndMachine)] == ["a-7-1"]
    assert stage.machines["a-7-1"].text == "pool a is not configured any more"
    assert not stage.ledger.state.scaling.never_joined


def test_a_machine_is_asked_for_as_configured_whatever_the_one_before_has_joined_with() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1", cores=2, memory=3 * GIB), stage.now)
    stage.tell(JobsSubmitted(2, tuple(job(f"k-{n}", Request(Resources(1000, GIB)), stage.now) for n in range(4))))
    made = calls(stage.settle(5.0), CreateMachine)
    assert made and {one.machine.resources for one in made} == {SHAPE.resources}


def test_that_a_machine_has_had_a_job_is_recorded_with_the_grant() -> None:
    """Else a coordinator that is started again takes it for one that was created in vain."""
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    out = join(stage.ledger, facts("a-7-1"), stage.now)
    assert stage.ledger.state.jobs["j-1"].node == "a-7-1"
    recorded = [one.machine for one in calls(out, RecordMachine) if one.machine is not None]
    assert recorded[-1] == stage.machines["a-7-1"] and recorded[-1].ran


def test_mode_off_plans_nothing() -> None:
    stage = Stage(mode=ScalingMode.OFF)
    stage.told()
    stage.settle(60)
    assert stage.ledger.state.scaling.last is None


def test_without_a_pool_nothing_of_scaling_is_imported() -> None:
    code = (
        "import sys\n"
        "from distributed_grid.coordinator.core.ledger import Ledger\n"
        "from tests.coordinator.core.scene import facts, join\n"
        "ledger = Ledger(epoch=1)\n"
        "ledger.restore([], [], [], 1.0)\n"
        "join(ledger, facts('lab1'), 1.0)\n"
        "ledger.settle(100.0)\n"
        "room = 'distributed_grid.coordinator.core.scaling.'\n"
        "print(sorted(name.removeprefix(room) for name in sys.modules if name.startswith(room)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['events', 'state']", "the types of events and of the checkpoint alone"


def test_without_a_pool_a_beat_and_a_job_call_nothing_of_scaling_and_the_coordinator_loads_no_provider() -> None:
    code = (
        "import sys\n"
        "import distributed_grid.coordinator.main\n"
        "from distributed_grid.coordinator.core.commands import HeartbeatReceived, JobsSubmitted\n"
        "from distributed_grid.coordinator.core.ledger import Ledger\n"
        "from distributed_grid.protocol.nodes import Sample\n"
        "from distributed_grid.protocol.jobs import Request\n"
        "from distributed_grid.protocol.resources import Resources\n"
        "from tests.coordinator.core.scene import facts, job, join\n"
        "ledger, called = Ledger(epoch=1), set()\n"
        "ledger.restore([], [], [], 1.0)\n"
        "join(ledger, facts('lab1'), 1.0)\n"
        "def look(frame, event, of):\n"
        "    if event == 'call' and '/scaling/' in frame.f_code.co_filename:\n"
        "        called.add(frame.f_code.co_name)\n"
        "sys.setprofile(look)\n"
        "ledger.handle(JobsSubmitted(1, (job('j-1', Request(Resources(1000)), 2.0),)), 2.0)\n"
        "for number in range(10):\n"
        "    ledger.handle(HeartbeatReceived('lab1', Sample(at=3.0 + number)), 3.0 + number)\n"
        "    ledger.settle(3.0 + number)\n"
        "sys.setprofile(None)\n"
        "rooms = ('distributed_grid.coordinator.core.scaling.', 'distributed_grid.coordinator.providers')\n"
        "print(sorted(called), sorted(name.rpartition('.')[2] for name in sys.modules if name.startswith(rooms)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] ['events', 'state']"
