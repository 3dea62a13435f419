"""Chains of successors, and learned run times."""

from distributed_grid.coordinator.core.queue.chains import LEARNED, LINES, MOST, SAMPLES, SHORT, Chains
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import Resources

REQUEST = Request(Resources(1000))
KIND = (REQUEST, "")


def chain(*names: str) -> Chains:
    """The first one holds something, the others wait one behind another."""
    known = Chains()
    known.allow(names[0], KIND)
    for before, name in zip(names, names[1:], strict=False):
        known.join(before, name)
        known.allow(name, KIND)
    return known


def tails(known: Chains) -> list[list[str]]:
    return [[*part] for part in known.tails.get(KIND, [])]


def tail_at(depth: int, name: str) -> list[list[str]]:
    """The only tail, of a chain in which so many are before it."""
    return [[name] if at == depth else [] for at in range(MOST)]


def test_only_the_last_of_a_chain_may_get_a_successor() -> None:
    assert tails(chain("a", "b", "c")) == tail_at(2, "c")


def test_a_chain_has_an_end() -> None:
    names = [f"a{number}" for number in range(MOST + 1)]
    first, second, last = names[0], names[1], names[-1]
    full = chain(*names)
    assert (len([*full.successors_of(first)]), tails(full)) == (MOST, [])
    assert full.ended(first) == second
    full.take_over(first, second)
    assert (len([*full.successors_of(second)]), tails(full)) == (MOST - 1, tail_at(MOST - 1, last))


def test_chains_are_the_same_whatever_is_restored_first() -> None:
    names = ("a", "b", "c", "d")
    known = Chains()
    for before, name in (("c", "d"), ("a", "b"), ("b", "c")):
        known.join(before, name)
    known.allow("d", KIND)
    assert known.members == chain(*names).members
    assert (known.tail("a"), tails(known)) == ("d", tail_at(3, "d"))


def test_who_waits_behind_one_that_leaves_waits_for_the_one_before_it() -> None:
    known = chain("a", "b", "c")
    assert known.leave("b") == ("a", "c")
    assert (known.predecessors, known.successors, tails(known)) == ({"c": "a"}, {"a": "c"}, tail_at(1, "c"))


def test_the_one_before_the_last_may_get_another_when_that_leaves() -> None:
    known = chain("a", "b")
    assert known.leave("b") == ("a", "")
    assert (known.predecessors, known.successors, tails(known)) == ({}, {}, tail_at(0, "a"))


def test_one_that_is_dropped_gets_none_any_more() -> None:
    known = chain("a", "b")
    known.close("a")
    known.leave("b")
    assert (tails(known), known.kinds) == ([], {})


def test_nothing_is_left_of_a_chain_that_is_over() -> None:
    known = chain("a", "b")
    known.ended("a")
    known.take_over("a", "b")
    assert known.ended("b") is None
    assert known == Chains()


def test_run_times_are_known_after_some_ends_and_the_last_ones_count() -> None:
    known = Chains()
    for _ in range(LEARNED - 1):
        known.learn("ann", REQUEST, 9.0)
        assert known.longest("ann", REQUEST) is None
    known.learn("ann", REQUEST, 9.0)
    assert (known.longest("ann", REQUEST), known.longest("ben", REQUEST)) == (9.0, None)
    for _ in range(SAMPLES):
        known.learn("ann", REQUEST, 0.1)
    assert known.longest("ann", REQUEST) == 0.1


def test_a_line_is_short_once_it_is_known_until_one_of_its_jobs_runs_longer() -> None:
    known, said = Chains(), list[bool]()
    for seconds in [0.1] * LEARNED + [SHORT * 2] + [0.1] * SAMPLES:
        known.learn("ann", REQUEST, seconds)
        said.append(known.is_short("ann", REQUEST))
    assert said == [False] * (LEARNED - 1) + [True] + [False] * SAMPLES + [True]
    assert not known.is_short("ben", REQUEST)


def test_the_run_times_of_so_many_lines_are_remembered() -> None:
    known = Chains()
    for number in range(LINES + 1):
        known.learn(f"u{number}", REQUEST, 0.1)
    assert (len(known.run_times), ("u0", REQUEST) in known.run_times) == (LINES, False)
