import random
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Node, Placement
from distributed_grid.coordinator.core.placement.matching import SCORES, Context, confidence, place, scores, scoring
from distributed_grid.coordinator.core.policy import WEIGHTS, Policy, Weights
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Exited
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.placement import Local, Strategy
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed
from tests.depth import tries

ONE = Resources(cpu=1000)


def nodes(*names: str, **more: Any) -> Ledger:
    ledger = Ledger()
    for name in names:
        join(ledger, facts(name, **more))
    return ledger


def chosen(ledger: Ledger, request: Request) -> str:
    found = place(ledger.state.nodes, ledger.state.index, request, ledger.state.policy)
    assert isinstance(found, Placement)
    return found.node


def run(ledger: Ledger, name: str, request: Request, **spec: Any) -> str:
    ledger.handle(JobsSubmitted(1, (job(name, request, **spec),)), 1.0)
    ledger.settle(1.0)
    ledger.check()
    return ledger.state.jobs[name].node


@pytest.mark.parametrize("strategy", Strategy)
def test_a_strategy_is_a_tuple_of_scores_whose_weights_are_one_together(strategy: Strategy) -> None:
    weights = WEIGHTS[strategy]
    assert round(sum(msgspec.structs.astuple(weights)), 9) == 1.0
    found = scoring(weights)
    assert found.scores == tuple(SCORES[name] for name in found.names)
    assert [name.replace("_", "-") for name in Weights.__struct_fields__] == list(SCORES)


def test_best_fit_takes_the_node_that_is_filled_best() -> None:
    ledger = Ledger()
    for name, cores in (("large", 8), ("small", 2), ("middle", 4)):
        join(ledger, facts(name, cores=cores))
    assert chosen(ledger, Request(ONE)) == "small"


def test_pack_stays_on_a_node_that_is_in_use_where_best_fit_goes_to_a_smaller_one() -> None:
    ledger = Ledger()
    for name, cores in (("large", 8), ("small", 2)):
        join(ledger, facts(name, cores=cores))
    run(ledger, "j1", Request(ONE, nodes=("large",)))
    assert chosen(ledger, Request(ONE)) == "small"
    assert chosen(ledger, Request(ONE, strategy=Strategy.PACK)) == "large"


def test_pack_opens_another_node_only_when_those_in_use_are_full() -> None:
    ledger = nodes("n1", "n2", "n3", cores=2)
    pack = Request(ONE, strategy=Strategy.PACK)
    places = [run(ledger, f"j{number}", pack) for number in range(6)]
    assert len(set(places[:2])) == 1 and len(set(places[:4])) == 2 and len(set(places)) == 3


def test_spread_goes_round_all_nodes_before_it_comes_to_one_again() -> None:
    ledger = nodes("n1", "n2", "n3", cores=4)
    spread = Request(ONE, strategy=Strategy.SPREAD)
    places = [run(ledger, f"j{number}", spread) for number in range(6)]
    assert sorted(places[:3]) == ["n1", "n2", "n3"] == sorted(places[3:])


@pytest.mark.parametrize("returned", [True, False])
def test_a_node_whose_last_job_ended_is_free_for_spread_and_not_in_use_for_pack(returned: bool) -> None:
    ledger = nodes("n1", "n2")
    for number, name in enumerate(("n1", "n2")):
        run(ledger, f"j{number}", Request(ONE, nodes=(name,)))
    assert chosen(ledger, Request(ONE, strategy=Strategy.SPREAD))  # the views are there
    assert chosen(ledger, Request(ONE, strategy=Strategy.PACK))
    if not returned:  # its room stays as it is until the next offer
        of = ledger.state.nodes["n1"].facts
        ledger.handle(MessageReceived("n1", offer(of, 2, cores=of.cores[:3], counting=("j0.1",))), 1.5)
        assert chosen(ledger, Request(ONE, strategy=Strategy.SPREAD))
        assert chosen(ledger, Request(ONE, strategy=Strategy.PACK))
    over = Exited(allocation="j0.1", outcome=Outcome(cause=Cause.EXITED), returned=returned)
    ledger.handle(MessageReceived("n1", over), 2.0)
    ledger.settle(2.0)
    assert chosen(ledger, Request(ONE, strategy=Strategy.SPREAD)) == "n1"
    assert chosen(ledger, Request(ONE, strategy=Strategy.PACK)) == "n2"


def test_load_balanced_takes_the_widest_room_and_of_equals_the_quieter_owner() -> None:
    ledger = Ledger()
    for name, cores in (("small", 2), ("large", 8), ("busy", 8)):
        join(ledger, facts(name, cores=cores, memory=cores * GIB))
    ledger.state.nodes["busy"].sample = Sample(at=0.0, foreign_cpu=4.0)
    assert chosen(ledger, Request(ONE, strategy=Strategy.LOAD_BALANCED)) == "large"


