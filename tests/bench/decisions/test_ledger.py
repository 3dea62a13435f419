"""The passes of the ledger's benchmark are what they are called."""

import pytest

from bench.decisions import ledger
from bench.decisions.ledger import LEAST


@pytest.mark.parametrize(("kinds", "users"), [(1, 1), (10, 1), (50, 1), (1, 10)])
def test_a_pass_grants_the_first_the_last_or_nobody(kinds: int, users: int) -> None:
    """Each is looked at inside, too."""
    found = ledger.passes(kinds, users, queued=50)
    assert set(found) == {"first_fits_ms", "last_fits_ms", "none_fits_ms"}


def test_only_the_last_kind_fits_in_the_least_memory() -> None:
    _, granted = ledger.a_pass(ledger.full(20, queued=20), LEAST)
    assert granted == ["j19"]


def test_nobody_fits_in_less() -> None:
    grown = ledger.full(20, queued=20)
    assert [ledger.a_pass(grown, LEAST - 1 - number)[1] for number in range(3)] == [[], [], []]


def test_all_of_a_small_ledger_is_measured() -> None:
    found = ledger.measure(nodes=20, queued=50, jobs=64, beats=1000)
    assert set(found["events_per_s"]) == {
        f"{who}_settled_every_{n}" for who in ("watched", "unwatched") for n in (1, 32)
    }
    assert set(found["passes"]) == {"1_kinds", "1000_kinds", "100000_kinds", "1000_users"}
    assert 0 < found["fraction_of_floor"] < 1
