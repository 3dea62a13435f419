"""Reading a job's output without I/O: every byte once, in order, attempt after attempt."""

from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.client.output import (
    ALL_READ,
    EMPTY_SECONDS,
    HOLD_AGAIN,
    HOLD_SECONDS,
    RETRY_SECONDS,
    TRIES,
    JobOutput,
    Stream,
)
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State
from distributed_grid.protocol.messages import Output, WantOutput
from distributed_grid.protocol.resources import Resources

RUNNING = JobView(
    id="j",
    user="ann",
    state=State.RUNNING,
    spec=JobSpec(argv=("true",)),
    request=Request(resources=Resources(cpu=1000), requeue=False),
    submitted=1.0,
    allocation="j.1",
)


def view(**fields: Any) -> JobView:
    return msgspec.structs.replace(RUNNING, **fields)


def ended(**outcome: Any) -> JobView:
    return view(state=State.ENDED, outcome=Outcome(**({"cause": Cause.EXITED} | outcome)))


class Reading:
    """A reader of one stream, and what it has read."""

    def __init__(
        self,
        streams: tuple[str, ...] = ("stdout",),
        until_now: bool = False,
        reader: str = "",
        attempt: int | None = None,
    ) -> None:
        self.output = JobOutput(streams, until_now, reader, attempt)
        self.read = b""
        self.gaps: list[int] = []
        self._number = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    def told(self, job: JobView) -> None:
        for piece in self.output.update(job):
            self.read += piece.data

    def asks(self, now: float = 0.0) -> list[WantOutput]:
        return self.output.questions(self._next, now)

    def answered(self, question: WantOutput, now: float = 0.0, **answer: Any) -> None:
        fields = {"offset": question.offset} | answer
        for piece in self.output.receive(Output(id=question.id, **fields), now):
            self.read += piece.data
            self.gaps += [piece.gap] if piece.gap else []


# --- one stream -------------------------------------------------------------------------------------------------------


def test_overlapping_pieces_are_taken_once_and_gaps_are_counted() -> None:
    stream = Stream("stdout")
    pieces = [stream.receive(*one, 0.0) for one in ((0, b"abcd"), (2, b"cdef"), (0, b"ab"), (10, b"klm"))]
    assert [piece.gap for piece in pieces] == [0, 0, 0, 4]
    assert stream.ended(ended(stdout_size=20, stdout_tail=b"tail")) is None
    rest = stream.ended(ended(stdout_size=15, stdout_tail=b"lmno"))
    assert rest is not None and b"".join(piece.data for piece in (*pieces, rest)) == b"abcdefklmno"
    assert stream.done and stream.offset == 15


def test_the_output_of_an_ended_job_ends_at_the_size_on_record_though_its_node_sends_on() -> None:
    stream = Stream("stdout")
    read = stream.receive(0, b"abc", 0.0).data
    assert stream.ended(ended(stdout_size=6, stdout_tail=b"f")) is None and not stream.done
    read += stream.receive(3, b"defghi" * 1000, 0.0).data
    assert read == b"abcdef" and stream.done and stream.offset == 6


def test_a_node_that_has_nothing_is_asked_again_after_a_pause() -> None:
    reading = Reading()
    reading.told(RUNNING)
    (question,) = reading.asks(now=1.0)
    assert reading.asks(now=1.0) == [], "it is asked already"
    reading.answered(question, now=1.0, data=b"")
    assert reading.asks(now=1.0) == [] and reading.output.pause(1.0) == pytest.approx(EMPTY_SECONDS)
    assert [again.offset for again in reading.asks(now=1.0 + EMPTY_SECONDS)] == [0]


# --- a job ------------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_of_a_job_that_has_not_begun() -> None:
    reading = Reading()
    for state, allocation in ((State.WAITING, ""), (State.STARTING, "j.1")):
        reading.told(view(state=state, allocation=allocation))
        assert reading.asks() == []
    reading.told(RUNNING)
    assert [(one.allocation, one.stream, one.offset) for one in reading.asks()] == [("j.1", "stdout", 0)]


def test_a_stream_that_is_not_ready_is_not_asked_for() -> None:
    output = JobOutput()
    output.update(RUNNING)
    assert [one.stream for one in output.questions(lambda: 1, 0.0, lambda name: name == "stderr")] == ["stderr"]


