"""Whether others use a node, device by device: each function looks at one sample and says in words, with the numbers
and the setting they offend, why something is not to be lent; or "" where nothing stands against it."""

import math

from distributed_grid.agent.core.spare.limits import Limits
from distributed_grid.protocol.nodes import GpuProcess, GpuSample, Sample
from distributed_grid.protocol.resources import MIB, format_bytes

OFF = 100.0
"""A percentage limit from here up is no limit."""


def percent(value: float) -> str:
    """A percentage for people, rounded up, so that 30.2 does not read as if it were within 30."""
    return f"{math.ceil(value - 1e-9)} %"


def cpu_percent(sample: Sample, cores: int) -> float:
    """Foreign CPU use over the managed cores."""
    return 100.0 * sample.foreign_cpu / cores if cores else 0.0


def cpu_trouble(limits: Limits, sample: Sample, cores: int) -> str:
    """Why no core of the node is to be lent."""
    used = cpu_percent(sample, cores)
    if limits.cpu_percent_max < OFF and used > limits.cpu_percent_max:
        return f"cpu {percent(used)} > {limits.cpu_percent_max:g} % (cpu_percent_max)"
    return ""


def core_trouble(limits: Limits, sample: Sample, core: int) -> str:
    """Why this one core is not to be lent. A core that was not measured is not idle."""
    used = sample.cores.get(core)
    if used is None:
        return f"core {core} was not measured"
    if limits.cpu_percent_max < OFF and used > limits.cpu_percent_max:
        return f"core {core} {used} % > {limits.cpu_percent_max:g} % (cpu_percent_max)"
    return ""


def clearly_busy(limits: Limits, sample: Sample, core: int) -> str:
    """Why this core must not even be claimed: others use it by more than halfway from the limit to all of it. Offers
    follow the limit itself; a claim would be refused for one noisy moment if it did too."""
    used, line = sample.cores.get(core, 0), (limits.cpu_percent_max + OFF) / 2
    if limits.cpu_percent_max < OFF and used > line:
        return f"others use {used} % of core {core} now (more than {line:g} %)"
    return ""


def memory_trouble(limits: Limits, sample: Sample) -> str:
    """Why no memory of the node is to be lent."""
    if not sample.memory_total:
        return "memory was not measured"
    used = 100.0 * sample.memory_foreign / sample.memory_total
    if limits.memory_percent_max < OFF and used > limits.memory_percent_max:
        return f"memory {percent(used)} > {limits.memory_percent_max:g} % (memory_percent_max)"
    free = max(0, sample.memory_total - sample.memory_foreign - limits.reserve_memory)
    if free < limits.memory_min:
        return f"memory {format_bytes(free)} free < {format_bytes(limits.memory_min)} (memory_min_gb)"
    return ""


def foreign_on(gpu: GpuSample) -> list[GpuProcess]:
    """Processes on the GPU that are not the grid's, those with most memory first."""
    return sorted((one for one in gpu.processes if not one.own), key=lambda one: (-one.memory, one.pid))


def gpu_trouble(limits: Limits, gpu: GpuSample | None, ours: bool) -> str:
    """Why this GPU is not to be lent. `ours`: a job of the grid holds it or did a moment ago, so that its utilisation
    and memory without a process to it are put down to that job."""
    if gpu is None:
        return "not seen in the last measurement"
    if gpu.error:
        return f"cannot be read: {gpu.error}"
    if foreign := foreign_on(gpu):
        first, more = foreign[0], len(foreign) - 1
        who = f"process {first.pid}" + (f" of {first.user}" if first.user else "")
        return f"{who} uses {first.memory // MIB} MiB" + (f", and {more} more" if more else "")
    if not ours and gpu.utilisation > limits.gpu_utilization_max and limits.gpu_utilization_max < OFF:
        return f"gpu {percent(gpu.utilisation)} > {limits.gpu_utilization_max:g} % (gpu_utilization_max)"
    free = gpu_room(gpu, ours)
    if free < limits.gpu_memory_min:
        return f"{free // MIB} MiB free < {limits.gpu_memory_min // MIB} MiB (gpu_memory_min_mb)"
    return ""


def gpu_room(gpu: GpuSample, ours: bool) -> int:
    """Bytes of the GPU that others leave."""
    own = sum(one.memory for one in gpu.processes if one.own)
    others = sum(one.memory for one in gpu.processes if not one.own)
    return max(0, gpu.memory_total - (others if ours else max(others, gpu.memory_used - own)))