def test_local_first_takes_the_machine_it_comes_from_then_one_that_has_the_files() -> None:
    ledger = nodes("n1", "n2", "n3")
    bundle = "b" * 64
    run(ledger, "j1", Request(ONE, nodes=("n2",)), bundle=bundle)
    here = Request(ONE, strategy=Strategy.LOCAL_FIRST, local=Local("n3", bundle))
    elsewhere = Request(ONE, strategy=Strategy.LOCAL_FIRST, local=Local("laptop", bundle))
    assert chosen(ledger, here) == "n3"
    assert chosen(ledger, elsewhere) == "n2"
    run(ledger, "j2", Request(Resources(cpu=4000), nodes=("n3",)))
    assert chosen(ledger, here) == "n2"  # the next best, as long as there is no room at home


def test_what_was_shipped_where_is_known_to_a_ledger_made_again() -> None:
    ledger = nodes("n1", "n2", "n3")
    run(ledger, "j1", Request(ONE, nodes=("n2",)), bundle="b" * 64)
    again = resumed(ledger)
    local = Request(ONE, strategy=Strategy.LOCAL_FIRST, local=Local("laptop", "b" * 64))
    assert chosen(again, local) == chosen(ledger, local) == "n2"


def test_of_the_shipments_of_a_node_the_oldest_are_forgotten() -> None:
    ledger = nodes("n1")
    for number in range(200):
        ledger.state.index.shipped(ledger.state.nodes["n1"], f"b{number % 150}")
    kept = list(ledger.state.nodes["n1"].bundles)
    assert len(kept) == 64 and kept[-1] == "b49"
    assert ledger.state.index.near(Local("", "b49")) == ["n1"] and ledger.state.index.near(Local("", "b80")) == []


def test_the_grid_has_a_strategy_of_its_own_for_requests_that_name_none() -> None:
    ledger = nodes("n1", "n2")
    ledger.state.policy = Policy(strategy=Strategy.SPREAD, weights=WEIGHTS[Strategy.SPREAD])
    assert run(ledger, "j1", Request(ONE)) != run(ledger, "j2", Request(ONE))
    assert run(ledger, "j3", Request(ONE, strategy=Strategy.PACK)) in ("n1", "n2")


@pytest.mark.parametrize("strategy", Strategy)
def test_the_chosen_one_is_the_best_of_those_compared_in_many_states(strategy: Strategy) -> None:
    rng = random.Random(strategy.value)
    for _ in range(tries(60, 25)):
        ledger = Ledger()
        for number in range(rng.randint(1, 8)):
            gpus, cores = rng.choice((0, 0, 1, 2)), rng.randint(1, 6)
            join(ledger, facts(f"n{number}", cores=cores, gpus=gpus, priority=rng.choice((0.5, 1.0, 2.0))))
        for number in range(rng.randint(0, 6)):
            ledger.handle(JobsSubmitted(1, (job(f"j{number}", _some(rng, strategy)),)), 1.0)
            ledger.settle(1.0)
        request = _some(rng, strategy)
        found = place(ledger.state.nodes, ledger.state.index, request, ledger.state.policy)
        able = [
            node
            for node in ledger.state.nodes.values()
            if node.capacity is not None and node.capacity.fits(request.resources)
        ]
        assert isinstance(found, Placement) == bool(able)
        if isinstance(found, Placement):
            assert found.confidence <= 1 and all(0 <= part <= 1 for part in found.scores.values())
            # As few nodes as these are compared one with the other, but for pools that come first.
            rivals = [node for node in able if _same_pool(node, ledger.state.nodes[found.node], able, strategy)]
            if len(rivals) <= ledger.state.policy.candidates:
                assert found.confidence == pytest.approx(max(_sure(ledger, node, request) for node in rivals))


def _some(rng: random.Random, strategy: Strategy) -> Request:
    wanted = Resources(rng.choice((500, 1000, 2000)), rng.choice((0, 1, 4)) * GIB, rng.choice((0, 0, 500, 1000)))
    return Request(wanted, strategy=strategy, local=Local("n1", "") if strategy is Strategy.LOCAL_FIRST else None)


def _same_pool(node: Node, found: Node, able: list[Node], strategy: Strategy) -> bool:
    pooled = strategy in (Strategy.PACK, Strategy.SPREAD)
    return not pooled or bool(node.allocations) == bool(found.allocations)


def _sure(ledger: Ledger, node: Node, request: Request) -> float:
    assert node.capacity is not None
    weights = ledger.state.policy.weights_of(request)
    return confidence(scores(node, node.capacity, request, weights, Context(ledger.state.index.mix)), weights)
