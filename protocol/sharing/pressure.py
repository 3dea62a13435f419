"""Pressure: how busy a node is, as one score from 0 to 1. It is computed from one sample or from the mean of several,
for all use and for the owner's use alone. The owner's pressure decides whether the node may lend: a node that is busy
only with the grid's own jobs can lend, and needs nothing."""

from collections.abc import Container

import msgspec

from distributed_grid.protocol.nodes import GpuSample, Sample
from distributed_grid.protocol.resources import Part

CPU, MEMORY, GPU = 0.30, 0.30, 0.40
"""The weights of the score; without a GPU those of CPU and memory are scaled to a sum of 1 (seed 001)."""
_PERCENT = 100.0


class Pressure(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The parts, each from 0 to 1, and their weighted sum `score`. `gpu`: the mean over all GPUs; None: it has none."""

    score: Part
    cpu: Part = 0.0
    memory: Part = 0.0
    gpu: Part | None = None


def weighted(cpu: float, memory: float, gpu: float | None) -> Pressure:
    """The pressure with these parts. Parts outside of 0 to 1 are limited to it; NaN counts as 1: what is not known is
    not idle."""
    cpu, memory = _limited(cpu), _limited(memory)
    if gpu is None:
        return Pressure((CPU * cpu + MEMORY * memory) / (CPU + MEMORY), cpu, memory)
    gpu = _limited(gpu)
    return Pressure(CPU * cpu + MEMORY * memory + GPU * gpu, cpu, memory, gpu)


def _limited(part: float) -> float:
    if part <= 0.0:
        return 0.0
    return part if part < 1.0 else 1.0  # NaN, too


def of_all(sample: Sample, cores: int) -> Pressure:
    """Return the pressure of all use on a node with this many cores."""
    gpu = _mean([_use(one) for one in sample.gpus])
    cpu = _part(sample.own_cpu + sample.foreign_cpu, cores)
    return _waiting(sample, cpu, _part(sample.memory_own + sample.memory_foreign, sample.memory_total), gpu)


def of_owner(sample: Sample, cores: int, lent: Container[str] = ()) -> Pressure:
    """The pressure of what others than the grid's jobs use, which hold the GPUs in `lent`."""
    gpu = _mean([_foreign_use(one, one.uuid in lent) for one in sample.gpus]) if sample.gpus else None
    return _waiting(sample, _part(sample.foreign_cpu, cores), _part(sample.memory_foreign, sample.memory_total), gpu)


def _waiting(sample: Sample, cpu: float, memory: float, gpu: float | None) -> Pressure:
    """Return the pressure with the kernel's figures on waiting (PSI): CPU and memory count at least the part of time in
    which foreign programs waited for them."""
    if told := sample.pressure:
        cpu = max(_limited(cpu), _limited(told.get("cpu", 0.0) / _PERCENT))
        memory = max(_limited(memory), _limited(told.get("memory", 0.0) / _PERCENT))
    return weighted(cpu, memory, gpu)


def _part(used: float, total: float) -> float:
    return used / total if total > 0 else 0.0


def _use(gpu: GpuSample) -> float:
    return 1.0 if gpu.error else gpu.utilisation / _PERCENT


def _foreign_use(gpu: GpuSample, lent: bool) -> float:
    return 1.0 if gpu.error else gpu.foreign_utilisation(lent) / _PERCENT


def _mean(parts: list[float]) -> float | None:
    return sum(parts) / len(parts) if parts else None