def test_what_is_left_of_an_ended_job_is_taken_from_its_record_without_asking() -> None:
    reading = Reading()
    reading.told(RUNNING)
    reading.answered(reading.asks()[0], data=b"abc")
    reading.told(ended(stdout_size=6, stdout_tail=b"cdef"))
    assert reading.read == b"abcdef" and reading.output.over and reading.asks() == []


def test_a_job_that_never_started_has_no_output() -> None:
    reading = Reading()
    reading.told(ended(cause=Cause.CANCELLED, started=False))
    assert reading.output.over and reading.read == b""


def test_the_output_of_each_attempt_is_read_to_its_end_before_that_of_the_next() -> None:
    again = msgspec.structs.replace(RUNNING.request, retry_on=("failed",))
    reading = Reading()
    reading.told(view(request=again))
    first = reading.asks()[0]
    reading.told(view(request=again, allocation="j.2", retried=1))
    reading.answered(first, data=b"first ", end=True)
    second = reading.asks()[0]
    assert (second.allocation, second.offset) == ("j.2", 0) and not reading.output.over
    reading.told(
        msgspec.structs.replace(ended(stdout_size=6, stdout_tail=b"second"), request=again, allocation="j.2", retried=1)
    )
    assert reading.read == b"first second" and reading.output.over


def test_an_attempt_that_never_began_is_left_out() -> None:
    reading = Reading()
    reading.told(view(state=State.STARTING))
    reading.told(view(allocation="j.2"))
    assert [one.allocation for one in reading.asks()] == ["j.2"]


def test_the_output_of_a_job_that_may_run_again_is_not_over_before_the_job_is() -> None:
    requeued = msgspec.structs.replace(RUNNING.request, requeue=True)
    reading = Reading()
    reading.told(view(request=requeued))
    reading.answered(reading.asks()[0], data=b"abc", end=True)
    assert reading.output.done and not reading.output.over
    reading.told(msgspec.structs.replace(ended(stdout_size=3, stdout_tail=b"abc"), request=requeued))
    assert reading.read == b"abc" and reading.output.over


def test_until_now_means_what_there_is_and_no_more() -> None:
    reading = Reading(until_now=True)
    reading.told(RUNNING)
    (question,) = reading.asks()
    assert question.wait == 0.0
    reading.answered(question, data=b"abc")
    reading.answered(reading.asks()[0], data=b"")
    assert reading.read == b"abc" and reading.output.done
    waiting = Reading(until_now=True)
    waiting.told(view(state=State.WAITING, allocation=""))
    assert waiting.output.done


def test_the_node_of_a_running_job_is_asked_on_and_that_of_an_ended_one_not_for_ever() -> None:
    reading, now = Reading(), 0.0
    reading.told(RUNNING)
    for _ in range(2 * TRIES):
        reading.answered(reading.asks(now)[0], now, error="unavailable: n1 is not connected")
        now += RETRY_SECONDS
    assert reading.output.incomplete() is None
    reading.told(ended(stdout_size=6, stdout_tail=b"f"))
    reading.answered(reading.asks(now)[0], now, error="unavailable: n1 is not connected")
    missing = reading.output.incomplete()
    assert missing is not None and "n1 is not connected" in missing.missing and reading.output.over


def test_what_is_gone_for_good_is_not_asked_for_twice() -> None:
    reading = Reading()
    reading.told(ended(stdout_size=6, stdout_tail=b"f"))
    reading.answered(reading.asks()[0], error="it was removed")
    assert reading.output.incomplete() is not None


def test_an_answer_to_another_question_is_nothing() -> None:
    reading = Reading()
    reading.told(RUNNING)
    (question,) = reading.asks()
    assert reading.output.awaits(question.id) and not reading.output.awaits(question.id + 1)
    assert reading.output.receive(Output(id=question.id + 1, offset=0, data=b"x"), 0.0) == []


