"""The memory between passes: for how long something waited, and who moved when."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.rebalancing.state import RECENT, BalancingState, Lent
from distributed_grid.coordinator.core.rebalancing.view import Moved, Steady
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from tests.coordinator.core.rebalancing.world import LOOK, waits

ASK = waits()


def seen(*passes: tuple[float, int], interval: float = 30.0) -> BalancingState:
    """The state after these passes: when, and how many waited."""
    known = BalancingState()
    for at, count in passes:
        known.see(replace(LOOK, waiting=(waits(count),) if count else ()), at, interval)
    return known


def test_what_waited_all_the_time_counts_with_the_least_of_it() -> None:
    known = seen((0.0, 9), (30.0, 2), (60.0, 5), (90.0, 4))
    assert known.steady(30.0, 90.0) == {ASK.text: Steady(4, 90.0)}
    assert known.steady(60.0, 90.0) == {ASK.text: Steady(2, 90.0)}


def test_what_was_gone_in_between_has_waited_since_it_is_back() -> None:
    assert seen((0.0, 1), (30.0, 0), (60.0, 1), (90.0, 1)).steady(60.0, 90.0) == {ASK.text: Steady(1, 30.0)}
    assert seen((0.0, 1), (30.0, 0)).steady(60.0, 30.0) == {}


def test_passes_that_did_not_come_interrupt_what_waited() -> None:
    assert seen((0.0, 1), (91.0, 1)).steady(60.0, 91.0) == {ASK.text: Steady(1, 0.0)}
    assert seen((0.0, 1), (90.0, 1)).steady(60.0, 90.0) == {ASK.text: Steady(1, 90.0)}


def test_what_is_remembered_is_bounded() -> None:
    known = seen(*((at, 1) for at in range(0, 2000, 5)), interval=5.0)
    assert len(known.seen) <= 62  # as long as any policy looks back
    for at in range(2 * RECENT):
        known.note(Move(kind=MoveKind.LEND, source=f"lab{at}", target="head", resources=Resources(1000), at=float(at)))
    assert [one.at for one in known.recent] == [float(at) for at in range(RECENT, 2 * RECENT)]
    known.forget({}, 10_000.0)
    assert not known.moved


def test_a_boost_that_has_ended_by_itself_bars_its_lender_as_if_it_had_been_given_back() -> None:
    known = BalancingState(lent={"b1": Lent("lab1", "head"), "b2": Lent("lab2", "head")})
    known.forget({"b2": Lent("lab2", "head")}, 50.0)
    assert known.moved == {"lab1": Moved(50.0, MoveKind.GIVE_BACK, "head")}


def test_what_no_longer_waits_is_not_in_vain_any_more() -> None:
    known = BalancingState(vain={ASK.text: "b1", "other": "b2"})
    known.see(replace(LOOK, waiting=(ASK,)), 0.0, 30.0)
    assert known.vain == {ASK.text: "b1"}


def test_a_copy_shares_nothing_that_changes() -> None:
    known = seen((0.0, 1))
    other = known.copy()
    other.see(replace(LOOK, waiting=(ASK,)), 30.0, 30.0)
    other.moved["lab1"] = Moved(1.0, MoveKind.LEND, "head")
    assert len(known.seen) == 1 and not known.moved
