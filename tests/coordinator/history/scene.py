"""Buckets as agents tell them, and a clock that a test moves."""

from distributed_grid.protocol.history.buckets import SECONDS, Bucket, GpuBucket, MeanMax
from distributed_grid.protocol.messages import Buckets

START = 1_800_000_000.0
"""Grid time at which a test begins: the beginning of a quarter of an hour."""


class Clock:
    """Grid time."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def bucket(number: int, foreign: float = 0.5, own: float = 0.25, gpu: float | None = None) -> Bucket:
    """A bucket of a node with four cores, of which these parts are in use."""
    gpus = (
        () if gpu is None else (GpuBucket(uuid="GPU-1", utilisation=MeanMax(100 * gpu, 100 * gpu), memory_total=100),)
    )
    return Bucket(
        number=number,
        samples=5,
        cores=4,
        memory_total=1 << 30,
        foreign_cpu=MeanMax(4 * foreign, 4 * foreign),
        own_cpu=MeanMax(4 * own, 4 * own),
        foreign_memory=MeanMax(foreign * (1 << 30), foreign * (1 << 30)),
        gpus=gpus,
    )


def told(clock: Clock, *buckets: Bucket, booted: float = START - 1000.0) -> Buckets:
    """The message of a node that booted then, sent now. Its buckets are numbered by its own clock."""
    return Buckets(at=clock.now - booted, buckets=buckets)


def numbers(clock: Clock, count: int, booted: float = START - 1000.0) -> range:
    """The numbers of the last buckets that such a node has closed now."""
    behind = int((clock.now - booted) // SECONDS)
    return range(behind - count, behind)
