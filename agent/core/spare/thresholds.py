"""A node's limits, the sum of its holdings, and checks of foreign use by device: each check looks at one sample and
returns why something is not lent, as text with the numbers and the setting concerned, or nothing."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from distributed_grid.protocol.nodes import GpuFacts, GpuProcess, GpuSample, OwnerPolicy, Sample
from distributed_grid.protocol.resources import GIB, MIB, MILLI, GpuShare, Grant, Resources, format_bytes

NOISE = 10
"""Percent of one core below which foreign use is noise."""
TOLERANCE_LEAST = 256 * MIB
TOLERANCE_MOST = 2 * GIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When and how much a node lends, and what happens to jobs when its owner is active. Percentages are of foreign
    use, 0 to 100; 100 switches a check off.

    `max_share_cpu` and `cpu_min_cores` in milli-cores, `max_share_gpu` in devices, memory in bytes, times in seconds;
    `max_share_*` None: no limit. `closed_by`: by which setting `can_share` is false. `reserve_*` is always left to the
    owner. `owner_after`: seconds of activity before jobs are affected; `owner_quiet`: seconds of inactivity before the
    owner counts as away. `owner_most`: a job frozen for so long is recalled (0: never); `owner_hold`: a younger job
    never is. `owner_pressure`: percent of time that the owner's programs may wait; `owner_input`: keyboard input counts
    as well."""

    can_share: bool = True
    closed_by: str = "can_share is false"
    max_share_cpu: int | None = None
    max_share_memory: int | None = None
    max_share_gpu: int | None = None
    gpu_utilization_max: float = 20.0
    gpu_memory_min: int = 1024 * MIB
    memory_percent_max: float = 50.0
    memory_min: int = 2 * GIB
    cpu_percent_max: float = 30.0
    cpu_min_cores: int = MILLI
    reserve_cpu: int = 0
    reserve_memory: int = 512 * MIB
    offer_after: float = 4.0
    offer_expiry: float = 300.0
    check_interval: float = 60.0
    max_offers_per_node: int = 5
    owner_policy: OwnerPolicy = OwnerPolicy.SUSPEND
    owner_after: float = 1.0
    owner_quiet: float = 30.0
    owner_most: float = 600.0
    owner_hold: float = 60.0
    owner_pressure: float = 40.0
    owner_input: bool = False


class Holding(msgspec.Struct, frozen=True):
    """An allocation that holds resources of this node; `rss` is what its processes have resident, in bytes, `on_gpus`
    what they have on each GPU, by UUID."""

    allocation: str
    grant: Grant
    rss: int = 0
    on_gpus: tuple[tuple[str, int], ...] = ()

    def gpu_excess(self, uuid: str, total: int) -> int:
        """The bytes that its processes have on a GPU with this total above what was granted of it."""
        used = next((memory for one, memory in self.on_gpus if one == uuid), 0)
        if not used:
            return 0
        return max(0, used - sum(share.reserved(total) for share in self.grant.gpus if share.uuid == uuid))


class Sums(Protocol):
    """Sums of holdings, however they are kept: in Held, or in Holdings as they come and go."""

    @property
    def memory(self) -> int: ...
    @property
    def excess(self) -> int: ...
    @property
    def gpu(self) -> int: ...
    def gpu_milli(self, uuid: str) -> int: ...
    def gpu_memory(self, uuid: str, total: int) -> int: ...
    def gpu_excess(self, uuid: str, total: int) -> int: ...


class Held(msgspec.Struct, frozen=True):
    """The sum of all holdings. `cores` are held exclusively, `shared` maps a core to the milli-cores granted of it,
    `gpus` a UUID to milli-GPUs, `shares` a UUID to its grants; `excess` is memory used by jobs above their grants;
    `on_gpus` are the holdings whose processes have memory on GPUs."""

    ids: tuple[str, ...] = ()
    cores: frozenset[int] = frozenset()
    shared: dict[int, int] = msgspec.field(default_factory=dict)
    memory: int = 0
    excess: int = 0
    gpus: dict[str, int] = msgspec.field(default_factory=dict)
    shares: dict[str, list[GpuShare]] = msgspec.field(default_factory=dict)
    on_gpus: tuple[Holding, ...] = ()

    @property
    def cpu(self) -> int:
        """Milli-cores granted."""
        return len(self.cores) * MILLI + sum(self.shared.values())

    def gpu_milli(self, uuid: str) -> int:
        """Milli-GPUs granted of a GPU."""
        return self.gpus.get(uuid, 0)

    def gpu_memory(self, uuid: str, total: int) -> int:
        """Bytes granted of a GPU with this total."""
        return sum(share.reserved(total) for share in self.shares.get(uuid, ()))

    def gpu_excess(self, uuid: str, total: int) -> int:
        """Bytes that jobs use of a GPU with this total above their grants."""
        return sum(one.gpu_excess(uuid, total) for one in self.on_gpus)

    @property
    def gpu(self) -> int:
        """Milli-GPUs granted."""
        return sum(self.gpus.values())


