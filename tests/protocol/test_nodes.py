"""Orders change what a node's agent tells, labels are read strictly, and impossible facts are refused."""

import pytest
from msgspec.structs import replace

from distributed_grid.protocol import nodes
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import Aside, Drain, GpuFacts, GpuOffer, NodeOrders, Offer
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts


def test_a_node_takes_jobs_unless_it_is_drained_or_set_aside() -> None:
    assert NodeOrders().open
    assert not NodeOrders(drain=Drain(since=1.0)).open
    assert not NodeOrders(aside=Aside(until=9.0, seconds=5.0, failures=3)).open
    assert NodeOrders(aside=Aside(until=0.0, seconds=5.0, failures=3)).open, "on trial"


def test_the_operators_labels_override_those_of_the_agent() -> None:
    told = {"rack": "1", "zone": "a"}
    assert NodeOrders().over(told) == told
    assert NodeOrders(labels={"rack": "2", "zone": None, "new": "x"}).over(told) == {"rack": "2", "new": "x"}


def test_labels_are_set_and_removed_by_one_word_each() -> None:
    assert nodes.parse_labels(["a=1", "b-", "c="]) == {"a": "1", "b": None, "c": ""}


@pytest.mark.parametrize("words", [[], ["a"], ["a=1", "a-"], ["-=x"], ["a=\n"], ["a=" + 64 * "x"]])
def test_labels_that_cannot_be_are_refused(words: list[str]) -> None:
    with pytest.raises(BadValue):
        nodes.parse_labels(words)


def test_lost_records_are_told_by_the_instance_of_the_node() -> None:
    lost = nodes.loss_suffix("i", "x")
    assert nodes.lost_records(lost, "i") and nodes.lost_records(lost, "")
    assert not nodes.lost_records("i", "i") and not nodes.lost_records(lost, lost) and not nodes.lost_records(lost, "o")
    assert nodes.lost_records(nodes.loss_suffix(lost, "y"), lost)


def test_an_offer_is_the_sum_of_what_it_names() -> None:
    gpu = GpuOffer("GPU-1", 0, "A100", 8, 8, 500)
    offer = Offer(number=1, expires_in=9.0, cores=(0, 1), shares={2: 250}, memory=7, gpus=(gpu,))
    assert offer.resources == Resources(cpu=2250, memory=7, gpu=500)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"memory": nodes.MOST_NODE_MEMORY + 1}, "memory is"),
        ({"cores": (0, 0)}, "a core is named twice"),
        ({"smt": ((0, 1), (1, 2))}, "smt: a core is named twice"),
        ({"smt": ((0, 99),)}, "or is none of the cores"),
        ({"gpus": (GpuFacts("G", 0, "m", 1), GpuFacts("G", 1, "m", 1))}, "a GPU is named twice"),
        ({"gpus": (GpuFacts("", 0, "m", 1),)}, "a name is empty"),
        ({"hostname": "a\x1b"}, "hostname"),
        ({"labels": {str(n): "" for n in range(nodes.MOST_LABELS + 1)}}, "labels is"),
    ],
)
def test_facts_that_no_node_has_are_refused_with_the_field(changed: dict[str, object], why: str) -> None:
    nodes.check_facts(facts("n1"))
    with pytest.raises(BadValue) as refused:
        nodes.check_facts(replace(facts("n1"), **changed))
    assert why in refused.value.why
