"""What a holder is left with beside those on its slack, and what of it can be lent, in physical cores."""

import random

import pytest

from distributed_grid.protocol.resources import MILLI, Grant
from distributed_grid.protocol.sharing.slack import Threads, left_to, lendable, physical_cores

PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
EIGHT = Grant(cores=tuple(range(8)))


def on(cores: tuple[int, ...], milli: int) -> Grant:
    return Grant(slack=cores, slack_milli=milli, holder="j-holder.1")


def test_cores_of_which_nothing_is_known_are_physical_ones() -> None:
    assert physical_cores((5, 0, 4, 9), PAIRS) == [(0, 4), (5,), (9,)]


def test_without_hardware_threads_a_holder_is_left_with_what_is_not_lent() -> None:
    assert left_to(EIGHT, (), ()) == 8000
    assert left_to(EIGHT, (on((7,), 500), on((4, 5, 6), 2500)), ()) == 5000
    assert lendable(EIGHT, (on((7,), 500),), (), 2300) == (2300, (6, 5, 4))


def test_a_physical_core_of_which_a_thread_is_lent_is_lent_whole() -> None:
    assert left_to(EIGHT, (), PAIRS) == 4000
    assert left_to(EIGHT, (on((7,), 300),), PAIRS) == left_to(EIGHT, (on((3, 7), 2000),), PAIRS) == 3000
    assert lendable(EIGHT, (on((7,), 300),), PAIRS, 999) == (1000, (3,))


def test_a_thread_whose_other_one_the_holder_has_not_is_lent_as_a_physical_core_of_its_own() -> None:
    holder = Grant(cores=(0, 1, 4), shared_core=2, shared_milli=500)
    assert left_to(holder, (), PAIRS) == 2500
    assert left_to(holder, (on((1,), 400),), PAIRS) == 2100
    assert lendable(holder, (), PAIRS, 1500) == (2000, (4, 0)), "a half is not lent beside hardware threads"


@pytest.mark.parametrize("smt", [(), PAIRS, ((0, 1, 2, 3), (4, 5)), ((0, 0), (), (9, 10), (4, 5), (5, 6))])
def test_whoever_is_lent_what_is_lendable_leaves_the_holder_no_less_than_it_uses(smt: Threads) -> None:
    rng = random.Random(1)
    for _ in range(300):
        users, used = list[Grant](), rng.randint(0, 8000)
        for _ in range(6):
            unused = left_to(EIGHT, users, smt) - used
            milli, cores = lendable(EIGHT, users, smt, unused)
            assert len(cores) == len({*cores}) and {*cores}.isdisjoint(core for one in users for core in one.slack)
            wanted = rng.choice((300, 500, 1000, 1700, 3000))
            count = -(-wanted // MILLI)
            if wanted <= milli and count <= len(cores):
                users.append(on(cores[:count], wanted))
                assert left_to(EIGHT, users, smt) >= used
