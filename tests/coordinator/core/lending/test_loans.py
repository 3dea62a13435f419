"""Loans: what all have lent is what all have borrowed, a credit is bounded and decides only between shares that are
nearly equal, and loans are counted by day."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.lending.loans import DAY, Loan, Loans
from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.protocol.messages.history import DayOfLoans
from distributed_grid.protocol.resources import GIB, Resources
from tests.depth import tries

CORES = Resources(cpu=2000, memory=4 * GIB, gpu=1000)
USERS = ("ann", "ben", "cleo", "dan")


def loan(lender: str = "ann", borrower: str = "ben", at: float = 0.0, part: float = 0.25, node: str = "n1") -> Loan:
    return Loan(lender=lender, borrower=borrower, node=node, resources=CORES, part=part, counted=at)


def test_a_loan_of_a_half_life_counts_half_of_what_is_lent() -> None:
    loans, sharing = Loans(), Sharing(half_life=100.0)
    loans.begin("a", loan(), 0.0, sharing)
    assert loans.balance("ann", 100.0, sharing) == pytest.approx(0.125)
    assert loans.balance("ben", 100.0, sharing) == pytest.approx(-0.125)
    loans.end("a", 100.0, sharing)
    assert loans.balance("ann", 200.0, sharing) == pytest.approx(0.0625), "and is forgotten as fast"
    assert loans.balance("cleo", 200.0, sharing) == 0.0


def test_a_credit_is_bounded_in_both_directions() -> None:
    loans, sharing = Loans(), Sharing(half_life=1.0, credit=0.1)
    loans.begin("a", loan(part=0.9), 0.0, sharing)
    assert (loans.credit("ann", 50.0, sharing), loans.credit("ben", 50.0, sharing)) == (0.1, -0.1)


def test_a_loan_is_counted_once_by_day_in_what_was_held() -> None:
    loans, sharing = Loans(), Sharing()
    loans.begin("a", loan(at=DAY - 10.0), DAY - 10.0, sharing)
    loans.count(DAY - 5.0)
    told = loans.unreported(DAY + 20.0)
    loans.end("a", DAY + 20.0, sharing)
    found = loans.take_days()
    assert found == (
        DayOfLoans(0, "ann", "ben", "n1", 2.5, 20.0, 40.0, 10.0),
        DayOfLoans(1, "ann", "ben", "n1", 5.0, 40.0, 80.0, 20.0),
    )
    assert sum(one.cpu for one in told) == 60.0, "and was told so before"
    assert loans.take_days() == () and not loans.live


def test_what_is_negligible_is_forgotten_and_what_is_lent_now_is_not() -> None:
    loans, sharing = Loans(), Sharing(half_life=1.0)
    loans.begin("a", loan(), 0.0, sharing)
    loans.begin("b", loan("ann", "cleo"), 0.0, sharing)
    loans.end("a", 1.0, sharing)
    assert loans.drop(2.0, sharing) == []
    assert loans.drop(100.0, sharing) == [("ann", "ben")]
    assert [*loans.pairs] == [("ann", "cleo")] and [*loans.borrowed] == ["cleo"] and [*loans.lent] == ["ann"]


Step = tuple[int, int, float, float]
steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.001, 1.0), st.floats(0.0, 5_000.0)), max_size=40
)


@settings(max_examples=tries(60, 25), deadline=None)
@given(steps, st.floats(1.0, 1e5), st.floats(0.0, 1.0), st.integers(0, 99))
def test_all_have_lent_what_all_have_borrowed_and_no_credit_is_larger_than_it_may(
    drawn: list[Step], half_life: float, most: float, seed: int
) -> None:
    loans, sharing, chance, now = Loans(), Sharing(half_life=half_life, credit=most), random.Random(seed), 0.0
    for number, (lender, borrower, part, after) in enumerate(drawn):
        now += after
        if lender != borrower:
            loans.begin(f"a{number}", loan(USERS[lender], USERS[borrower], now, part), now, sharing)
        if loans.live and chance.random() < 0.5:
            loans.end(chance.choice([*loans.live]), now, sharing)
        balances = [loans.balance(user, now, sharing) for user in USERS]
        assert sum(balances) == pytest.approx(0.0, abs=1e-9)
        by_pair = sum(one.average(now, half_life) for one in loans.pairs.values())
        assert by_pair == pytest.approx(sum(one.average(now, half_life) for one in loans.lent.values()), abs=1e-9)
        assert all(abs(loans.credit(user, now, sharing)) <= most for user in USERS)
