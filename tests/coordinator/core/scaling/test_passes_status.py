"""What an operator is told of scaling: pools, machines, and the plan of now; asking changes nothing."""

from distributed_grid.coordinator.core.scaling.events import CreateMachine, MachineAnswered, ScalingRequested
from distributed_grid.coordinator.core.scaling.passes import scaling_status
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind
from distributed_grid.protocol.messages import GetScaling, ScalingStatus
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import ScalingMode
from tests.coordinator.core.scaling.test_lists import Stage, calls


def status(of: Stage) -> ScalingStatus:
    return scaling_status(of.ledger.state, GetScaling(1), of.now)


def test_the_plan_of_now_is_told_and_nothing_is_done() -> None:
    stage = Stage(mode=ScalingMode.PLAN)
    stage.told()
    stage.ask()
    before = stage.ledger.next_deadline(), stage.ledger.state.scaling.copy()
    said = status(stage)
    assert said.plan is not None and [one.jobs for one in said.plan.creates] == [("j-1",)]
    assert (stage.ledger.next_deadline(), stage.ledger.state.scaling) == before
    assert not calls(stage.settle(), CreateMachine)


def test_a_pool_says_why_it_is_paused_and_what_was_refused() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.CAPACITY, text="no capacity"))
    stage.tell(ScalingRequested(5, ScaleOrder.PAUSE, "a", "ann", "audit"))
    pool = status(stage).pools[0]
    assert pool.paused == "by ann: audit" and [one[2] for one in pool.refused] == ["no capacity"]


def test_machines_that_are_there_come_before_those_that_are_gone() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.QUOTA, text="no"))
    stage.settle(65)
    assert [one.state for one in status(stage).machines] == [MachineState.CREATING, MachineState.FAILED]
