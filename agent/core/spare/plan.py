"""Computes an offer from idle and held resources: by name, within the node's limits."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from distributed_grid.agent.core.spare.thresholds import Held, Limits, Sums, at_most, gpu_room, tolerance
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, Sample, Withheld
from distributed_grid.protocol.resources import MIB, MILLI, format_bytes, format_milli
from distributed_grid.protocol.text import counted

K = TypeVar("K")
NUMBERS = re.compile(r"[\d.]+")
STEP = 16 * MIB
"""Memory is offered in multiples of this many bytes."""


class Idle(msgspec.Struct, frozen=True):
    """Result of the hysteresis: the cores and GPUs that may be lent, and why others may not. `most` is the number of
    whole cores left by others' total use."""

    cores: frozenset[int]
    most: int
    gpus: frozenset[str]
    node: str = ""
    cpu: str = ""
    busy_cores: str = ""
    memory: str = ""
    gpu_whys: tuple[tuple[str, str], ...] = ()
    gpu_error: str = ""


class Plan(msgspec.Struct, frozen=True):
    """An offer without number and time."""

    cores: tuple[int, ...] = ()
    shares: tuple[tuple[int, int], ...] = ()
    memory: int = 0
    gpus: tuple[GpuOffer, ...] = ()
    withheld: tuple[Withheld, ...] = ()


class Supply(msgspec.Struct, frozen=True):
    """The resources of a node in the grid, offered and held: unchanged by the start or end of a job, so that only its
    owner or a limit causes a new offer."""

    cpu: tuple[tuple[int, int], ...]
    memory: int
    gpus: tuple[tuple[str, int], ...]
    rooms: tuple[tuple[str, int], ...]
    withheld: tuple[tuple[str, str], ...]

    def differs(self, before: "Supply") -> bool:
        """Whether it differs enough from `before` for a new offer."""
        if (self.cpu, self.gpus, self.withheld) != (before.cpu, before.gpus, before.withheld):
            return True
        if bool(self.memory) != bool(before.memory) or abs(self.memory - before.memory) > tolerance(before.memory):
            return True
        rooms = dict(before.rooms)
        return any(abs(room - rooms.get(uuid, room)) > tolerance(room) for uuid, room in self.rooms)


def make(
    limits: Limits, cores: Sequence[int], gpus: Sequence[GpuFacts], sample: Sample, idle: Idle, held: Held,
    preferred: frozenset[int] = frozenset(), ours: Callable[[str], bool] = bool,
) -> Plan:  # fmt: skip
    """Return the largest possible offer. `preferred`: cores preferred among equals, those offered so far; `ours`:
    whether the use of a GPU is attributed to the grid's jobs."""
    if idle.node:
        return Plan(withheld=(Withheld("node", idle.node),))
    withheld: list[Withheld] = []
    whole, shares = _cpu(limits, cores, sample, idle, held, preferred, withheld)
    memory = spare_memory(limits, sample, idle, held, withheld)
    too_many = _too_many(limits)
    most = gpu_limit(limits, bool(whole or shares or held.cpu), bool(memory or held.memory))
    if limits.max_offers_per_node < 2 and memory:
        memory = 0 if (whole or shares or limits.max_offers_per_node < 1) else memory
        withheld.append(Withheld("memory", too_many))
    if limits.max_offers_per_node < 1:
        whole, shares = (), ()
        withheld.append(Withheld("cpu", too_many))
    devices = spare_gpus(limits, gpus, sample, idle, held, most, ours, withheld)
    return Plan(whole, shares, memory, devices, tuple(withheld))


def rank(sample: Sample, preferred: frozenset[int], core: int) -> tuple[int, bool]:
    """Return the sort key of a free core in the order in which cores are offered; equal cores are ordered by number."""
    return sample.cores.get(core, 0) // 10, core not in preferred


def gpu_limit(limits: Limits, cpu: bool, memory: bool) -> int:
    """Return how many GPUs may be offered. `cpu` and `memory`: whether there are any, offered or held."""
    return max(0, limits.max_offers_per_node - cpu - memory)


def _too_many(limits: Limits) -> str:
    return f"no more than {counted(limits.max_offers_per_node, 'offer')} (max_offers_per_node)"


