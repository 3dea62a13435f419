"""The claim: whether the resources of a launch are available now, as the offer that the coordinator saw is older. The
table checks the `conflict` with other holdings when a launch comes; the lender checks the rest by a new sample."""

from collections.abc import Callable, Sequence

from distributed_grid.agent.core.spare.plan import memory_left
from distributed_grid.agent.core.spare.thresholds import (
    Held,
    Holding,
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


def conflict(holdings: Sequence[Holding], grant: Grant) -> tuple[str, str]:
    """Why this grant conflicts with the holdings, and the core or GPU concerned; empty: it does not."""
    cores = {*grant.cores, grant.shared_core} - {-1}
    if len(cores) < len(grant.cores) + (grant.shared_core >= 0):
        return "a core is named twice", ""
    if len({share.uuid for share in grant.gpus}) < len(grant.gpus):
        return "a GPU is named twice", ""
    sharers: dict[int, list[Holding]] = {}
    on_gpus: dict[str, dict[str, int]] = {}
    for one in holdings:
        if taken := cores.intersection(one.grant.cores):
            core = min(taken)
            return f"core {core} is held by {one.allocation}", str(core)
        sharers.setdefault(one.grant.shared_core, []).append(one)
        for share in one.grant.gpus:
            on_gpus.setdefault(share.uuid, {})[one.allocation] = share.milli
    for core in cores.intersection(sharers).difference((grant.shared_core,)):
        return f"core {core} is shared by {', '.join(one.allocation for one in sharers[core])}", str(core)
    left = MILLI - sum(one.grant.shared_milli for one in sharers.get(grant.shared_core, ()))
    if grant.shared_core >= 0 and grant.shared_milli > left:
        return f"core {grant.shared_core} has only {format_milli(left)} left", str(grant.shared_core)
    for share in grant.gpus:
        holders = on_gpus.get(share.uuid, {})
        if sum(holders.values()) + share.milli > MILLI:
            return f"GPU {share.uuid} is held by {', '.join(holders) or 'nobody, and has less'}", share.uuid
    return "", ""


def check(
    limits: Limits, facts: NodeFacts, sample: Sample, held: Held, grant: Grant, allocation: str,
    ours: Callable[[str], bool],
) -> Stale | None:  # fmt: skip
    """None if the grant can be given; else why not. `held` is all but this allocation, without conflict."""
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
    for core in grant.cores if grant.shared_core < 0 else (*grant.cores, grant.shared_core):
        if core not in facts.cores:
            return Stale(allocation, f"core {core} is not managed by this agent", device=str(core))
        if why := clearly_busy(limits, sample, core):
            return Stale(allocation, why, device=str(core))
    cpu = grant.resources.cpu
    if limits.max_share_cpu is not None and cpu and held.cpu + cpu > limits.max_share_cpu:
        most, lent = format_milli(limits.max_share_cpu), format_milli(held.cpu)
        return Stale(allocation, f"{lent} cores are lent of {most} at most (max_share_cpu)")
    return None


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
    gpu = next((one for one in sample.gpus if one.uuid == uuid), None)
    why = gpu_trouble(limits, gpu, ours)
    if not why:
        return _gpu_memory(held, share, allocation, gpu, ours) if gpu is not None and share.memory else None
    if gpu is not None and not gpu.error and (foreign := foreign_on(gpu)):
        first = foreign[0]
        return Stale(allocation, why, uuid, first.pid, first.user, first.memory)
    return Stale(allocation, why, device=uuid)


def _gpu_memory(held: Held, share: GpuShare, allocation: str, gpu: GpuSample, ours: bool) -> Stale | None:
    """Whether the memory asked for is unused. Others may have taken some since the offer, up to what makes no new
    offer."""
    left = gpu_room(gpu, ours) - held.gpu_memory(share.uuid, gpu.memory_total)
    if share.memory <= left + slack(left):
        return None
    why = f"{format_bytes(max(0, left))} of GPU {share.uuid} is spare now, {format_bytes(share.memory)} was to be had"
    return Stale(allocation, why, device=share.uuid, memory=max(0, left))
