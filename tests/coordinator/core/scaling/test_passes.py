"""Passes: a plan is told in mode `plan`, done in mode `act`, and done once where an operator orders it."""

import subprocess
import sys
from pathlib import Path

from distributed_grid.coordinator.core.commands import Granted, Rejected
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.scaling.events import CreateMachine, ScalingRequested
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import ScalingMode
from tests.coordinator.core.scaling.test_lists import Stage, calls

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


def test_an_unknown_pool_is_refused_with_a_suggestion() -> None:
    out = Stage().tell(ScalingRequested(5, ScaleOrder.PAUSE, "b", "ann"))
    assert [one.what for one in calls(out, Rejected)] == ["there is no pool 'b'"]


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
