"""The second look: whether what an allocation is to get is really there now, in the agent's own books and in a fresh
sample. The coordinator decides by offers that are a moment old; here the moment is over."""

from collections.abc import Callable

from distributed_grid.agent.core.spare.plan import memory_left
from distributed_grid.agent.core.spare.thresholds import (
    Held,
    Limits,
    clearly_busy,
    foreign_on,
    gpu_room,
    gpu_trouble,
    memory_trouble,
    slack,
)
from distributed_grid.protocol.messages import Stale
from distributed_grid.protocol.nodes import GpuSample, NodeFacts, Sample
from distributed_grid.protocol.resources import MILLI, GpuShare, Grant, format_bytes, format_milli


def check(
    limits: Limits, facts: NodeFacts, sample: Sample, held: Held, grant: Grant, allocation: str,
    ours: Callable[[str], bool],
) -> Stale | None:  # fmt: skip
    """None if the grant can be given; else what is in the way. `held` is all but this allocation."""
    if not limits.can_share:
        return Stale(allocation, "this node shares nothing (can_share is false)")
    if grant.virtual != facts.virtual:
        return Stale(allocation, f"the cores of this node are {'virtual' if facts.virtual else 'real'}")
    return (
        _cores(limits, facts, sample, held, grant, allocation)
        or _memory(limits, sample, held, grant, allocation)
        or _gpus(limits, facts, sample, held, grant, allocation, ours)
    )


def _cores(limits: Limits, facts: NodeFacts, sample: Sample, held: Held, grant: Grant, allocation: str) -> Stale | None:
    wanted = grant.cores if grant.shared_core < 0 else (*grant.cores, grant.shared_core)
    if len(set(wanted)) != len(wanted):
        return Stale(allocation, f"a core is named twice in {wanted}")
    for core in wanted:
        why = _core(limits, facts, sample, held, core)
        if not why and core in held.shared and core != grant.shared_core:
            why = f"core {core} is shared by fractional jobs"
        if why:
            return Stale(allocation, why, device=str(core))
    if grant.shared_core >= 0 and held.shared.get(grant.shared_core, 0) + grant.shared_milli > MILLI:
        left = format_milli(MILLI - held.shared.get(grant.shared_core, 0))
        return Stale(allocation, f"only {left} of core {grant.shared_core} is spare", device=str(grant.shared_core))
    cpu = grant.resources.cpu
    if limits.max_share_cpu is not None and cpu and held.cpu + cpu > limits.max_share_cpu:
        most, lent = format_milli(limits.max_share_cpu), format_milli(held.cpu)
        return Stale(allocation, f"{lent} cores are lent of {most} at most (max_share_cpu)")
    return None


def _core(limits: Limits, facts: NodeFacts, sample: Sample, held: Held, core: int) -> str:
    if core not in facts.cores:
        return f"core {core} is not managed by this agent"
    if core in held.cores:
        return f"core {core} is held by {held.cores[core]}"
    return clearly_busy(limits, sample, core)


def _memory(limits: Limits, sample: Sample, held: Held, grant: Grant, allocation: str) -> Stale | None:
    if not grant.memory:
        return None
    if limits.max_share_memory is not None and held.memory + grant.memory > limits.max_share_memory:
        lent, most = format_bytes(held.memory), format_bytes(limits.max_share_memory)
        return Stale(allocation, f"{lent} memory is lent of {most} at most (max_share_memory_gb)", device="memory")
    if why := memory_trouble(limits, sample):
        return Stale(allocation, f"{why} now", device="memory")
    left = memory_left(limits, sample, held)
    if grant.memory > left + slack(left):
        why = f"{format_bytes(left)} memory is spare now, {format_bytes(grant.memory)} was to be had"
        return Stale(allocation, why, device="memory", memory=left)
    return None


def _gpus(
    limits: Limits, facts: NodeFacts, sample: Sample, held: Held, grant: Grant, allocation: str,
    ours: Callable[[str], bool],
) -> Stale | None:  # fmt: skip
    if len({share.uuid for share in grant.gpus}) != len(grant.gpus):
        return Stale(allocation, "a GPU is named twice")
    most = limits.max_share_gpu
    if most is not None and grant.gpus and held.gpu + grant.resources.gpu > most * MILLI:
        return Stale(allocation, f"{format_milli(held.gpu)} GPUs are lent of {most} at most (max_share_gpu)")
    for share in grant.gpus:
        if stale := _gpu(limits, facts, sample, held, share, allocation, ours(share.uuid)):
            return stale
    return None


def _gpu(
    limits: Limits, facts: NodeFacts, sample: Sample, held: Held, share: GpuShare, allocation: str, ours: bool
) -> Stale | None:
    uuid = share.uuid
    if all(uuid != gpu.uuid for gpu in facts.gpus):
        return Stale(allocation, f"GPU {uuid} is not managed by this agent", device=uuid)
    if held.gpus.get(uuid, 0) + share.milli > MILLI:
        return Stale(allocation, f"GPU {uuid} is held by {held.on_gpu[uuid]}", device=uuid)
    gpu = next((one for one in sample.gpus if one.uuid == uuid), None)
    why = gpu_trouble(limits, gpu, ours)
    if not why:
        return _gpu_memory(held, share, allocation, gpu, ours) if gpu is not None and share.memory else None
    if gpu is not None and not gpu.error and (foreign := foreign_on(gpu)):
        first = foreign[0]
        return Stale(allocation, why, uuid, first.pid, first.user, first.memory)
    return Stale(allocation, why, device=uuid)


def _gpu_memory(held: Held, share: GpuShare, allocation: str, gpu: GpuSample, ours: bool) -> Stale | None:
    """Whether what was asked for of its memory is nobody's. Others may have taken some since the offer, as much as
    makes no new offer."""
    left = gpu_room(gpu, ours) - held.gpu_memory(share.uuid, gpu.memory_total)
    if share.memory <= left + slack(left):
        return None
    why = f"{format_bytes(max(0, left))} of GPU {share.uuid} is spare now, {format_bytes(share.memory)} was to be had"
    return Stale(allocation, why, device=share.uuid, memory=max(0, left))