def tally(holdings: Sequence[Holding]) -> Held:
    """Add up the holdings."""
    if not holdings:
        return Held()
    shared: Counter[int] = Counter()
    gpus: Counter[str] = Counter()
    shares: dict[str, list[GpuShare]] = {}
    for one in holdings:
        if one.grant.shared_core >= 0:
            shared[one.grant.shared_core] += one.grant.shared_milli
        for share in one.grant.gpus:
            gpus[share.uuid] += share.milli
            shares.setdefault(share.uuid, []).append(share)
    return Held(
        ids=tuple(one.allocation for one in holdings),
        cores=frozenset(core for one in holdings for core in one.grant.cores),
        shared=shared,
        memory=sum(one.grant.memory for one in holdings),
        excess=sum(max(0, one.rss - one.grant.memory) for one in holdings),
        gpus=gpus,
        shares=shares,
        on_gpus=tuple(one for one in holdings if one.on_gpus),
    )


def tolerance(memory: int) -> int:
    """Tolerance for an amount of memory: 5 %, from 256 MiB to 2 GiB. A smaller change makes no new offer, so a claim is
    not refused for it either."""
    return max(TOLERANCE_LEAST, min(memory // 20, TOLERANCE_MOST))


def lendable(limits: Limits, cores: Sequence[int], memory: int, gpus: Sequence[GpuFacts]) -> Resources:
    """The maximum that a node with these cores, bytes and GPUs can lend."""
    if not limits.can_share:
        return Resources()
    cpu, left = max(0, len(cores) * MILLI - limits.reserve_cpu), max(0, memory - limits.reserve_memory)
    most_gpus = at_most(len(gpus), limits.max_offers_per_node)  # each is an item of the offer
    return Resources(
        at_most(cpu if cpu >= limits.cpu_min_cores else 0, limits.max_share_cpu),
        at_most(left if left >= limits.memory_min else 0, limits.max_share_memory),
        at_most(most_gpus * MILLI, None if limits.max_share_gpu is None else limits.max_share_gpu * MILLI),
    )


def at_most(amount: int, most: int | None) -> int:
    """The minimum of both; None: no limit."""
    return amount if most is None else max(0, min(amount, most))


OFF = 100.0
"""Percentage limits from here on are off."""


def percent(value: float) -> str:
    """A percentage rounded up, so that 30.2 does not read as within 30."""
    return f"{math.ceil(value - 1e-9)} %"


def cpu_percent(sample: Sample, cores: int) -> float:
    """Foreign CPU use of the managed cores."""
    return 100.0 * sample.foreign_cpu / cores if cores else 0.0


def cpu_trouble(limits: Limits, sample: Sample, cores: int) -> str:
    """Why no core of the node is lent."""
    used = cpu_percent(sample, cores)
    if limits.cpu_percent_max < OFF and used > limits.cpu_percent_max:
        return f"cpu {percent(used)} > {limits.cpu_percent_max:g} % (cpu_percent_max)"
    return ""


def core_troubles(limits: Limits, sample: Sample, cores: Iterable[int]) -> dict[int, str]:
    """Why cores are not lent, of those that are not. A core that was not measured does not count as idle."""
    most = limits.cpu_percent_max if limits.cpu_percent_max < OFF else math.inf
    found: dict[int, str] = {}
    for core in cores:
        used = sample.cores.get(core)
        if used is None:
            found[core] = f"core {core} was not measured"
        elif used > most:
            found[core] = f"core {core} {used} % > {limits.cpu_percent_max:g} % (cpu_percent_max)"
    return found


def crowded(limits: Limits, sample: Sample, held: Collection[int], free: Iterable[int]) -> dict[int, str]:
    """Why cores are not lent although each one alone could be: with jobs on all of them the owner would count as active
    at once, because foreign use of lent cores is added up. `held` cores count first, then the `free` ones in their
    order."""
    if limits.cpu_percent_max >= OFF or limits.owner_policy is OwnerPolicy.CONTINUE:
        return {}
    total, whys = 0, dict[int, str]()
    for core in (*held, *free):
        if (used := sample.cores.get(core, 0)) < NOISE:
            continue
        if total + used > limits.cpu_percent_max:
            most = f"{limits.cpu_percent_max:g} % (cpu_percent_max)"
            whys[core] = f"core {core} {used} %: with it, others use more of the lent cores than {most}"
        if core in held or core not in whys:
            total += used
    return whys


def clearly_busy(limits: Limits, sample: Sample, core: int) -> str:
    """Why this core must not be claimed: it was not measured, or foreign use is above the middle between the limit and
    100 %. With the limit itself, one noisy moment would refuse a claim."""
    used, line = sample.cores.get(core), (limits.cpu_percent_max + OFF) / 2
    if used is None:
        return f"core {core} was not measured"
    if limits.cpu_percent_max < OFF and used > line:
        return f"others use {used} % of core {core} now (more than {line:g} %)"
    return ""


def memory_trouble(limits: Limits, sample: Sample) -> str:
    """Why no memory of the node is lent."""
    if not sample.memory_total:
        return "memory was not measured"
    used = 100.0 * sample.memory_foreign / sample.memory_total
    if limits.memory_percent_max < OFF and used > limits.memory_percent_max:
        return f"memory {percent(used)} > {limits.memory_percent_max:g} % (memory_percent_max)"
    free = max(0, sample.memory_total - sample.memory_foreign - limits.reserve_memory)
    if free < limits.memory_min:
        return f"memory {format_bytes(free)} free < {format_bytes(limits.memory_min)} (memory_min_gb)"
    return ""


def foreign_on(limits: Limits, gpu: GpuSample) -> list[GpuProcess]:
    """Foreign processes for which the GPU is not lent, those with most memory first: all that compute; and those that
    only draw, such as a display server, while they use more of it than the limit, or how much is not known."""
    foreign = sorted((one for one in gpu.processes if not one.own), key=lambda one: (-one.memory, one.pid))
    drawing = [one for one in foreign if one.graphics]
    known = all(one.utilisation >= 0 for one in drawing)
    if known and sum(one.utilisation for one in drawing) <= limits.gpu_utilization_max:
        return [one for one in foreign if not one.graphics]
    return foreign


def use_by(one: GpuProcess) -> str:
    """Describe the use of a GPU by a foreign process."""
    who = f"process {one.pid}" + (f" of {one.user}" if one.user else "")
    return (
        f"{who} draws with {percent(one.utilisation)}" if one.utilisation > 0 else f"{who} uses {one.memory // MIB} MiB"
    )


def gpu_trouble(limits: Limits, gpu: GpuSample | None, ours: bool) -> str:
    """Return why a GPU is not lent; empty if it is. `ours`: a job of the grid holds it or did a moment ago, so that its
    utilisation and memory without a process are attributed to that job."""
    if gpu is None:
        return "not seen in the last measurement"
    if gpu.error:
        return f"cannot be read: {gpu.error}"
    if foreign := foreign_on(limits, gpu):
        more = len(foreign) - 1
        return use_by(foreign[0]) + (f", and {more} more" if more else "")
    if not ours and gpu.utilisation > limits.gpu_utilization_max and limits.gpu_utilization_max < OFF:
        return f"gpu {percent(gpu.utilisation)} > {limits.gpu_utilization_max:g} % (gpu_utilization_max)"
    free = gpu_room(gpu, ours)
    if free < limits.gpu_memory_min:
        return f"{free // MIB} MiB free < {limits.gpu_memory_min // MIB} MiB (gpu_memory_min_mb)"
    return ""


def gpu_room(gpu: GpuSample, ours: bool) -> int:
    """Bytes of the GPU that are not in foreign use."""
    own = sum(one.memory for one in gpu.processes if one.own)
    others = sum(one.memory for one in gpu.processes if not one.own)
    return max(0, gpu.memory_total - (others if ours else max(others, gpu.memory_used - own)))