def test_bytes_that_are_gone_make_the_output_incomplete() -> None:
    reading = Reading()
    reading.told(RUNNING)
    reading.answered(reading.asks()[0], data=b"abc")
    assert reading.output.incomplete() is None
    reading.answered(reading.asks()[0], now=0.1, offset=10, data=b"xyz")
    reading.told(ended(stdout_size=13, stdout_tail=b"z"))
    stream = reading.output.incomplete()
    assert reading.output.over and stream is not None
    assert stream.incomplete().startswith("7 bytes of stdout are gone: ")


def test_an_attached_reader_says_so_with_each_question_and_also_when_it_takes_no_more() -> None:
    reading = Reading(reader="me")
    reading.told(RUNNING)
    (question,) = reading.asks()
    assert (question.reader, question.offset, question.wait) == ("me", 0, HOLD_SECONDS)
    reading.answered(question, data=b"abc")

    def full(now: float) -> list[WantOutput]:
        return reading.output.questions(reading._next, now, lambda name: False)

    assert full(HOLD_AGAIN - 0.1) == []
    (held,) = full(HOLD_AGAIN)
    assert (held.reader, held.offset, held.size, held.wait) == ("me", 3, 0, 0.0)
    assert full(HOLD_AGAIN + 1) == []
    reading.answered(held)
    (question,) = reading.asks(HOLD_AGAIN + 1)
    assert question.offset == 3, "the answer to that is nothing"


def test_a_reader_who_only_looks_holds_nothing() -> None:
    reading = Reading()
    reading.told(RUNNING)
    reading.answered(reading.asks()[0], data=b"abc")
    assert reading.output.questions(reading._next, 100 * HOLD_AGAIN, lambda name: False) == []
    assert reading.output.leave(reading._next) == []


def test_an_attached_reader_that_leaves_has_read_all() -> None:
    reading = Reading(("stdout", "stderr"), reader="me")
    reading.told(RUNNING)
    reading.asks()
    reading.output.drop("stderr")
    (dropped,) = reading.asks()
    assert (dropped.stream, dropped.offset, dropped.size) == ("stderr", ALL_READ, 0)
    (left,) = reading.output.leave(reading._next)
    assert (left.stream, left.offset) == ("stdout", ALL_READ)


def test_the_next_attempt_is_held_while_the_one_before_is_read() -> None:
    again = msgspec.structs.replace(RUNNING.request, requeue=True)
    reading = Reading(reader="me")
    reading.told(view(request=again))
    reading.answered(reading.asks()[0], data=b"abc")
    reading.told(view(request=again, allocation="j.2", evicted=1))
    held, question = reading.asks()
    assert (held.allocation, held.offset, held.size) == ("j.2", 0, 0)
    assert (question.allocation, question.offset) == ("j.1", 3)
    left = [(one.allocation, one.offset) for one in reading.output.leave(reading._next)]
    assert left == [("j.1", ALL_READ), ("j.2", ALL_READ)], "neither waits for who has left"


def test_one_attempt_is_read_by_its_number() -> None:
    reading = Reading(until_now=True, attempt=1)
    reading.told(view(state=State.ENDED, allocation="j.3", outcome=Outcome(Cause.EXITED, stdout_size=1)))
    (question,) = reading.asks()
    assert question.allocation == "j.1"
    reading.answered(question, data=b"abc", end=True)
    assert reading.read == b"abc" and reading.output.done and reading.asks() == []


def test_all_attempts_are_read_one_after_another() -> None:
    reading = Reading(until_now=True, attempt=0)
    reading.told(view(allocation="j.2"))
    for data in (b"one ", b"two"):
        (question,) = reading.asks()
        reading.answered(question, data=data, end=True)
    assert reading.read == b"one two" and reading.output.done


def test_an_attempt_that_cannot_be_read_is_missing() -> None:
    reading = Reading(until_now=True, attempt=1)
    reading.told(view(allocation="j.2"))
    reading.answered(reading.asks()[0], error="the output is not kept on the node any more")
    stream = reading.output.incomplete()
    assert reading.output.done and stream is not None and "not kept" in stream.missing


def test_what_a_job_wrote_before_it_waits_again_is_there() -> None:
    reading = Reading(until_now=True)
    reading.told(view(state=State.WAITING, evicted=1))
    reading.answered(reading.asks()[0], data=b"abc")
    reading.answered(reading.asks()[0], end=True)
    assert reading.read == b"abc" and reading.output.done
