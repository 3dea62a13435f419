"""Bulk data between coordinator and agent says when it has ended, and why there is none."""

from distributed_grid.protocol import codec
from distributed_grid.protocol.messages import BlobData, FileData, Files, Output, Stop


def test_answers_without_data_are_small_and_say_why() -> None:
    sent = [Output(id=1, offset=0, error="gone"), Files(id=2, error="gone"), FileData(id=3, end=True)]
    assert codec.decode("FromAgentData", codec.encode(1, sent)) == (1, sent)
    assert len(codec.encode(1, [BlobData(id=1, end=True)])) < 64


def test_an_allocation_is_stopped_with_grace_and_as_cancelled_unless_it_is_said_otherwise() -> None:
    stop = Stop(allocation="j-1.1")
    assert (stop.grace, stop.cause) == (5.0, "cancelled")
