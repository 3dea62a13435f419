"""Whether the resources of a job would be offered again at its end: what plan.make says about the parts of one grant,
without making the whole plan. The cost depends only on the grant. If a limit excludes some idle cores, the order of
cores matters; it is computed once for each sample. Sets of cores are bit masks by number."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from distributed_grid.agent.core.spare import plan as spare_plan
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.plan import Idle
from distributed_grid.agent.core.spare.thresholds import Limits, at_most, tolerance
from distributed_grid.protocol.nodes import GpuFacts, Sample
from distributed_grid.protocol.resources import MILLI, Grant


class Node:
    """A node as of one sample: its cores (`managed`) and GPUs, what is idle, and the cores that were offered then.
    `ours`: whether the use of a GPU is attributed to the grid's jobs."""

    def __init__(
        self,
        managed: int,
        gpus: Sequence[GpuFacts],
        sample: Sample,
        idle: Idle,
        offered: Collection[int],
        ours: Callable[[str], bool],
    ) -> None:
        self.managed = managed
        self.idle = idle
        self._gpus, self._sample, self._stick, self._ours = gpus, sample, frozenset(offered), ours

    def offers(self, limits: Limits, grant: Grant, held: Holdings) -> bool:
        """Whether all of this grant would be offered beside what is held."""
        if self.idle.node:
            return not (grant.cores or grant.shared_milli or grant.memory or grant.gpus)
        cpu = _Cores(limits, self, held)
        if not all(map(cpu.has, grant.cores)) or cpu.part(grant.shared_core) < grant.shared_milli:
            return False
        if not (grant.memory or grant.gpus):
            return True
        memory = spare_plan.spare_memory(limits, self._sample, self.idle, held, [])
        most = spare_plan.gpu_limit(limits, bool(held.cpu) or cpu.any, bool(memory or held.memory))
        if limits.max_offers_per_node < 1 or (limits.max_offers_per_node < 2 and cpu.any):
            memory = 0
        if grant.memory > memory + (tolerance(memory) if memory else 0):
            return False
        if not grant.gpus:
            return True
        about = self._sample, self.idle, held, most, self._ours
        gpus = {gpu.uuid: gpu.milli for gpu in spare_plan.spare_gpus(limits, self._gpus, *about, [])}
        return all(gpus.get(share.uuid, 0) >= share.milli for share in grant.gpus)

    @cached_property
    def idle_cores(self) -> int:
        """The idle cores."""
        return mask(self.idle.cores)

    @cached_property
    def _order(self) -> dict[int, tuple[int, int]]:
        """For each idle core, the cores that are offered before it whatever their number, and the cores of equal
        rank."""
        equals: dict[tuple[int, bool], list[int]] = {}
        for core in self.idle.cores:
            equals.setdefault(spare_plan.rank(self._sample, self._stick, core), []).append(core)
        found: dict[int, tuple[int, int]] = {}
        before = 0
        for key in sorted(equals):
            own = mask(equals[key])
            found |= dict.fromkeys(equals[key], (before, own))
            before |= own
        return found

    def place(self, core: int, free: int) -> int:
        """Return how many of the free cores are offered before this one."""
        before, own = self._order[core]
        return (free & before).bit_count() + (free & own & ((1 << core) - 1)).bit_count()


class _Cores:
    """The cores, and parts of cores, that would be offered beside what is held: `most` of the free ones, in their
    order, and `rest` milli-cores of the next one; of the shared ones `parts` (None: all that is left of each)."""

    def __init__(self, limits: Limits, node: Node, held: Holdings) -> None:
        idle = node.idle
        occupied = held.cores | held.shared
        self._node, self._held = node, held
        self._free, self._shared = node.idle_cores & ~occupied, node.idle_cores & held.shared
        self._most = self._rest = 0
        self._parts: dict[int, int] | None = None
        usable = min(idle.most, (node.idle_cores | occupied).bit_count())
        if idle.cpu or limits.max_offers_per_node < 1 or usable * MILLI < limits.cpu_min_cores:
            self._free = self._shared = 0
            return
        self._most = max(0, idle.most - held.cores.bit_count() - held.shared.bit_count())
        if limits.max_share_cpu is None and not (occupied & ~node.managed or held.cores & held.shared):
            return  # each core is held once, so what is not held is left
        left = at_most(node.managed.bit_count() * MILLI, limits.max_share_cpu) - held.cpu
        self._parts = {}
        for core in _numbers(self._shared):
            part = self._parts[core] = max(0, min(MILLI - held.parts[core], left))
            left -= part
        whole, rest = divmod(max(0, left), MILLI)
        if whole < min(self._most, self._free.bit_count()):
            self._most, self._rest = whole, rest

    @property
    def any(self) -> bool:
        """Whether anything is offered of the cores."""
        if (self._most and self._free) or self._rest:
            return True
        if self._parts is not None:
            return any(self._parts.values())
        return any(self._held.parts[core] < MILLI for core in _numbers(self._shared))

    def has(self, core: int) -> bool:
        """Whether the whole core is offered."""
        if not self._free >> core & 1:
            return False
        return self._most >= self._free.bit_count() or self._node.place(core, self._free) < self._most

    def part(self, core: int) -> int:
        """Return the offered part of a core (milli-cores); `core` -1: no core."""
        if core < 0:
            return 0
        if self._shared >> core & 1:
            return self._parts[core] if self._parts is not None else MILLI - self._held.parts[core]
        if self.has(core):
            return MILLI
        next_one = self._free >> core & 1 and self._node.place(core, self._free) == self._most
        return self._rest if next_one else 0


def mask(cores: Collection[int]) -> int:
    """The set of these cores as a bit mask."""
    bits = bytearray(max(cores, default=-1) // 8 + 1)
    for core in cores:
        bits[core >> 3] |= 1 << (core & 7)
    return int.from_bytes(bits, "little")


def _numbers(cores: int) -> Iterator[int]:
    """The cores of a bit mask, in order."""
    while cores:
        least = cores & -cores
        yield least.bit_length() - 1
        cores ^= least
