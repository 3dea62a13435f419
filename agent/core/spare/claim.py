"""The claim: checks at a launch whether the granted resources are available now, because the offer that the coordinator
saw is older. The table checks the `conflict` with other holdings when a launch arrives; the lender checks the rest with
a new sample."""

from collections.abc import Callable, Container

from distributed_grid.agent.core.spare.holdings import Holdings, Others
from distributed_grid.agent.core.spare.plan import memory_left
from distributed_grid.agent.core.spare.thresholds import (
    Limits,
    clearly_busy,
    gpu_room,
    gpu_trouble,
    memory_trouble,
    tolerance,
)
from distributed_grid.protocol.messages import Stale
from distributed_grid.protocol.nodes import GpuSample, NodeFacts, Sample
from distributed_grid.protocol.resources import MILLI, GpuShare, Grant, format_bytes, format_milli


def conflict(held: Holdings, grant: Grant) -> tuple[str, str]:
    """Why this grant conflicts with the holdings, and the core or GPU concerned; empty: it does not."""
    cores = {*grant.cores, grant.shared_core} - {-1}
    if len(cores) < len(grant.cores) + (grant.shared_core >= 0):
        return "a core is named twice", ""
    if len({share.uuid for share in grant.gpus}) < len(grant.gpus):
        return "a GPU is named twice", ""
    core, holder = held.first(cores)
    if holder:
        return f"core {core} is held by {holder}", str(core)
    shared = [core for core in cores if core in held.sharers and core != grant.shared_core]
    if shared:
        return f"core {min(shared)} is shared by {', '.join(held.sharers[min(shared)])}", str(min(shared))
    left = MILLI - held.parts.get(grant.shared_core, 0)
    if grant.shared_core >= 0 and grant.shared_milli > left:
        return f"core {grant.shared_core} has only {format_milli(left)} left", str(grant.shared_core)
    for share in grant.gpus:
        if held.gpu_milli(share.uuid) + share.milli > MILLI:
            holders = ", ".join(held.on_gpu.get(share.uuid, ()))
            return f"GPU {share.uuid} is held by {holders or 'nobody, and has less'}", share.uuid
    return "", ""


def slack_conflict(held: Holdings, grant: Grant) -> str:
    """Why this grant on slack conflicts with the holdings; empty: it does not. Each core has one such user."""
    holder = held.all.get(grant.holder)
    if holder is None:
        return f"{grant.holder}, whose cores it is to run on, does not hold any here"
    if not {*grant.slack} <= {*holder.grant.cores} or grant.virtual != holder.grant.virtual:
        return f"{grant.holder} does not hold the cores that it is to run on"
    if grant.cores or grant.shared_core >= 0 or grant.gpus:
        return f"it holds cores or GPUs beside those of {grant.holder}"
    if not 0 < grant.slack_milli <= len(grant.slack) * MILLI:
        return f"it is to get {format_milli(grant.slack_milli)} of {len(grant.slack)} cores of {grant.holder}"
    for key, one in held.all.items():
        if one.grant.slack and not {*one.grant.slack}.isdisjoint(grant.slack):
            return f"{key} runs on cores of {grant.holder} already"
    return ""


def check(
    limits: Limits, facts: NodeFacts, cores: Container[int], sample: Sample, held: Others, grant: Grant,
    allocation: str, ours: Callable[[str], bool],
) -> Stale | None:  # fmt: skip
    """None if the grant can be given; else why not. `cores` are the managed ones, `held` is all but this allocation,
    without conflict."""
    if not limits.can_share:
        return Stale(allocation, f"this node shares nothing ({limits.closed_by})")
    if grant.virtual != facts.virtual:
        return Stale(allocation, f"the cores of this node are {'virtual' if facts.virtual else 'real'}")
    return (
        _cores(limits, cores, sample, held, grant, allocation)
        or _memory(limits, sample, held, grant, allocation)
        or _gpus(limits, facts, sample, held, grant, allocation, ours)
    )


def _cores(
    limits: Limits, cores: Container[int], sample: Sample, held: Others, grant: Grant, allocation: str
) -> Stale | None:
    for core in (*grant.cores, *grant.slack) if grant.shared_core < 0 else (*grant.cores, grant.shared_core):
        if core not in cores:
            return Stale(allocation, f"core {core} is not managed by this agent", device=str(core))
        if why := clearly_busy(limits, sample, core):
            return Stale(allocation, why, device=str(core))
    cpu = grant.resources.cpu
    if limits.max_share_cpu is not None and cpu and held.cpu + cpu > limits.max_share_cpu:
        most, lent = format_milli(limits.max_share_cpu), format_milli(held.cpu)
        return Stale(allocation, f"{lent} cores are lent of {most} at most (max_share_cpu)")
    return None


def _memory(limits: Limits, sample: Sample, held: Others, grant: Grant, allocation: str) -> Stale | None:
    if not grant.memory:
        return None
    if limits.max_share_memory is not None and held.memory + grant.memory > limits.max_share_memory:
        lent, most = format_bytes(held.memory), format_bytes(limits.max_share_memory)
        return Stale(allocation, f"{lent} memory is lent of {most} at most (max_share_memory_gb)", device="memory")
    if why := memory_trouble(limits, sample):
        return Stale(allocation, f"{why} now", device="memory")
    left = memory_left(limits, sample, held.memory + held.excess)
    if grant.memory > left + tolerance(left):
        why = f"{format_bytes(left)} memory is spare now, {format_bytes(grant.memory)} was to be had"
        return Stale(allocation, why, device="memory")
    return None


def _gpus(
    limits: Limits, facts: NodeFacts, sample: Sample, held: Others, grant: Grant, allocation: str,
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
    limits: Limits, facts: NodeFacts, sample: Sample, held: Others, share: GpuShare, allocation: str, ours: bool
) -> Stale | None:
    uuid = share.uuid
    if all(uuid != gpu.uuid for gpu in facts.gpus):
        return Stale(allocation, f"GPU {uuid} is not managed by this agent", device=uuid)
    gpu = next((one for one in sample.gpus if one.uuid == uuid), None)
    why = gpu_trouble(limits, gpu, ours)
    if not why:
        return _gpu_memory(held, share, allocation, gpu, ours) if gpu is not None and share.memory else None
    return Stale(allocation, why, device=uuid)


def _gpu_memory(held: Others, share: GpuShare, allocation: str, gpu: GpuSample, ours: bool) -> Stale | None:
    """Whether the memory asked for is unused. Others, or jobs that use more than they asked for, may have taken some
    since the offer, up to what makes no new offer."""
    total = gpu.memory_total
    left = gpu_room(gpu, ours) - held.gpu_memory(share.uuid, total) - held.gpu_excess(share.uuid, total)
    if share.memory <= left + tolerance(left):
        return None
    why = f"{format_bytes(max(0, left))} of GPU {share.uuid} is spare now, {format_bytes(share.memory)} was to be had"
    return Stale(allocation, why, device=share.uuid)
