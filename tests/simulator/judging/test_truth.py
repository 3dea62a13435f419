"""Receipts of preemptions on disk: each is closed once, and what it says is true; and ids of jobs."""

from typing import Any

import msgspec
import pytest

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.messages.operator import Receipt, Victim
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.truth import Preemptions, index_of, number_of


def receipt(name: str = "r1", victim: Priority = Priority.LOW, **other: Any) -> Receipt:
    known: dict[str, Any] = {
        "job": "j0x1", "user": "u", "priority": Priority.URGENT, "wanted": Resources(1000), "node": "n0",
        "grant": Grant((0,)), "at": 1.0, "victims": (Victim("j1x1.1", "j1x1", "ann", victim, Grant((0,))),),
    }  # fmt: skip
    return Receipt(id=name, **(known | other))


def test_nobody_gives_way_to_one_of_its_own_priority() -> None:
    with pytest.raises(Violation, match="it is urgent and gives way to urgent"):
        Preemptions().stored(receipt(victim=Priority.URGENT), lambda job: None)


def test_a_job_has_one_open_receipt_and_each_is_closed_once() -> None:
    kept = Preemptions()
    kept.stored(receipt(), lambda job: None)
    assert kept.unfinished() == ("j0x1", "r1 has neither led to its start nor been rolled back")
    with pytest.raises(Violation, match="r1 and r2 are open at once"):
        kept.stored(receipt("r2"), lambda job: None)
    kept.known.pop("r2")
    closed = receipt(result="returned", closed=2.0)
    kept.stored(closed, lambda job: None)
    assert kept.unfinished() is None
    with pytest.raises(Violation, match="r1 was returned and becomes open"):
        kept.stored(msgspec.structs.replace(closed, result=""), lambda job: None)


def test_a_receipt_that_says_that_its_job_started_is_of_one_that_did() -> None:
    with pytest.raises(Violation, match="says that it started on n0, and it did not"):
        Preemptions().stored(receipt(result="started", closed=2.0), lambda job: None)


def test_an_id_says_which_planned_job_it_is_and_which_member() -> None:
    assert [number_of(one) for one in ("j0x1", "j12x3", "j850x2_7")] == [0, 12, 850]
    assert [index_of(one) for one in ("j0x1", "j850x2_7")] == [0, 7]
