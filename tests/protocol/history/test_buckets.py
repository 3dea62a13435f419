"""Buckets on the wire: numbered by time, bounded, and small."""

from distributed_grid.protocol.codec import CONTROL_BYTES, encode
from distributed_grid.protocol.history.buckets import PER_MESSAGE, SECONDS, number_of
from distributed_grid.protocol.messages import Buckets
from tests.protocol.samples import BUCKET


def test_a_moment_lies_in_the_bucket_that_began_before_it() -> None:
    assert [number_of(at) for at in (0.0, SECONDS - 0.001, SECONDS, 25.0, -0.5)] == [0, 0, 1, 2, -1]


def test_the_largest_message_fits_a_frame_of_an_agent() -> None:
    frame = encode(1, [Buckets(at=1.0, buckets=(BUCKET,) * PER_MESSAGE)])
    assert len(frame) < CONTROL_BYTES / 4
