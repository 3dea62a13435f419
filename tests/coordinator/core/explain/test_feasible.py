"""What no node could ever do is said with numbers."""

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.explain.feasible import can_fit, never_fits, unknown_name
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.placement.matching import able
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, join


def ledger() -> Ledger:
    made = Ledger()
    for name, cores in (("small", 2), ("large", 8)):
        join(made, facts(name, cores=cores))
    return made


def cores(count: int, constraints: Constraints | None = None) -> Request:
    return Request(Resources(cpu=count * MILLI), constraints=constraints)


def test_nodes_count_by_all_they_may_lend_whatever_is_free_now() -> None:
    state = ledger().state
    assert [can_fit(state, cores(count)) for count in (1, 4, 9)] == [2, 1, 0]
    join(Ledger(), facts("other"))
    assert state.feasible_nodes == {
        (cores(count).resources, None, None, False): fit for count, fit in ((1, 2), (4, 1), (9, 0))
    }


def test_a_node_that_is_new_is_counted() -> None:
    made = ledger()
    assert can_fit(made.state, cores(9)) == 0
    join(made, facts("huge", cores=16))
    assert can_fit(made.state, cores(9)) == 1


def test_too_much_is_refused_with_the_largest_node() -> None:
    said = never_fits(ledger().state, cores(9))
    assert said == (
        "asks 9 cpu on one node; the largest of the 2 nodes lends 8 cpu (large)",
        "no node could ever run it",
        "ask for 8 cpu or less",
    )


def test_what_no_node_has_at_all_has_no_largest() -> None:
    gpus = Request(Resources(gpu=MILLI))
    why, look = "no node could ever run it", "see `grid nodes`"
    assert never_fits(ledger().state, gpus) == ("asks 1 gpu on one node; none of the 2 nodes has any", why, look)
    alone = Ledger()
    join(alone, facts("lab1"))
    assert never_fits(alone.state, gpus) == ("asks 1 gpu on one node; the only node has none (lab1)", why, look)


def test_names_that_nobody_knows_are_found_wherever_they_are_asked() -> None:
    state = ledger().state
    assert unknown_name(state, Request(Resources(cpu=MILLI), nodes=("small", "smal"))) == "smal"
    assert unknown_name(state, cores(1, Constraints(only=("large",), exclude=("lrge",)))) == "lrge"
    assert unknown_name(state, cores(1, Constraints(only=("large",)))) == ""


@given(
    st.integers(1, 9),
    st.lists(st.sampled_from(["small", "large", "elsewhere"]), max_size=4),
    st.lists(st.sampled_from(["small", "large"]), max_size=1),
)
def test_of_nodes_that_are_named_as_many_fit_as_if_all_were_looked_at(
    count: int, only: list[str], exclude: list[str]
) -> None:
    state, asked = ledger().state, cores(count, Constraints(only=tuple(only), exclude=tuple(exclude)))
    assert can_fit(state, asked) == sum(able(node, asked) for node in state.nodes.values())
