"""Who holds, and who waits, where allocations hold the same resources one after another."""

from distributed_grid.agent.core.chains import Chains


def chained(*keys: str) -> Chains:
    chains = Chains()
    for key in keys:
        chains.join(key, keys[0])
    return chains


def test_the_first_of_a_chain_holds_and_the_others_wait_in_order() -> None:
    chains = chained("a", "b", "c")
    chains.join("x", "x")
    assert chains.members("a") == ("a", "b", "c") and chains.of("c") == "a"
    assert [*chains.successors()] == [("b", "a"), ("c", "a")]
    assert [chains.waits(key) for key in "abcx"] == [False, True, True, False]
    assert [chains.is_tail(key) for key in "abcx"] == [False, False, True, True]


def test_when_the_first_leaves_the_next_one_is_named() -> None:
    chains = chained("a", "b", "c")
    assert [chains.leave(key) for key in "abc"] == ["b", "c", ""]
    assert "a" not in chains and chains.members("a") == ()


def test_whoever_waits_behind_one_that_goes_waits_behind_the_one_before_it() -> None:
    chains = chained("a", "b", "c")
    assert chains.leave("b") == ""
    assert chains.leave("a") == "c"


def test_the_chain_keeps_its_id_when_its_first_is_over() -> None:
    chains = chained("a", "b")
    chains.leave("a")
    chains.join("c", chains.of("b"))
    assert chains.members("a") == ("b", "c") and chains.head("c") == "b"


def test_one_that_started_before_its_turn_was_told_of_leads_its_chain() -> None:
    chains = chained("a", "b", "c")
    chains.make_head("b")
    assert chains.members("a") == ("b", "a", "c")
    assert [chains.leave("a"), chains.leave("b")] == ["", "c"]


def test_one_that_is_in_no_chain_waits_for_nobody_and_leaves_nothing() -> None:
    chains = Chains()
    assert (chains.head("a"), chains.waits("a"), chains.leave("a")) == ("a", False, "")
