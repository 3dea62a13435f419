"""Buckets: the use of a node over ten seconds each, as its agent reports it."""

import math

import msgspec

from distributed_grid.protocol.resources import Count, Finite, Number, Word

SECONDS = 10
"""Duration of a bucket (s)."""
KEPT = 360
"""Maximum number of buckets that an agent keeps until they are acknowledged: an hour."""
PER_MESSAGE = 60
"""Maximum number of buckets in one message."""


class MeanMax(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Mean and maximum over a bucket; NaN is never told: what was not measured is absent."""

    mean: Finite = 0.0
    most: Finite = 0.0


class GpuBucket(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU: utilisation in percent, memory in bytes. `foreign`: utilisation while foreign programs were on it, and
    `memory_foreign`: its memory used by all except the grid's jobs."""

    uuid: Word
    utilisation: MeanMax = MeanMax()
    foreign: MeanMax = MeanMax()
    memory: MeanMax = MeanMax()
    memory_foreign: MeanMax = MeanMax()
    memory_total: Count = 0


class Bucket(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The measurements of a node in ten seconds. `number` counts buckets by the node's boot-time clock; each of the
    `samples` is weighted by the time it covers. CPU in cores' worth, memory in bytes, disk and network in bytes per
    second, both directions together; `waiting`: percent of time that foreign programs waited for cpu, memory, io.
    `cores` and `memory_total`: those managed by the agent. A GPU that could not be read is absent."""

    number: Number
    samples: Count
    cores: Count
    memory_total: Count
    own_cpu: MeanMax = MeanMax()
    foreign_cpu: MeanMax = MeanMax()
    own_memory: MeanMax = MeanMax()
    foreign_memory: MeanMax = MeanMax()
    disk: MeanMax = MeanMax()
    net: MeanMax = MeanMax()
    waiting: dict[Word, MeanMax] = {}
    gpus: tuple[GpuBucket, ...] = ()


def number_of(at: float) -> int:
    """The number of the bucket that a moment lies in."""
    return math.floor(at / SECONDS)
