"""What waits for a node's disk: which sync releases what, in which order, and what is refused when a disk fails."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.agent.supervisor.allocations import Syncs
from distributed_grid.agent.supervisor.job import Job

NOTHING: tuple[list[Job], list[Job], list[str], list[str]] = ([], [], [], [])


@pytest.fixture
def syncs() -> Iterator[Syncs[str]]:
    made: Syncs[str] = Syncs()
    yield made
    assert made.take_released() == NOTHING, "everything was looked at"


def ended(syncs: Syncs[str], name: str) -> Job:
    job = Job(name, outcome={"cause": "exited", "code": 0})
    syncs.over.append(job)
    return job


def test_what_was_written_is_released_by_the_sync_that_began_after_that(syncs: Syncs[str]) -> None:
    first = ended(syncs, "a")
    assert syncs.take_unwritten() == [first] and syncs.take_unwritten() == []
    syncs.begin(["launch"])
    second = ended(syncs, "b")
    assert syncs.under_way and syncs.uncovered == [second]
    assert syncs.take_unwritten() == [second], "written during the sync: it may have missed that"
    assert syncs.take_released() == NOTHING
    syncs.succeeded()
    assert syncs.take_released() == ([first], [], ["launch"], []) and not syncs.under_way
    assert syncs.over == syncs.uncovered == [second]
    syncs.begin([])
    syncs.succeeded()
    assert syncs.take_released() == ([second], [], [], [])


def test_an_end_that_is_not_written_is_released_by_no_sync(syncs: Syncs[str]) -> None:
    job = ended(syncs, "a")
    syncs.begin([])
    syncs.succeeded()
    assert syncs.take_released() == NOTHING and syncs.over == [job]


def test_an_intent_is_durable_with_the_next_sync_that_begins_and_not_with_the_one_under_way(syncs: Syncs[str]) -> None:
    before = syncs.mark
    syncs.begin([])
    during = syncs.mark
    assert not syncs.is_durable(before)
    syncs.succeeded()
    assert syncs.is_durable(before) and not syncs.is_durable(during)
    syncs.begin([])
    syncs.succeeded()
    assert syncs.is_durable(during) and not syncs.is_durable(syncs.mark) and not syncs.is_durable(-1)


def test_a_start_is_reported_after_the_ends_that_were_known_and_before_none_of_them(syncs: Syncs[str]) -> None:
    job = Job("b")
    assert not syncs.hold_start(job), "nothing ended: it is reported at once"
    first = ended(syncs, "a")
    syncs.take_unwritten()
    syncs.begin([])
    later = ended(syncs, "c")
    assert syncs.hold_start(job) and syncs.starts_wait
    syncs.succeeded()
    assert syncs.take_released() == ([first], [], [], []), "one of them needs the next sync"
    syncs.take_unwritten()
    syncs.begin([])
    syncs.succeeded()
    assert syncs.take_released() == ([later], [job], [], []) and not syncs.starts_wait


def test_a_start_is_reported_after_ends_that_are_durable_and_not_reported_yet(syncs: Syncs[str]) -> None:
    end = ended(syncs, "a")
    syncs.take_unwritten()
    syncs.begin([])
    syncs.succeeded()
    assert syncs.hold_start(job := Job("b")) and not syncs.starts_wait
    assert syncs.take_released() == ([end], [job], [], [])


def test_a_new_journal_releases_all_and_has_no_intent_that_waits(syncs: Syncs[str]) -> None:
    mark = syncs.mark
    ends = [ended(syncs, "a")]
    syncs.take_unwritten()
    syncs.begin(["launch"])
    ends.append(ended(syncs, "b"))
    assert syncs.hold_start(job := Job("c"))
    syncs.rewritten()
    assert syncs.take_released() == (ends, [job], ["launch"], []) and not syncs.under_way and not syncs.over
    assert not syncs.is_durable(mark) and not syncs.is_durable(syncs.mark)


def test_where_the_disk_fails_launches_are_refused_and_ends_wait_on(syncs: Syncs[str]) -> None:
    job = ended(syncs, "a")
    syncs.take_unwritten()
    syncs.begin(["launch"])
    syncs.failed()
    assert syncs.take_released() == ([], [], [], ["launch"])
    assert syncs.over == syncs.uncovered == [job] and not syncs.under_way
    syncs.rewritten()
    assert syncs.take_released().ends == [job]


def test_there_is_one_sync_at_a_time(syncs: Syncs[str]) -> None:
    syncs.begin([])
    with pytest.raises(AssertionError):
        syncs.begin([])


STEPS = ("end", "write", "begin", "succeeded", "rewritten", "failed", "start", "take")


@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_nothing_is_released_before_a_disk_has_it_nor_twice_nor_out_of_order(steps: list[str]) -> None:
    syncs: Syncs[str] = Syncs()
    happened: list[str] = []
    written: set[str] = set()
    covered: set[str] = set()
    durable: set[str] = set()
    told: list[str] = []
    for number, step in enumerate([*steps, "take"]):
        if step == "end":
            happened.append(ended(syncs, f"end{number}").id)
        elif step == "start" and syncs.hold_start(Job(f"start{number}")):
            happened.append(f"start{number}")
        elif step == "write":
            written |= {job.id for job in syncs.take_unwritten()}
        elif step == "begin" and not syncs.under_way:
            syncs.begin([f"launch{number}"])
            covered = {*written, f"launch{number}"}
        elif step in ("succeeded", "failed") and syncs.under_way:
            durable, covered = durable | (covered if step == "succeeded" else set()), set()
            getattr(syncs, step)()
        elif step == "rewritten":
            durable, covered = durable | {*happened, *covered}, set()
            syncs.rewritten()
        if step != "take":
            continue
        ends, starts, launches, refused = syncs.take_released()
        assert {job.id for job in ends} | {*launches} <= durable and not durable & {*refused}
        told += [job.id for job in ends]
        for job in starts:
            before = [one for one in happened[: happened.index(job.id)] if one.startswith("end")]
            assert {*before} <= {*told}, "an end is told before the start of what follows it"
        assert told == [one for one in happened if one.startswith("end")][: len(told)], "in order, each once"
