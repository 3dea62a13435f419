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
    """One GPU: utilisation in percent, memory in bytes. `foreign`: utilisation while programs of others were on it, and
    `memory_foreign` what all but the grid's jobs had of its memory."""

    uuid: Word
    utilisation: MeanMax = MeanMax()
    foreign: MeanMax = MeanMax()
    memory: MeanMax = MeanMax()
    memory_foreign: MeanMax = MeanMax()
    memory_total: Count = 0


class Bucket(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a node measured in ten seconds. `number` counts them by the node's boot-time clock; `samples` went into it,
    each weighted by the time it is about. CPU in cores' worth, memory in bytes, disk and network in bytes per second,
    both directions together; `waiting`: percent of time that programs of others waited for cpu, memory, io.
    `cores` and `memory_total`: what the agent manages. A GPU that could not be read is absent."""

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
