"""Orders for nodes and what operators ask for have the defaults of the command line."""

from distributed_grid.protocol.messages import DrainNodes, GetReceipts
from distributed_grid.protocol.messages.operator import Place, Preemption, UserShare
from distributed_grid.protocol.resources import Grant, Resources


def test_a_drain_has_no_deadline_and_receipts_no_filter_unless_given() -> None:
    assert DrainNodes(id=1, nodes=("n1",)).deadline < 0
    assert (GetReceipts(id=1).job, GetReceipts(id=1).node, GetReceipts(id=1).limit) == ("", "", 100)


def test_a_preemption_of_one_node_has_no_more_places_and_a_share_a_weight_of_one() -> None:
    assert Preemption(node="n1", grant=Grant(), victims=()).more == ()
    assert Place("n1", Grant()).node == "n1"
    assert UserShare(user="ann", holds=Resources(), held=0.0, past=0.0, share=0.0).weight == 1.0