def _cpu(
    limits: Limits, cores: Sequence[int], sample: Sample, idle: Idle, held: Held, preferred: frozenset[int],
    withheld: list[Withheld],
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:  # fmt: skip
    """Spare whole cores, idlest first, and the spare parts of cores shared by fractional jobs."""
    if idle.cpu:
        withheld.append(Withheld("cpu", idle.cpu))
        return (), ()
    if idle.busy_cores:
        withheld.append(Withheld("cpu", idle.busy_cores))
    usable = min(idle.most, len(idle.cores | held.cores | held.shared.keys()))
    if usable * MILLI < limits.cpu_min_cores:
        need = format_milli(limits.cpu_min_cores)
        withheld.append(Withheld("cpu", f"{max(0, usable)} idle cores < {need} (cpu_min_cores)"))
        return (), ()
    left = at_most(len(cores) * MILLI, limits.max_share_cpu) - held.cpu
    shares = []
    for core in sorted(held.shared.keys() & idle.cores):
        share = max(0, min(MILLI - held.shared[core], left))
        if share:
            shares.append((core, share))
            left -= share
    free = [core for core in cores if core in idle.cores and core not in held.cores and core not in held.shared]
    room = max(0, idle.most - len(held.cores) - len(held.shared))
    free.sort(key=lambda core: (*rank(sample, preferred, core), core))
    if room < len(free):
        use = f"others use {sample.foreign_cpu:.1f} cores' worth"
        if limits.reserve_cpu:
            use += f", reserve_cpu is {format_milli(limits.reserve_cpu)}"
        withheld.append(Withheld("cpu", f"{len(free) - room} of {len(free)} free cores kept back: {use}"))
        free = free[:room]
    count = max(0, left) // MILLI
    if count < len(free):
        over, rest = free[count], max(0, left) % MILLI
        free = free[:count]
        if rest:
            shares.append((over, rest))
        withheld.append(Withheld("cpu", f"no more than {format_milli(limits.max_share_cpu or 0)} (max_share_cpu)"))
    return tuple(sorted(free, key=lambda core: (sample.cores.get(core, 0), core))), tuple(shares)


def spare_memory(limits: Limits, sample: Sample, idle: Idle, held: Sums, withheld: list[Withheld]) -> int:
    """Spare bytes: what others leave, less the owner's reserve, less what is granted or used above that."""
    if idle.memory:
        withheld.append(Withheld("memory", idle.memory))
        return 0
    spare = memory_left(limits, sample, held.memory + held.excess)
    capped = at_most(spare, None if limits.max_share_memory is None else limits.max_share_memory - held.memory)
    if capped < spare:
        withheld.append(
            Withheld("memory", f"no more than {format_bytes(limits.max_share_memory or 0)} (max_share_memory_gb)")
        )
    return capped // STEP * STEP


def memory_left(limits: Limits, sample: Sample, lent: int) -> int:
    """Bytes that are not used, reserved or `lent`: granted, or used by jobs above that."""
    free = sample.memory_total - sample.memory_foreign - limits.reserve_memory
    return max(0, free - lent)


def spare_gpus(
    limits: Limits, gpus: Sequence[GpuFacts], sample: Sample, idle: Idle, held: Sums, most: int,
    ours: Callable[[str], bool], withheld: list[Withheld],
) -> tuple[GpuOffer, ...]:  # fmt: skip
    """Spare GPUs, those with most free memory first, `most` at most."""
    if idle.gpu_error:
        withheld.append(Withheld("gpu", idle.gpu_error))
    withheld.extend(Withheld(uuid, why) for uuid, why in idle.gpu_whys)
    too_many = _too_many(limits)
    seen = {gpu.uuid: gpu for gpu in sample.gpus}
    found = []
    for facts in gpus:
        milli = MILLI - held.gpu_milli(facts.uuid)
        if facts.uuid not in idle.gpus or milli <= 0:
            continue
        gpu = seen[facts.uuid]
        excess = held.gpu_excess(facts.uuid, gpu.memory_total)
        free = max(0, gpu_room(gpu, ours(facts.uuid)) - held.gpu_memory(facts.uuid, gpu.memory_total) - excess)
        if excess and free < limits.gpu_memory_min:
            least = f"{free // MIB} MiB free < {limits.gpu_memory_min // MIB} MiB (gpu_memory_min_mb)"
            withheld.append(Withheld(facts.uuid, f"{least}: jobs use {format_bytes(excess)} more than they asked for"))
            continue
        found.append(GpuOffer(facts.uuid, facts.index, facts.model, gpu.memory_total or facts.memory, free, milli))
    found.sort(key=lambda one: (-(one.memory_free // (256 * MIB)), one.index, one.uuid))
    left = at_most(len(gpus) * MILLI, None if limits.max_share_gpu is None else limits.max_share_gpu * MILLI) - held.gpu
    offers: list[GpuOffer] = []
    for one in found:
        milli = min(one.milli, left)
        if milli <= 0:
            withheld.append(Withheld(one.uuid, f"no more than {limits.max_share_gpu} (max_share_gpu)"))
        elif len(offers) == most:
            withheld.append(Withheld(one.uuid, too_many))
        else:
            left -= milli
            offers.append(msgspec.structs.replace(one, milli=milli))
    return tuple(offers)


def supply(plan: Plan, idle: Idle, held: Held, sample: Sample, ours: Callable[[str], bool]) -> Supply:
    """Return the resources of the node in the grid, offered or held. The reasons why single cores are busy are not part
    of it."""
    cpu = dict.fromkeys(plan.cores, MILLI) | dict.fromkeys(held.cores, MILLI)
    gpus = {gpu.uuid: gpu.milli for gpu in plan.gpus}
    return Supply(
        cpu=tuple(sorted(_added(cpu, plan.shares, held.shared.items()).items())),
        memory=plan.memory + held.memory,
        gpus=tuple(sorted(_added(gpus, held.gpus.items()).items())),
        rooms=tuple(
            (gpu.uuid, max(0, gpu_room(gpu, ours(gpu.uuid)) - held.gpu_excess(gpu.uuid, gpu.memory_total)))
            for gpu in sample.gpus
            if gpu.uuid in gpus
        ),
        withheld=tuple((one.what, NUMBERS.sub("#", one.why)) for one in plan.withheld if one.why != idle.busy_cores),
    )


def _added(amounts: dict[K, int], *more: Iterable[tuple[K, int]]) -> dict[K, int]:
    for part in more:
        for key, milli in part:
            amounts[key] = amounts.get(key, 0) + milli
    return amounts


def whole_cores(limits: Limits, sample: Sample, cores: int) -> int:
    """Return how many cores are left by foreign use, in total: use below the limit costs no core."""
    if limits.cpu_percent_max >= 100:
        return max(0, math.floor(cores - limits.reserve_cpu / MILLI))
    room = cores - sample.foreign_cpu + limits.cpu_percent_max / 100 - limits.reserve_cpu / MILLI
    return max(0, min(cores, math.floor(room + 1e-9)))
