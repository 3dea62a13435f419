"""The data of the grid: what it is before anything has happened, and what is tracked beside the records."""

from collections import deque

from distributed_grid.coordinator.core.commands import Over
from distributed_grid.coordinator.core.data import Facts, GridData, PreemptibleCache, Preemptions
from distributed_grid.protocol.jobs import Cause, Priority
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.resources import Grant, Resources


def receipt(name: str, at: float, lost: float) -> Receipt:
    return Receipt(
        id=name,
        job="j-u",
        user="ann",
        priority=Priority.URGENT,
        wanted=Resources(1000),
        node="n1",
        grant=Grant(),
        at=at,
        victims=(),
        lost=lost,
    )


def test_nothing_new_starts_while_the_disk_fails_or_commits_are_lost() -> None:
    grid = GridData()
    assert not grid.halted
    grid.store_failing = True
    assert grid.halted
    grid.store_failing, grid.loss = False, ("the store is older than its mark",)
    assert grid.halted


def test_commands_are_taken_out_once() -> None:
    grid = GridData()
    grid.out.append(Over("j-a", Cause.EXITED))
    assert grid.take_out() == [Over("j-a", Cause.EXITED)]
    assert grid.take_out() == []


def test_everybody_is_watched_where_nobody_says_who_is() -> None:
    assert "j-a" in GridData().watched
    assert "j-a" not in GridData(watched=frozenset({"j-b"})).watched


def test_there_are_facts_while_one_is_to_be_followed() -> None:
    assert not Facts()
    assert Facts(held_back=deque(["j-a"]))


def test_the_lost_work_is_known_again_from_receipts_in_the_order_of_time() -> None:
    preemptions = Preemptions()
    preemptions.remember([receipt("b", 20.0, 3.0), receipt("a", 10.0, 5.0)])
    assert preemptions.spent == [(10.0, 5.0), (20.0, 3.0)]


def test_what_was_cached_of_a_node_is_worked_out_anew_once_it_is_invalid() -> None:
    cache = PreemptibleCache({"n1": (1, "j-a.1", 4000, 0, 0, 7.0), "n2": (0, "", 0, 0, 0, 0.0)})
    cache.invalidate("n1")
    cache.invalidate("n3")
    assert [*cache.known] == ["n2"]
