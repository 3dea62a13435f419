"""What the ledger answers is performed once its records are written, in order, whatever the disk does. No loop, no
disk, no clock: the time is a number."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import (
    RECORDS,
    Accepted,
    AckExits,
    Audit,
    Command,
    Event,
    Granted,
    MessageReceived,
    Publish,
    Record,
    RecordJob,
    Send,
    StoreFailing,
    Tick,
)
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.pipeline import (
    AGAIN_SECONDS,
    BATCH,
    LINES_KEPT,
    MOST_GATHERED,
    SOON_SECONDS,
    STALLED_SECONDS,
    Pipeline,
    newest_commands,
    newest_records,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request
from distributed_grid.protocol.messages import Exited, Launch, Renewed, Stop
from distributed_grid.protocol.resources import Grant, Resources

FULL = GridError("the disk is full")


class Answers:
    """A ledger whose answers are the events themselves: lists of commands."""

    deadline: float | None = None
    failing: bool | None = None

    def patience(self, event: Event) -> float:
        return 0.0

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, StoreFailing):
            self.failing = event.on
        return [*event] if isinstance(event, tuple) else []

    def settle(self, now: float) -> list[Command]:
        self.deadline = None
        return []

    def next_deadline(self) -> float | None:
        return self.deadline


def record(number: int, soon: bool = False) -> RecordJob:
    spec, request = JobSpec(("true",)), Request(Resources(cpu=1))
    job = Job(id=f"j-{number}", key=f"k-{number}", user="ann", spec=spec, request=request, submitted=float(number))
    return RecordJob(job, soon=soon)


def after(pipeline: Pipeline, *commands: Command, now: float = 0.0) -> list[Command]:
    """What is to be performed once the ledger has answered an event with these."""
    event: Any = commands
    pipeline.put(event)
    pipeline.turn(now)
    return pipeline.performable(now)


def test_a_command_waits_until_the_records_of_its_batch_are_written() -> None:
    pipeline = Pipeline(Answers())
    assert after(pipeline, Granted(1), record(1)) == []
    assert pipeline.write_due(0.0) and pipeline.begin_write(0.0) == [record(1)]
    assert pipeline.performable(0.0) == [] and not pipeline.write_due(0.0), "one write at a time"
    pipeline.written()
    assert pipeline.performable(0.0) == [Granted(1)] and pipeline.performable(0.0) == [] and pipeline.idle


def test_a_command_without_records_waits_for_a_write_that_is_under_way_and_no_longer() -> None:
    pipeline = Pipeline(Answers())
    assert after(pipeline, Granted(1)) == [Granted(1)]
    after(pipeline, Granted(2), record(2))
    pipeline.begin_write(0.0)
    assert after(pipeline, Granted(3)) == []
    assert after(pipeline, Granted(4), record(4)) == []
    pipeline.written()
    assert pipeline.performable(0.0) == [Granted(2)], "what came after it rests on the next write"
    assert pipeline.begin_write(0.0) == [record(4)]
    pipeline.written()
    assert pipeline.performable(0.0) == [Granted(3), Granted(4)]


def test_a_renewed_lease_waits_for_nothing() -> None:
    pipeline = Pipeline(Answers())
    renewed = Send("n1", Renewed(7.0))
    assert after(pipeline, Granted(1), renewed, record(1)) == [renewed]


def test_a_heartbeat_is_a_turn_of_its_own_and_says_whether_something_came_of_it() -> None:
    pipeline = Pipeline(Answers())
    renewed = Send("n1", Renewed(7.0))
    nothing: Any = ()
    something: Any = (Granted(1), renewed, record(1))
    assert not pipeline.heartbeat(nothing, 0.0)
    assert pipeline.heartbeat(something, 0.0)
    assert pipeline.performable(0.0) == [renewed] and pipeline.begin_write(0.0) == [record(1)]


def test_a_turn_takes_a_batch_and_leaves_the_rest() -> None:
    pipeline = Pipeline(Answers())
    for _ in range(BATCH + 1):
        pipeline.put(Tick())
    pipeline.turn(0.0)
    assert len(pipeline.queue) == 1 and not pipeline.idle


def test_a_record_that_may_wait_is_due_in_a_moment_or_with_the_next_that_may_not() -> None:
    pipeline = Pipeline(Answers())
    soon = record(1, soon=True)
    assert after(pipeline, Granted(1), soon, now=5.0) == [Granted(1)]
    assert not pipeline.write_due(5.0) and pipeline.next_time() == 5.0 + SOON_SECONDS
    pipeline.tick(5.0 + SOON_SECONDS)
    assert pipeline.begin_write(5.1) == [soon]
    pipeline.written()
    after(pipeline, soon, now=6.0)
    after(pipeline, record(2), now=6.01)
    assert pipeline.begin_write(6.01) == [soon, record(2)]


def test_what_the_disk_refuses_is_tried_again_with_what_came_meanwhile() -> None:
    ledger = Answers()
    pipeline = Pipeline(ledger)
    after(pipeline, Granted(1), record(1))
    pipeline.begin_write(0.0)
    pipeline.refuse(FULL, 1.0)
    assert pipeline.trouble is FULL and pipeline.refused and not pipeline.write_due(1.5)
    assert after(pipeline, Granted(2), record(2), now=1.5) == [] and ledger.failing is True
    again = 1.0 + AGAIN_SECONDS
    assert pipeline.next_time() == again and pipeline.write_due(again)
    assert pipeline.begin_write(again) == [record(1), record(2)]
    assert not pipeline.write_due(again + 60), "it is under way"
    pipeline.written()
    assert pipeline.performable(again) == [Granted(1), Granted(2)] and not pipeline.refused


def test_trouble_is_over_when_the_disk_has_taken_all_and_the_reserve_is_there() -> None:
    ledger = Answers()
    pipeline = Pipeline(ledger)
    after(pipeline, record(1))
    pipeline.begin_write(0.0)
    pipeline.refuse(FULL, 0.0)
    assert pipeline.take_secure(AGAIN_SECONDS) and not pipeline.take_secure(99.0), "once at a time"
    pipeline.secured(None, 1.0)
    assert pipeline.trouble is FULL, "the disk has not taken what it refused"
    pipeline.begin_write(1.0)
    pipeline.written()
    pipeline.secured(short := GridError("no room for the reserve"), 2.0)
    assert pipeline.trouble is short and pipeline.take_secure(2.0 + AGAIN_SECONDS)
    pipeline.secured(None, 3.0)
    pipeline.turn(3.0)
    assert pipeline.trouble is None and ledger.failing is False


def test_a_write_that_does_not_come_back_is_trouble_until_it_does() -> None:
    pipeline = Pipeline(Answers())
    after(pipeline, Granted(1), record(1))
    pipeline.begin_write(0.0)
    assert pipeline.next_time() == STALLED_SECONDS
    pipeline.tick(STALLED_SECONDS)
    assert pipeline.trouble is not None and "does not answer" in pipeline.trouble.what and not pipeline.refused
    pipeline.written()
    assert pipeline.take_secure(STALLED_SECONDS + AGAIN_SECONDS)
    pipeline.secured(None, 12.0)
    assert pipeline.trouble is None and pipeline.performable(12.0) == [Granted(1)]


def test_the_ledgers_deadline_is_an_event_once_it_has_come() -> None:
    ledger = Answers()
    pipeline = Pipeline(ledger)
    ledger.deadline = 10.0
    pipeline.tick(9.0)
    assert not pipeline.queue and pipeline.next_time() == 10.0
    pipeline.tick(10.0)
    assert [*pipeline.queue] == [Tick()] and pipeline.next_time() == float("inf"), "the next turn settles it"


def test_in_a_hurry_nothing_waits_for_company_or_for_the_disk() -> None:
    pipeline = Pipeline(Answers())
    after(pipeline, record(1, soon=True))
    pipeline.hurry()
    assert pipeline.write_due(0.0)
    pipeline.begin_write(0.0)
    pipeline.refuse(FULL, 0.0)
    pipeline.hurry()
    assert pipeline.write_due(0.0)


def test_what_waits_for_the_disk_does_not_grow_with_the_time() -> None:
    view = [record(number).job.view(None) for number in (1, 2)]
    launch = Launch(allocation="j-1.1", job="j-1", user="ann", epoch=1, grant=Grant(), spec=JobSpec(("true",)))
    once: list[Command] = [
        Accepted(7, ("j-1",), 1, 1),
        Publish(view[0]),
        Send("n1", launch),
        AckExits("n1", ("j-0.1",)),
        Send("n1", Stop(allocation="j-1.1")),
        Publish(view[1]),
    ]
    newer = Publish(msgspec.structs.replace(view[0], started=3.0))
    assert newest_commands([*once, *once[2:], newer]) == [once[0], newer, *once[2:]]
    lines = [Audit("n1", str(number)) for number in range(3 * LINES_KEPT)]
    records: list[Record] = [record(1), *lines, record(2), record(1)]
    assert newest_records(records) == [record(1), record(2), *lines[-LINES_KEPT:]]


def test_of_audit_lines_those_of_a_node_that_says_a_lot_go_first() -> None:
    few = [Audit("n2", "first"), Audit("n3", "second")]
    many = [Audit("n1", str(number)) for number in range(3 * LINES_KEPT)]
    last = Audit("n2", "last")
    kept = newest_records([*few, *many, last])
    assert kept == [*few, *many[3 - LINES_KEPT :], last]
    assert newest_records([*kept, many[0]]) == [*few, *many[4 - LINES_KEPT :], last, many[0]]


@pytest.mark.parametrize("kind", sorted(set(RECORDS) - {Audit}, key=str))
def test_of_each_kind_of_record_the_newest_waits_for_a_disk_that_fails(kind: Any) -> None:
    thing = SimpleNamespace(id="x", name="x")
    parts = {one.name: "x" if one.type is str else thing for one in msgspec.structs.fields(kind) if one.required}
    first, second = kind(**parts), kind(**parts)
    pipeline = Pipeline(Answers())
    after(pipeline, first)
    pipeline.begin_write(0.0)
    pipeline.refuse(FULL, 0.0)
    after(pipeline, second, now=AGAIN_SECONDS)
    (kept,) = pipeline.begin_write(AGAIN_SECONDS)
    assert kept is second


def test_a_job_that_is_new_on_disk_stays_so_when_it_changes_before_it_is_written() -> None:
    made, changed = record(1), record(2)
    new = RecordJob(made.job, new=True)
    assert newest_records([new, changed, made, made]) == [new, changed]


# --- ends that come one after another -------------------------------------------------------------------------------


LONG, SHORT = 0.02, 0.002


class Ends(Answers):
    """A ledger that records the end of each job that is over, acknowledges it, and grants the next when it settles."""

    def patience(self, event: Event) -> float:
        if not isinstance(event, MessageReceived) or not isinstance(event.message, Exited):
            return 0.0
        return SHORT if event.node == "n2" else 0.0 if event.message.returned else LONG

    def handle(self, event: Event, now: float) -> list[Command]:
        if not isinstance(event, MessageReceived) or not isinstance(event.message, Exited):
            return super().handle(event, now)
        return [record(1), AckExits(event.node, (event.message.allocation,))]

    def settle(self, now: float) -> list[Command]:
        return [record(2)]


def end(pipeline: Pipeline, now: float, returned: bool = False, node: str = "n1") -> list[Command]:
    outcome = Outcome(Cause.EXITED)
    pipeline.put(MessageReceived(node, Exited(allocation=f"j{now}.1", outcome=outcome, returned=returned)))
    pipeline.turn(now)
    return pipeline.performable(now)


def test_ends_of_jobs_that_have_successors_wait_for_each_other_and_nothing_is_done_meanwhile() -> None:
    pipeline = Pipeline(Ends())
    assert end(pipeline, 1.0) == [] and not pipeline.write_due(1.0)
    assert end(pipeline, 1.001) == [] and not pipeline.write_due(1.001)
    assert pipeline.next_time() == 1.0 + LONG
    pipeline.tick(1.0 + LONG)
    assert pipeline.write_due(1.0 + LONG)
    pipeline.begin_write(1.021)
    pipeline.written()
    assert [type(one) for one in pipeline.performable(1.021)] == [AckExits, AckExits]
    assert pipeline.next_time() == float("inf")


def test_they_wait_no_longer_than_the_least_patient_of_them() -> None:
    pipeline = Pipeline(Ends())
    end(pipeline, 1.0)
    end(pipeline, 1.001, node="n2")
    end(pipeline, 1.002)
    assert pipeline.next_time() == 1.001 + SHORT


def test_another_end_is_written_at_once_with_those_that_wait() -> None:
    pipeline = Pipeline(Ends())
    end(pipeline, 1.0)
    end(pipeline, 1.001, returned=True)
    assert pipeline.write_due(1.001)


def test_anything_else_that_is_to_be_durable_is_written_at_once_with_the_ends_that_wait() -> None:
    pipeline = Pipeline(Ends())
    end(pipeline, 1.0)
    after(pipeline, record(3), now=1.001)
    assert pipeline.write_due(1.001)


def test_many_ends_do_not_wait() -> None:
    pipeline = Pipeline(Ends())
    for _ in range(MOST_GATHERED):
        end(pipeline, 1.0)
    assert pipeline.write_due(1.0)
