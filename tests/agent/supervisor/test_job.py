"""A job's states and what the journal says of it, without a process or a file."""

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.agent.supervisor.job import (
    MOVES,
    NEVER,
    Job,
    JobState,
    Loss,
    Place,
    Record,
    Recorded,
    ahead,
    never_ran,
    of_order,
)

ROOM = Path(__file__).parents[3] / "agent"
PLACE = Place("s1", "user", 5, 5, True, 70, 700, 70)


def seen(job: Job) -> tuple[Any, ...]:
    """All that the next supervisor has to know of it."""
    if job.over:
        return job.state, job.place, job.outcome
    frozen = job.frozen_for, job.freezes
    end = job.status, job.recorded, job.cpu, job.peak
    return job.state, job.place, job.limit, job.pid, job.spawned, job.cause, job.text, job.warned, *frozen, *end


def test_one_that_gave_way_has_done_so_for_the_next_supervisor_too() -> None:
    job = Job("j-1.1", began=5.0, limits={"nice_later": 15, "nice_after": 60.0})
    assert (job.nice, job.eager, job.renice_at()) == (0, True, 65.0)
    job.renice()
    assert (job.nice, job.reniced, job.renice_at()) == (15, True, NEVER)
    recorded = Recorded()
    for record in job.records():
        recorded.take(json.loads(json.dumps(record)))
    assert recorded.jobs["j-1.1"].reniced
    assert not Job("j-2.1", limits={"nice": 15}).reniced


def test_a_reason_of_any_length_is_kept_in_part() -> None:
    assert never_ran("not-found", "x" * 100_000)["text"] == "x" * 2000
    job = Job("j-1.1")
    job.stop("cancelled", "y" * 100_000)
    job.main_ended(15)
    said = job.ended(1.0)
    assert said["cause"] == "cancelled" and said["text"].startswith("yyy") and len(said["text"]) < 2100


# --- states -----------------------------------------------------------------------------------------------------------


def test_every_state_has_its_moves_and_to_stay_is_none() -> None:
    assert set(MOVES) == set(JobState)
    assert not any(state in targets for state, targets in MOVES.items())
    assert not MOVES[JobState.ENDED]


@pytest.mark.parametrize(("state", "to"), [*itertools.product(JobState, JobState)])
def test_a_move_that_is_not_in_the_table_is_an_error(state: JobState, to: JobState) -> None:
    job = Job("j-1.1")
    job.__dict__["state"] = state
    if to in MOVES[state]:
        job.move(to)
        assert job.state is to
        return
    with pytest.raises(AssertionError, match=f"j-1.1 cannot go from {state.value} to {to.value}"):
        job.move(to)
    assert job.state is state


