from distributed_grid.coordinator.core.data import Deadlines


def test_what_is_due_comes_up_in_order_and_once() -> None:
    deadlines = Deadlines()
    deadlines.arm("silence", "b", 2.0)
    deadlines.arm("silence", "a", 1.0)
    deadlines.arm("offer", "a", 3.0)
    assert deadlines.next() == 1.0
    assert list(deadlines.due(2.5)) == [("silence", "a"), ("silence", "b")]
    assert deadlines.next() == 3.0
    assert list(deadlines.due(2.5)) == []


def test_the_earliest_of_a_pair_counts() -> None:
    deadlines = Deadlines()
    deadlines.arm("silence", "a", 5.0)
    deadlines.arm("silence", "a", 9.0)
    assert deadlines.next() == 5.0
    deadlines.arm("silence", "a", 1.0)
    assert list(deadlines.due(9.0)) == [("silence", "a")]
    assert deadlines.next() is None


def test_what_is_armed_anew_while_it_comes_up_is_taken_along() -> None:
    deadlines = Deadlines()
    deadlines.arm("silence", "a", 1.0)
    seen = []
    for pair in deadlines.due(3.0):
        seen.append(pair)
        if len(seen) < 3:
            deadlines.arm(*pair, 1.0 + len(seen))
    assert seen == [("silence", "a")] * 3
