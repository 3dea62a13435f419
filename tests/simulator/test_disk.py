"""What a commit has made durable is there, as it was; what was not committed is not."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import (
    Command,
    RecordAllocation,
    RecordForgotten,
    RecordJob,
    RecordNode,
    RecordOrders,
)
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended, Job
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.nodes import Drain, NodeOrders
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.simulator.disk import Disk, snapshot
from tests.coordinator.core.scene import facts
from tests.coordinator.core.scene import job as waiting

ONE_CORE = Request(Resources(1000))


def running(name: str, node: str = "n0", tries: int = 1) -> tuple[Job, Allocation]:
    made = waiting(name, ONE_CORE)
    made.allocation, grant = f"{name}.{tries}", Grant((0,))
    made.phase = Active(state=State.RUNNING, attempt=Attempt(node, grant))
    return made, Allocation(id=made.allocation, job=name, node=node, grant=grant, state=State.RUNNING, granted=1.0)


def committed(*records: Command, disk: Disk | None = None, clock: float = 1.0) -> Disk:
    disk = disk or Disk()
    disk.apply(snapshot(records, clock))
    return disk


def new(made: Job, **other: Any) -> RecordJob:
    return RecordJob(made, new=True, **other)


def test_what_is_committed_survives_and_what_is_not_does_not() -> None:
    disk = committed(new(waiting("j1", ONE_CORE)))
    lost = snapshot([new(waiting("j2", ONE_CORE))], 2.0)
    assert [one.id for one in disk.jobs()] == ["j1"] and disk.clock == 1.0
    disk.apply(lost)
    assert [one.id for one in disk.jobs()] == ["j1", "j2"] and disk.clock == 2.0


def test_a_snapshot_is_of_the_moment_in_which_it_was_taken() -> None:
    made = waiting("j1", ONE_CORE)
    taken = snapshot([new(made)], 1.0)
    made.phase = Ended(outcome=Outcome(Cause.EXITED), at=2.0)
    disk = Disk()
    disk.apply(taken)
    assert [one.state for one in disk.jobs()] == [State.WAITING]


def test_a_copy_goes_its_own_way() -> None:
    disk = committed(new(waiting("j1", ONE_CORE)), RecordNode(facts("n0")))
    copy = disk.copy()
    committed(new(waiting("j2", ONE_CORE)), RecordForgotten("n0"), disk=copy)
    assert [one.id for one in disk.jobs()] == ["j1"] and [one.name for one in disk.facts()] == ["n0"]
    assert len([*copy.jobs()]) == 2 and not [*copy.facts()]


def test_a_job_that_has_ended_is_kept_and_not_restored() -> None:
    made, held = running("j1")
    disk = committed(new(made), RecordAllocation(held))
    assert [one.id for one in disk.allocations()] == ["j1.1"]
    made.phase = Ended(outcome=Outcome(Cause.EXITED), at=2.0)
    held.state = State.ENDED
    committed(new(made), RecordAllocation(held), disk=disk)
    assert not [*disk.jobs()] and not [*disk.allocations()] and not disk.past
    last = disk.last_of("j1")
    assert last is not None and last.state is State.ENDED and disk.rows["j1"].outcome == Outcome(Cause.EXITED)


def test_a_job_that_is_not_stored_cannot_be_changed() -> None:
    with pytest.raises(AssertionError, match="j1 is not stored"):
        committed(RecordJob(waiting("j1", ONE_CORE)))


def test_a_job_recorded_without_its_allocation_keeps_the_one_that_is_there() -> None:
    made, held = running("j1")
    disk = committed(new(made), RecordAllocation(held))
    committed(new(made), disk=disk)
    assert [one.id for one in disk.allocations()] == ["j1.1"]


def test_an_attempt_after_which_the_job_goes_on_is_in_the_past() -> None:
    made, held = running("j1")
    held.state = State.ENDED
    again, second = running("j1", tries=2)
    disk = committed(new(made), RecordAllocation(held), new(again), RecordAllocation(second))
    assert [*disk.past] == ["j1.1"] and [one.id for one in disk.allocations()] == ["j1.2"]


def test_orders_stand_until_others_are_given() -> None:
    drained = NodeOrders(drain=Drain(since=1.0, by="op"))
    disk = committed(RecordOrders("n0", drained))
    assert disk.orders() == {"n0": drained}
    committed(RecordOrders("n0", NodeOrders()), disk=disk)
    assert disk.orders() == {"n0": NodeOrders()}
