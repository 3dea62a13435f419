"""Bulk data between coordinator and agent says when it has ended, and why there is none."""

from distributed_grid.protocol import codec
from distributed_grid.protocol.messages import BlobData, FileData, Files, Output


def test_answers_without_data_are_small_and_say_why() -> None:
    sent = [Output(id=1, offset=0, error="gone"), Files(id=2, error="gone"), FileData(id=3, end=True)]
    assert codec.decode("FromAgentData", codec.encode(1, sent)) == (1, sent)
    assert len(codec.encode(1, [BlobData(id=1, end=True)])) < 64
