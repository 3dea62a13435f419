"""Mode and policy: what is configured, what operators set over it, and what follows at once."""

from distributed_grid.coordinator.core.commands import (
    BalancingConfigured,
    BalancingRequested,
    ExtensionRequested,
    Granted,
    JobsSubmitted,
    RecordBalancing,
    RecordJob,
    Rejected,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import MILLI, Resources, ResourceType
from distributed_grid.protocol.sharing.policies import (
    NO_ORDER,
    Balancing,
    BalancingOrder,
    OffloadingMode,
    PolicyName,
)
from tests.coordinator.core.rebalancing.test_passes import HEAD, Grid, stops
from tests.coordinator.core.scene import job, state_of, step


def in_effect(ledger: Ledger) -> tuple[OffloadingMode, PolicyName]:
    return ledger.state.policy.balancing.mode, ledger.state.policy.balancing.policy


def test_an_order_holds_is_recorded_and_answered() -> None:
    grid = Grid("lab1")
    asked = BalancingRequested(7, policy=PolicyName.AGGRESSIVE, by="op")
    assert step(grid.ledger, asked, 5.0) == [
        RecordBalancing(BalancingOrder(policy=PolicyName.AGGRESSIVE, since=5.0, by="op")),
        Granted(7, "policy aggressive, mode dynamic_balancing"),
    ]
    assert in_effect(grid.ledger) == (OffloadingMode.DYNAMIC_BALANCING, PolicyName.AGGRESSIVE)


def test_a_second_order_leaves_what_it_does_not_name_and_unset_takes_back_all() -> None:
    grid = Grid("lab1")
    step(grid.ledger, BalancingRequested(1, policy=PolicyName.AGGRESSIVE, by="op"), 5.0)
    step(grid.ledger, BalancingRequested(2, mode=OffloadingMode.SHARE_AND_OFFLOAD, by="eve"), 6.0)
    assert in_effect(grid.ledger) == (OffloadingMode.SHARE_AND_OFFLOAD, PolicyName.AGGRESSIVE)
    step(grid.ledger, BalancingRequested(3, policy=PolicyName.CONSERVATIVE, unset=True, by="op"), 7.0)
    assert in_effect(grid.ledger) == (OffloadingMode.DYNAMIC_BALANCING, PolicyName.CONSERVATIVE)
    commands = step(grid.ledger, BalancingRequested(4, unset=True, by="op"), 8.0)
    assert commands == [
        RecordBalancing(NO_ORDER),
        Granted(4, "policy balanced, mode dynamic_balancing (as configured)"),
    ]


def test_an_order_that_sets_nothing_is_refused_and_changes_nothing() -> None:
    grid = Grid("lab1")
    (refused,) = step(grid.ledger, BalancingRequested(9, by="op"), 5.0)
    assert isinstance(refused, Rejected) and refused.token == 9
    assert grid.state.balancing.order == NO_ORDER


def test_a_new_configuration_takes_effect_below_the_orders() -> None:
    grid = Grid("lab1")
    step(grid.ledger, BalancingRequested(1, policy=PolicyName.AGGRESSIVE, by="op"), 5.0)
    step(grid.ledger, BalancingConfigured(Balancing(policy=PolicyName.CONSERVATIVE, interval=7.0)), 6.0)
    assert in_effect(grid.ledger) == (OffloadingMode.SHARE_AND_OFFLOAD, PolicyName.AGGRESSIVE)
    assert grid.state.policy.balancing.interval == 7.0


def test_orders_are_there_again_after_a_restart() -> None:
    ledger = Ledger()
    order = BalancingOrder(mode=OffloadingMode.OFFLOAD_ONLY, since=3.0, by="op")
    ledger.restore((), (), (), 10.0, balancing=order)
    assert in_effect(ledger) == (OffloadingMode.OFFLOAD_ONLY, PolicyName.BALANCED)
    assert ledger.state.balancing.order == order


def test_offload_only_refuses_boosts_and_their_extension_and_leaves_jobs_alone() -> None:
    grid = Grid("lab1", mode="share_and_offload")
    lent = job("j-one", Request(Resources(MILLI)), time_limit=60.0, boost=Boost("h", HEAD, ResourceType.CPU, MILLI))
    step(grid.ledger, JobsSubmitted(1, (lent,)), grid.now)
    step(grid.ledger, BalancingRequested(2, mode=OffloadingMode.OFFLOAD_ONLY, by="op"), grid.now)
    other = job("j-two", Request(Resources(MILLI)), time_limit=60.0, boost=Boost("h", HEAD, ResourceType.CPU, MILLI))
    for event in (JobsSubmitted(3, (other,)), ExtensionRequested(3, "j-one", 60.0)):
        (refused,) = step(grid.ledger, event, grid.now)
        assert isinstance(refused, Rejected)
        assert (refused.code, refused.what) == ("boosts-refused", "boosts are refused in this grid")
        assert refused.why == "its mode is offload_only (order of op)"
    step(grid.ledger, JobsSubmitted(4, (job("j-plain", Request(Resources(MILLI))),)), grid.now)
    assert state_of(grid.ledger, "j-plain") is State.STARTING
    assert state_of(grid.ledger, "j-one") is State.STARTING, "what was lent before stays"


def test_boosts_that_wait_when_boosts_are_refused_end_and_say_so() -> None:
    grid = Grid("lab1", mode="share_and_offload")
    much = Request(Resources(8 * MILLI))
    waits = job("j-one", much, time_limit=60.0, boost=Boost("h", HEAD, ResourceType.CPU, 8 * MILLI))
    step(grid.ledger, JobsSubmitted(1, (job("j-first", much),)), grid.now)
    step(grid.ledger, JobsSubmitted(1, (waits, job("j-plain", much))), grid.now)
    out = step(grid.ledger, BalancingRequested(2, mode=OffloadingMode.OFFLOAD_ONLY, by="op"), grid.now)
    (ended,) = [one.job for one in out if isinstance(one, RecordJob)]
    assert (ended.id, ended.state) == ("j-one", State.ENDED) and ended.outcome is not None
    assert ended.outcome.text == "boosts are refused in this grid: its mode is offload_only (order of op)"
    assert state_of(grid.ledger, "j-plain") is State.WAITING


def test_after_a_restart_with_a_mode_that_refuses_boosts_none_waits() -> None:
    waits = job("j-one", Request(Resources(MILLI)), time_limit=60.0, boost=Boost("h", HEAD, ResourceType.CPU, MILLI))
    ledger = Ledger()
    order = BalancingOrder(mode=OffloadingMode.OFFLOAD_ONLY, since=3.0, by="op")
    out = ledger.restore((waits,), (), (), 10.0, balancing=order)
    assert [one.job.id for one in out if isinstance(one, RecordJob)] == ["j-one"]
    assert not ledger.state.jobs
    ledger.check()


def test_what_the_grid_has_lent_by_itself_goes_with_the_mode() -> None:
    grid = Grid("lab1")
    grid.lend()
    (why,) = stops(step(grid.ledger, BalancingRequested(2, mode=OffloadingMode.SHARE_AND_OFFLOAD, by="op"), grid.now))
    assert why == "given back: the grid's mode is share_and_offload now"
