"""The result of a job, without I/O."""

from typing import Any

from distributed_grid.coordinator.client.output import KEPT_BYTES
from distributed_grid.coordinator.client.results import ResultReader
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State
from distributed_grid.protocol.messages import Output
from distributed_grid.protocol.resources import Resources


def ended(**outcome: Any) -> JobView:
    return JobView(
        id="j",
        user="ann",
        state=State.ENDED,
        spec=JobSpec(argv=("true",)),
        request=Request(resources=Resources(cpu=1000), requeue=False),
        submitted=1.0,
        allocation="j.1",
        outcome=Outcome(**({"cause": Cause.EXITED} | outcome)),
    )


def test_a_result_carries_the_last_bytes_of_each_stream() -> None:
    size = KEPT_BYTES + 10
    reader = ResultReader(ended(code=3, stdout_size=size, stdout_tail=b"x" * 10, stderr_size=3, stderr_tail=b"err"))
    for piece in reader.output.update(
        ended(stdout_size=size, stdout_tail=b"x" * 10, stderr_size=3, stderr_tail=b"err")
    ):
        reader.add(piece)
    (question,) = reader.output.questions(lambda: 1, 0.0)
    assert (question.stream, question.offset) == ("stdout", 10)
    for piece in reader.output.receive(Output(id=1, offset=10, data=b"x" * KEPT_BYTES), 0.0):
        reader.add(piece)
    result = reader.result()
    assert reader.output.over and (result.exit_code, result.success, result.stderr) == (3, False, "err")
    assert len(result.stdout_bytes) == KEPT_BYTES and result.truncated and result.output_error == ""


def test_a_result_says_that_bytes_in_it_are_gone() -> None:
    reader = ResultReader(ended(stdout_size=13, stdout_tail=b"z"))
    reader.output.update(ended(stdout_size=13, stdout_tail=b"z"))
    (question,) = [one for one in reader.output.questions(iter(range(1, 9)).__next__, 0.0) if one.stream == "stdout"]
    for piece in reader.output.receive(Output(id=question.id, offset=10, data=b"xyz", gap=10), 0.0):
        reader.add(piece)
    assert "10 bytes of stdout are gone" in reader.result().output_error
