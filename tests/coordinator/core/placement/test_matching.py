import msgspec

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Placement, Refusal
from distributed_grid.coordinator.core.placement.matching import could_ever, place
from distributed_grid.coordinator.core.policy import DEFAULT
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, join


def placed(ledger: Ledger, request: Request) -> str:
    found = place(ledger.state.nodes, ledger.state.index, request)
    assert isinstance(found, Placement)
    return found.node


def test_a_preferred_node_is_taken_while_it_fits_and_no_longer() -> None:
    ledger = Ledger()
    join(ledger, facts("small", cores=1))
    join(ledger, facts("large", cores=8))
    assert placed(ledger, Request(Resources(cpu=1000))) == "small"
    assert placed(ledger, Request(Resources(cpu=1000), nodes=("large",))) == "large"
    assert placed(ledger, Request(Resources(cpu=2000), nodes=("small",))) == "large"


def test_of_equal_nodes_the_one_its_owner_gives_more_priority_is_taken() -> None:
    ledger = Ledger()
    join(ledger, facts("ordinary"))
    join(ledger, facts("eager", priority=3.0))
    assert placed(ledger, Request(Resources(cpu=1000))) == "eager"


def test_a_refusal_says_how_many_nodes_were_in_question() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=2))
    assert place(ledger.state.nodes, ledger.state.index, Request(Resources(cpu=3000))) == Refusal(1)


def test_confidence_is_the_weighted_mean_of_its_parts() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", gpus=1))
    found = place(ledger.state.nodes, ledger.state.index, Request(Resources(cpu=1000)))
    assert isinstance(found, Placement)
    weights = msgspec.structs.asdict(DEFAULT.weights)
    said = sum(weights[name.replace("-", "_")] * score for name, score in found.scores.items())
    assert round(found.confidence, 9) == round(said, 9)
    assert round(sum(weights.values()), 9) == 1.0 and all(0 <= part <= 1 for part in found.scores.values())


def test_a_node_could_never_lend_more_gpus_than_it_has() -> None:
    assert could_ever(facts("n", gpus=2), Resources(gpu=2000))
    assert not could_ever(facts("n", gpus=2), Resources(gpu=3000))
    assert not could_ever(facts("n", cores=2), Resources(cpu=2500))
