"""Jobs go where the owner leaves them alone for as long as they run, while there is such a place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    ForecastsReported,
    HeartbeatReceived,
    JobsSubmitted,
    NodeDown,
    RemovalRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Refusal
from distributed_grid.coordinator.core.placement.matching import LOOKED_AT, endurance, gang_places, place
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.placement import Constraints, Strategy
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.policies import Balancing, PolicyName
from tests.coordinator.core.scene import facts, job, join, resumed, step
from tests.depth import tries

ONE = Request(Resources(cpu=1000))
HOUR = 3600.0


def forecast(likely: float) -> IdleForecast:
    """So likely for half an hour; the same again and again."""
    return IdleForecast(0.0, 600.0, (IdleChance(1800.0, likely, 31, 25),))


def grid(policy: Policy = DEFAULT, **nodes: float | None) -> Ledger:
    """Nodes of the same size by name, and how likely each stays idle for half an hour (None: not known)."""
    ledger = Ledger(policy=policy)
    for name in nodes:
        join(ledger, facts(name, cores=4))
    known: dict[str, IdleForecast | None] = {
        name: forecast(likely) for name, likely in nodes.items() if likely is not None
    }
    step(ledger, ForecastsReported(known), 0.0)
    return ledger


def chosen(ledger: Ledger, lasts: float, request: Request = ONE) -> str:
    state = ledger.state
    found = place(state.nodes, state.index, request, state.policy, lasts=lasts)
    return "" if isinstance(found, Refusal) else found.node


def by(name: PolicyName) -> Policy:
    return Policy(balancing=Balancing(policy=name))


def test_a_long_job_goes_where_the_owner_stays_away_and_a_short_one_anywhere() -> None:
    ledger = grid(a=0.3, b=0.95)
    assert chosen(ledger, 1800.0) == "b" and chosen(ledger, 30.0) == "a" == chosen(ledger, 0.0)


def test_where_all_owners_are_expected_it_goes_where_that_is_least_likely() -> None:
    assert chosen(grid(a=0.3, b=0.5), HOUR) == "b"
    assert chosen(grid(a=0.1), HOUR) == "a", "and does not wait"


@pytest.mark.parametrize(("name", "seconds"), [("conservative", 90.0), ("balanced", 360.0), ("aggressive", 900.0)])
def test_how_sure_it_has_to_be_is_the_policys(name: str, seconds: float) -> None:
    """`a` is the tighter fit."""
    ledger = grid(by(PolicyName(name)), a=0.0, b=1.0)
    step(ledger, JobsSubmitted(1, (job("j", replace(ONE, nodes=("a",))),)), 0.0)
    within, beyond = chosen(ledger, 0.9 * seconds), chosen(ledger, 1.1 * seconds)
    assert beyond == "b" and (within == "a" or 0.9 * seconds < 60.0)


def test_where_no_node_is_sure_enough_the_next_less_careful_policy_counts() -> None:
    ledger = grid(by(PolicyName.CONSERVATIVE), a=0.3, b=0.85, c=0.6)
    assert chosen(ledger, 1800.0) == "b"
    step(ledger, ForecastsReported({"b": forecast(0.3)}), 1.0)
    assert chosen(ledger, 1800.0) == "c"


def test_a_node_that_its_owner_has_just_left_counts_by_how_long_he_stays_away() -> None:
    ledger = grid(a=0.6, b=None)
    assert chosen(ledger, 1800.0) == "a"
    left = IdleForecast(0.0, 0.0, (IdleChance(1800.0, 0.97, past=12),))
    step(ledger, ForecastsReported({"b": left}), 1.0)
    assert chosen(ledger, 1800.0) == "b"


def test_a_node_of_which_nothing_is_known_counts_as_before() -> None:
    ledger = grid(a=None, b=0.2)
    assert chosen(ledger, HOUR) == "a"
    assert chosen(grid(a=None, b=None), HOUR) == "a"


def test_who_names_a_node_gets_it() -> None:
    ledger = grid(a=0.1, b=0.99)
    assert chosen(ledger, HOUR, replace(ONE, nodes=("a",))) == "a"
    assert chosen(ledger, HOUR, replace(ONE, constraints=Constraints(only=("a",)))) == "a"


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_keeps_to_it(strategy: Strategy) -> None:
    ledger = grid(Policy().by_strategy(strategy), a=0.1, b=0.99, c=0.1)
    step(ledger, JobsSubmitted(1, (job("j", replace(ONE, nodes=("a",))),)), 0.0)
    assert chosen(ledger, HOUR) == "b"


def test_members_of_a_gang_go_there_if_there_are_enough() -> None:
    ledger = grid(a=0.1, b=0.99, c=0.99)
    state, two = ledger.state, replace(ONE, gang=2)
    found = gang_places(state.nodes, state.index, two, state.policy, HOUR)
    assert not isinstance(found, Refusal) and {one.node for one in found} == {"b", "c"}
    found = gang_places(state.nodes, state.index, replace(ONE, gang=3), state.policy, HOUR)
    assert not isinstance(found, Refusal) and {one.node for one in found} == {"a", "b", "c"}


def test_the_search_for_one_is_bounded() -> None:
    names = [f"n{number}" for number in range(LOOKED_AT + 8)]
    ledger = grid(DEFAULT, **dict.fromkeys(names, 0.1), z=0.99)
    assert chosen(ledger, HOUR) in names


def test_the_ledger_goes_by_the_time_limit_and_a_checkpoint_keeps_what_is_forecast() -> None:
    ledger = grid(a=0.3, b=0.95)
    again = resumed(ledger)
    for one in (ledger, again):
        step(one, JobsSubmitted(1, (job("long", ONE, time_limit=1800.0), job("short", ONE, time_limit=5.0))), 1.0)
        assert [one.state.jobs[name].node for name in ("long", "short")] == ["b", "a"]
        assert one.state.placements["long.1"].scores["lasting"] > 0.9
        assert "lasting" not in one.state.placements["short.1"].scores


def test_without_a_limit_it_goes_by_what_the_users_jobs_took() -> None:
    ledger = grid(a=0.3, b=0.95)
    ledger.state.queue.run_times.learn("ann", 1800.0)
    step(ledger, JobsSubmitted(1, (job("j", ONE),)), 1.0)
    assert ledger.state.jobs["j"].node == "b"


def test_a_forecast_that_ends_or_whose_node_goes_counts_no_more() -> None:
    ledger = grid(a=0.3, b=0.95)
    step(ledger, ForecastsReported({"a": None, "gone": forecast(0.5)}), 1.0)
    assert set(ledger.state.index.forecasts) == {"b"} and ledger.state.nodes["a"].forecast is None
    unsure = IdleForecast(0.0, 600.0, (IdleChance(1800.0, 0.9, 31, 25, 200, 40, False),))
    step(ledger, ForecastsReported({"b": unsure}), 1.0)
    assert not ledger.state.index.forecasts and ledger.state.nodes["b"].forecast == unsure
    gone = grid(a=0.3)
    step(gone, NodeDown("a", "session-a"), 1.0)
    step(gone, RemovalRequested(1, ("a",), "ann"), 2.0)
    assert not gone.state.nodes and not gone.state.index.forecasts


def test_a_node_of_which_nothing_is_known_is_as_likely_as_not_to_stay_idle() -> None:
    """Its owner may have left it a moment ago."""
    assert chosen(grid(by(PolicyName.CONSERVATIVE), a=None, b=0.9), 1800.0) == "b"
    assert chosen(grid(by(PolicyName.CONSERVATIVE), a=None, b=0.4), 1800.0) == "a"


def test_a_job_on_all_cores_goes_where_the_owner_uses_none_of_them_even_now_and_then() -> None:
    ledger = grid(by(PolicyName.CONSERVATIVE), a=0.99, b=0.97)
    step(ledger, ForecastsReported({"a": replace(forecast(0.99), peak=0.25)}), 1.0)
    assert chosen(ledger, 1800.0, Request(Resources(cpu=4000))) == "b"
    assert chosen(ledger, 1800.0, Request(Resources(cpu=3000))) == "a", "it leaves the owner what they use"
    step(ledger, JobsSubmitted(1, (job("j", replace(ONE, nodes=("a",))),)), 2.0)
    assert chosen(ledger, 1800.0, Request(Resources(cpu=3000))) == "b", "and this would not"


NODES = st.lists(
    st.tuples(
        st.sampled_from([None, 0.9, 0.6, 0.3, 0.0, 0.79, 0.97, 1.0]),
        st.sampled_from([0.0, 0.05, 0.3]),
        st.integers(0, 3),
        st.floats(0.0, 4.0),
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=tries(400, 40))
@given(NODES, st.integers(1, 4), st.sampled_from([1800.0, 90.0, 9000.0]), st.sampled_from([*PolicyName]), st.data())
def test_no_job_is_placed_worse_by_forecasts_than_it_would_be_without_them(
    told: list[tuple[float | None, float, int, float]], cores: int, lasts: float, name: PolicyName, data: st.DataObject
) -> None:
    """Worse by the forecasts themselves, under every policy and strategy, whatever runs and is used there."""
    ledger = grid(
        by(name).by_strategy(data.draw(st.sampled_from([*Strategy]))), **{f"n{at}": None for at in range(len(told))}
    )
    for at, (likely, peak, held, used) in enumerate(told):
        known = replace(forecast(likely), peak=peak) if likely is not None else None
        step(ledger, ForecastsReported({f"n{at}": known}), 1.0)
        step(ledger, HeartbeatReceived(f"n{at}", Sample(at=1.0, foreign_cpu=used)), 1.0)
        if held:
            ask = Request(Resources(cpu=1000 * held), nodes=(f"n{at}",), constraints=Constraints(only=(f"n{at}",)))
            step(ledger, JobsSubmitted(1, (job(f"j{at}", ask),)), 1.0)
    state, ask = ledger.state, Request(Resources(cpu=1000 * cores))
    without = place(state.nodes, state.index, ask, state.policy)
    found = place(state.nodes, state.index, ask, state.policy, lasts=lasts)
    if isinstance(without, Refusal) or isinstance(found, Refusal):
        assert isinstance(without, Refusal) and isinstance(found, Refusal), "and none waits for a better node"
        return

    def stays(node: str) -> float:
        capacity = state.nodes[node].capacity
        assert capacity is not None
        return endurance(state.nodes[node], capacity, ask.resources, lasts)

    assert stays(found.node) >= stays(without.node) - 1e-6