def assigned(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in FACTS:
            of = node.value.id if isinstance(node.value, ast.Name) else "?"
            if of in ("job", "owner", "one"):
                yield f"{path.name}:{node.lineno}: {of}.{node.attr}"


FACTS = ("state", "status", "outcome", "freezes", "frozen_for")


def test_nobody_but_the_job_itself_says_where_it_stands() -> None:
    paths = [path for folder in ("supervisor", "cgroups", "walls") for path in (ROOM / folder).glob("*.py")]
    assert len(paths) > 20
    assert [found for path in paths for found in assigned(path)] == []


def test_what_was_asked_to_end_before_it_was_there_goes_on_ending() -> None:
    job = Job("j-1.1", limit=10.0)
    job.stop("cancelled", "by ann")
    job.runs(7)
    assert (job.state, job.pid, job.deadline()) == (JobState.STOPPING, 7, NEVER)
    job.main_ended(15)
    job.end(job.ended(3.0))
    assert job.outcome is not None and job.outcome["text"] == "by ann; killed by signal 15 (SIGTERM)"


def test_frozen_time_does_not_count_against_the_limit() -> None:
    job = Job("j-1.1", began=100.0, limit=10.0)
    job.runs(7)
    assert job.deadline() == 110.0
    job.freeze(105.0, "the owner is back")
    assert job.deadline() == NEVER
    job.thaw(60.0)
    assert (job.state, job.deadline()) == (JobState.RUNNING, 170.0)


def test_one_that_dies_frozen_was_frozen_to_its_end() -> None:
    job = Job("j-1.1", began=100.0)
    job.runs(7)
    job.freeze(105.0, "the owner is back")
    job.main_ended(9)
    assert job.ended(125.0)["suspended"] == 20.0


# --- the journal ------------------------------------------------------------------------------------------------------


def live(job: Job, step: int) -> Iterator[Record]:
    """The next thing that happens to it, if that can be, and what is written of it."""
    if step == 0 and not job.pid and not job.over:
        job.spawned = (5, 6)
        job.runs(70 + step)
        yield job.begin()
    elif step == 1 and job.state is JobState.RUNNING:
        job.freeze(50.0, "owner")
        yield ["freeze", job.id, 50.0, "owner"]
    elif step == 2 and job.state is JobState.FROZEN:
        job.thaw(job.frozen_for + 7.0)
        yield ["thaw", job.id, job.frozen_for]
    elif step == 3 and job.unasked:
        job.stop("cancelled", "by ann")
        yield ["stop", job.id, "cancelled", "by ann"]
        job.thaw(job.frozen_for)  # or it would not hear of it
        yield ["thaw", job.id, job.frozen_for]
    elif step == 4:
        job.limit += 1.0
        yield ["limit", job.id, job.limit]
    elif step == 5:
        job.warned = True
        yield ["warned", job.id]
    elif step == 6 and job.state in (JobState.INTENDED, JobState.STOPPING) and not job.pid:
        job.end(never_ran("spawn-failed", "no"))
        yield ["exit", job.id, job.outcome]
    elif step == 7 and job.pid and not job.over:
        if job.state is not JobState.COMPLETING:
            job.main_ended(0)
        job.end(job.ended(99.0))
        yield ["exit", job.id, job.outcome]
    elif step == 8 and job.pid and job.state is not JobState.COMPLETING:
        job.main_ended(7 << 8)
        job.cpu, job.peak = 1.25, 4096
        yield job.completing()


@given(st.lists(st.integers(0, 8), max_size=12), st.booleans())
def test_the_next_supervisor_knows_what_the_last_one_did(steps: list[int], placed: bool) -> None:
    job = Job("j-1.1", 10.0, 60.0, 5.0, [1, 0], 30.0, 9.0, {"memory": 5, "signal": 10, "before": 2.0})
    job.place = PLACE if placed else None
    written = [job.intent()]
    for step in steps:
        if not job.over:
            written += live(job, step)
    for records in (written, [*job.records()]):  # as it was appended, and as it is written anew
        known = Recorded()
        for record in records:
            known.take(json.loads(json.dumps(record)))
        assert seen(known.jobs["j-1.1"]) == seen(job)
        assert [*known.jobs["j-1.1"].records()] == [*job.records()]


@given(st.lists(st.integers(0, 8), max_size=12), st.data())
def test_a_journal_with_lines_missing_is_read_all_the_same(steps: list[int], data: st.DataObject) -> None:
    job = Job("j-1.1")
    written = [["boot", "b"], job.intent()]
    for step in steps:
        if not job.over:
            written += live(job, step)
    kept = data.draw(st.lists(st.sampled_from(written), max_size=20))
    known = Recorded()
    for record in kept:
        known.take(record)
    assert known.jobs.keys() <= {"j-1.1"}


def test_a_journal_that_is_written_anew_says_the_same() -> None:
    known = Recorded()
    known.boot, known.renewed = "b1", 12.5
    known.loss = Loss("l1", 3.0, "damaged", "b1")
    known.forgotten["j-0.1"] = None
    known.jobs["j-2.1"] = Job("j-2.1", outcome={"cause": "exited", "code": 0})
    again = Recorded()
    for record in known.records():
        again.take(record)
    assert (again.boot, again.renewed, again.forgotten) == ("b1", 12.5, {"j-0.1": None})
    assert again.loss is not None and again.loss.as_message() == known.loss.as_message()
    assert [*again.records()] == [*known.records()]
    again.take(["proven", "l1"])
    again.take(["forget", "j-2.1"])
    assert not again.loss.open and not again.jobs and "j-2.1" in again.forgotten


def test_what_is_kept_of_a_launch_is_kept_until_its_end_is_acknowledged_however_often_it_is_written_anew() -> None:
    runs, over = {"user": "ann", "grant": {"cores": [1]}}, {"user": "bob"}
    records: list[list[Any]] = [["boot", "b"]]
    records += [Job("runs", 1.0, kept=runs).intent(), Job("over", 1.0, kept=over).intent(), ["exit", "over", {}]]
    for _ in range(3):
        known = Recorded()
        for record in records:
            known.take(record)
        assert {key: job.kept for key, job in known.jobs.items()} == {"runs": runs, "over": over}
        records = [*known.records()]


@pytest.mark.parametrize(
    "more",
    [{}, {"cores": [3, 1], "limits": {"memory": 1 << 20, "nice": 5}, "kept": {"chain": "j-1.1"}}, {"limits": None}],
)
def test_a_successor_that_was_written_ahead_and_goes_is_the_job_of_its_intent(more: dict[str, Any]) -> None:
    order = {"id": "j-2.1", "limit": 60.0, "grace": 5.0, "lease": 30.0, "lease_from": 7.0, **more}
    job = of_order(order, began=9.0)
    at_once, later = Recorded(), Recorded()
    at_once.take(json.loads(json.dumps(job.intent())))
    later.take(json.loads(json.dumps(ahead(order))))
    assert later.ahead and not later.jobs, "nothing of it has begun"
    later.take(json.loads(json.dumps(job.go())))
    assert not later.ahead
    assert vars(later.jobs["j-2.1"]) == vars(at_once.jobs["j-2.1"])
