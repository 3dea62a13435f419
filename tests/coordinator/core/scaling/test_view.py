"""What a plan is told of the nodes of machines decides whether it counts on them."""

import pytest

from distributed_grid.coordinator.core.scaling.view import Seen
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.plans import DrainCause
from tests.coordinator.core.scaling.test_plan import ask, machine, planned


def test_a_machine_that_has_just_joined_and_does_not_offer_yet_counts_as_on_its_way() -> None:
    assert planned(ask(1, 4), machines=(machine(),), seen={"a-1": Seen()}).quiet


@pytest.mark.parametrize(
    "one", [machine(), machine(state=MachineState.DRAINING)], ids=["joined", "that could be taken back"]
)
def test_a_machine_that_has_no_offer_for_long_is_not_counted_on(one: Machine) -> None:
    found = planned(ask(), machines=(one,), seen={"a-1": Seen(coming=False, cause=DrainCause.IDLE)})
    assert len(found.creates) == 1 and not found.returns
