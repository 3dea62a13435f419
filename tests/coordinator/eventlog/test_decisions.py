"""Which of the ledger's commands are decisions."""

from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    Audit,
    RecordAllocation,
    RecordJob,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended
from distributed_grid.coordinator.core.scaling.events import CreateMachine, EndMachine, ListMachines, RecordMachine
from distributed_grid.coordinator.eventlog.decisions import decisions
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Renewed, Stop
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from tests.coordinator.core.scene import job


def test_what_was_decided_is_picked_out_in_order_and_nothing_else() -> None:
    new, runs, over = (job(name, Request(Resources(cpu=1000))) for name in ("a", "b", "c"))
    runs.phase = Active(state=State.STARTING, attempt=Attempt("n1", Grant((0,))))
    over.phase = Ended(outcome=Outcome(Cause.CANCELLED), at=2.0)
    held = Allocation(id="b.1", job="b", node="n1", grant=Grant((0,)), state=State.STARTING, granted=1.0)
    found = decisions(
        [
            RecordJob(new, new=True),
            Accepted(7, ("a",), 1, 1),
            RecordAllocation(held),
            RecordJob(runs),
            Send("n1", Stop(allocation="b.1", cause="cancelled")),
            Send("n1", Renewed(5.0)),
            AckExits("n1", ("c.1",)),
            RecordJob(over),
            Audit("n1", "too late"),
            Rejected(8, "bad-value", "nothing is asked for"),
        ]
    )
    assert found == [
        ("accept", 7, ("a",)),
        ("job", "b", State.STARTING, "n1", ""),
        ("send", "n1", "stop", "b.1"),
        ("job", "c", State.ENDED, "", Cause.CANCELLED),
        ("audit", "n1", "too late"),
        ("refuse", 8, "bad-value", "nothing is asked for"),
    ]


def test_what_a_provider_is_asked_for_is_a_decision() -> None:
    machine = Machine(name="a-1-1", pool="a", provider="p", state=MachineState.CREATING)
    found = decisions(
        [
            RecordMachine("a-1-1", machine),
            CreateMachine(machine),
            EndMachine("p", "a-1-1", "i-1", 1),
            ListMachines("p", 4),
            RecordMachine("a-1-1", None),
        ]
    )
    assert found == [
        ("machine", "a-1-1", MachineState.CREATING),
        ("call", "create", "a-1-1"),
        ("call", "end", "a-1-1"),
        ("call", "list", "p"),
        ("machine", "a-1-1", ""),
    ]
