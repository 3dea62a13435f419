"""What an agent tells of its settings changes what the ledger decides by, and is part of what is replayed."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Accepted, JobsSubmitted, MessageReceived, RecordNode, Rejected
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages import InEffect
from distributed_grid.protocol.nodes import Layer, Lending
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, resumed, step

N1 = facts("n1", cores=4)
LARGE = Request(Resources(cpu=4000))
LESS = InEffect(settings=Layer(Lending(priority=0.5)), lendable=Resources(2000, N1.memory))


def test_settings_that_change_live_change_what_fits_the_node_and_its_weight() -> None:
    ledger = Ledger()
    join(ledger, N1)
    out = step(ledger, MessageReceived("n1", LESS), 1.0)
    changed = replace(N1, lendable=Resources(2000, N1.memory), priority=0.5)
    assert RecordNode(changed) in out and ledger.state.nodes["n1"].facts == changed
    assert ledger.state.shares.capacity == changed.lendable
    submitted = step(ledger, JobsSubmitted(1, (job("large", LARGE),)), 1.0)
    assert [one.code for one in submitted if isinstance(one, Rejected)] == ["never-fits"]
    assert not [one for one in step(ledger, MessageReceived("n1", LESS), 2.0) if isinstance(one, RecordNode)], (
        "nothing new"
    )
    step(ledger, MessageReceived("n1", InEffect(settings=Layer(), lendable=N1.lendable)), 3.0)
    submitted = step(ledger, JobsSubmitted(2, (job("large", LARGE),)), 3.0)
    assert [one for one in submitted if isinstance(one, Accepted)]


def test_a_ledger_that_goes_on_from_a_snapshot_decides_by_the_same_settings() -> None:
    ledger = Ledger()
    join(ledger, N1)
    step(ledger, MessageReceived("n1", LESS), 1.0)
    for one in (ledger, resumed(ledger)):
        (refused,) = step(one, JobsSubmitted(1, (job("large", LARGE),)), 2.0)
        assert isinstance(refused, Rejected)
