"""The free capacity of one node: its newest offer, less the grants that the offer does not count; and the capacity that
becomes free later.

Updates are incremental, so the cost of a grant depends on its own devices and not on those of the node. Amounts may be
negative: an offer made before a grant arrived can be smaller than what is held, which leaves a debt.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

import msgspec

from distributed_grid.protocol.nodes import GpuOffer, NodeFacts, Offer
from distributed_grid.protocol.placement import Constraints, same_model
from distributed_grid.protocol.resources import MILLI, GpuShare, Grant, Resources

Counts = tuple[list[int], int, int, int, dict[int, int], dict[str, int]]
"""`free`, `whole`, `debts`, `whole_gpus`, `parts` and `gpu_parts` of a capacity."""


class Free(msgspec.Struct, kw_only=True, gc=False):
    """The free resources of a node, as far as requests are compared with them: the number of unused cores (`whole`),
    the spare parts of shared ones (milli-cores), bytes, and milli-GPUs by UUID.

    `whole_gpus` and `gpu_parts` are the same for GPUs as `whole` and `parts`, and `gpu_memory` the free bytes of each.
    Devices in `closed` are in back-off and cannot be granted.
    """

    closed: frozenset[str]
    whole: int = 0
    parts: dict[int, int] = {}
    memory: int = 0
    gpus: dict[str, int] = {}
    whole_gpus: int = 0
    gpu_parts: dict[str, int] = {}
    gpu_memory: dict[str, int] = {}
    offers: dict[str, GpuOffer] = {}

    def lacks(self, wanted: Resources, need: Constraints | None = None) -> str:
        """The first kind of which there is too little for this (gpu, cpu or memory), of GPUs as they are needed; empty:
        it fits."""
        if wanted.gpu and not self._has_gpus(wanted.gpu, need):
            return "gpu"
        if not self._has_cpu(wanted.cpu):
            return "cpu"
        if wanted.memory > self.free_memory:
            return "memory"
        return ""

    def fits(self, wanted: Resources, need: Constraints | None = None) -> bool:
        """Whether this amount can be granted here now."""
        if wanted.cpu // MILLI > self.whole or wanted.memory > self.free_memory:
            return False  # most of what is refused
        if wanted.cpu and not self._has_cpu(wanted.cpu):
            return False
        return not wanted.gpu or self._has_gpus(wanted.gpu, need)

    def _has_cpu(self, milli: int) -> bool:
        whole, part = divmod(milli, MILLI)
        if self.whole != whole:
            return self.whole > whole
        return not part or (bool(self.parts) and max(self.parts.values()) >= part)

    def _has_gpus(self, milli: int, need: Constraints | None) -> bool:
        if need is None or not (need.gpu_model or need.gpu_memory):
            if milli < MILLI:
                return self.whole_gpus > 0 or max(self.gpu_parts.values(), default=0) >= milli
            return self.whole_gpus * MILLI >= milli
        if milli < MILLI:
            return any(self._suits(uuid, need) for uuid, left in self.gpus.items() if left >= milli)
        count = sum(self._suits(uuid, need) for uuid, left in self.gpus.items() if left == MILLI)
        return count * MILLI >= milli

    def _suits(self, uuid: str, need: Constraints | None) -> bool:
        """Whether a GPU is not in back-off and meets the constraints."""
        if uuid in self.closed:
            return False
        if need is None:
            return True
        known = self.offers.get(uuid)
        model = known is not None and same_model(need.gpu_model, known.model)
        return model and self._has_gpu_memory(uuid, need.gpu_memory)

    def _has_gpu_memory(self, uuid: str, wanted: int) -> bool:
        """Whether this much memory of a GPU (bytes) is free. A request for none always fits: such a request is charged
        a part of the memory all the same, so that the free amount may be below zero."""
        return not wanted or self.gpu_memory.get(uuid, 0) >= wanted

    def free_gpus(self, model: str, memory: int) -> tuple[int, int]:
        """Return how many whole devices of this model with this much free memory (bytes) are free, and the largest
        spare part (milli) of a shared one."""
        whole = most = 0
        for uuid, milli in self.gpus.items():
            if milli <= most or not self._has_gpu_memory(uuid, memory) or uuid in self.closed:
                continue
            if not model or ((known := self.offers.get(uuid)) is not None and same_model(model, known.model)):
                if milli == MILLI:
                    whole += 1
                else:
                    most = milli
        return whole, most

    @property
    def left(self) -> Resources:
        """The free resources as an amount; debts count as zero."""
        return Resources(self.cpu_left, max(0, self.free_memory), self.gpu_left)

    @property
    def cpu_left(self) -> int:
        """Free milli-cores."""
        whole = self.whole * MILLI
        return whole + sum(self.parts.values()) if self.parts else whole

    @property
    def gpu_left(self) -> int:
        """Free milli-GPUs."""
        return self.whole_gpus * MILLI + sum(self.gpu_parts.values())

    @property
    def free_memory(self) -> int:
        """Free bytes; below zero: a debt."""
        return min(0, self.memory) if "memory" in self.closed else self.memory

    def _recount_core(self, core: int, old: int, new: int) -> None:
        """Keep `whole` and `parts` right after a change of the spare milli-cores of a core."""
        if self.closed and str(core) in self.closed:
            return
        if old == MILLI:
            self.whole -= 1
        elif 0 < old < MILLI:
            del self.parts[core]
        if new == MILLI:
            self.whole += 1
        elif 0 < new < MILLI:
            self.parts[core] = new

    def _change_gpus(self, shares: Iterable[GpuShare], sign: int) -> None:
        for gpu in shares:
            self._change_gpu(gpu.uuid, sign * gpu.milli)
            memory = self.gpu_memory.get(gpu.uuid, 0)
            self.gpu_memory[gpu.uuid] = memory + sign * gpu.reserved(self.memory_of(gpu.uuid))

    def _change_gpu(self, uuid: str, by: int) -> None:
        old = self.gpus.get(uuid, 0)
        new = self.gpus[uuid] = old + by
        if uuid in self.closed:
            return
        if old == MILLI:
            self.whole_gpus -= 1
        elif 0 < old < MILLI:
            del self.gpu_parts[uuid]
        if new == MILLI:
            self.whole_gpus += 1
        elif 0 < new < MILLI:
            self.gpu_parts[uuid] = new

    def memory_of(self, uuid: str) -> int:
        """The memory of a GPU in bytes; 0 if it is unknown."""
        known = self.offers.get(uuid)
        return known.memory if known is not None else 0


class Capacity(Free, kw_only=True, gc=False):
    """The free resources of a node now, device by device: spare milli-cores by core, in the offer's order, idlest
    first.

    `free` has the unused cores, by their place in that order, ascending.

    `debts`: the number of cores with less than nothing spare.

    `_numa` and `_gpu_numa`: NUMA nodes of cores and GPUs, if there are several and they are known.
    """

    virtual: bool
    cores: dict[int, int] = {}
    free: list[int] = []
    debts: int = 0
    _order: list[int] = []
    _places: dict[int, int] = {}
    _numa: dict[int, int] = {}
    _gpu_numa: dict[str, int] = {}

    @classmethod
    def of(cls, facts: NodeFacts, offer: Offer, closed: frozenset[str] = frozenset()) -> "Capacity":
        """The capacity of an offer, without devices that the node's facts do not have."""
        self = cls(virtual=facts.virtual, closed=closed)
        if sum(map(bool, facts.numa)) > 1:
            self._numa = {core: number for number, cores in enumerate(facts.numa) for core in cores}
            self._gpu_numa = {gpu.uuid: gpu.numa for gpu in facts.gpus if gpu.numa >= 0}
        real_cores = frozenset(facts.cores)
        # A GPU that is not in the offer, since a job has it, may come back with that job's end.
        self.offers = {g.uuid: GpuOffer(g.uuid, g.index, g.model, g.memory, g.memory) for g in facts.gpus}
        for core in offer.cores:
            if core in real_cores:
                self.cores[core] = MILLI
        for core, milli in offer.shares.items():
            if core in real_cores and core not in self.cores:
                self.cores[core] = min(milli, MILLI)
        for gpu in offer.gpus:
            if gpu.uuid in self.offers:
                self.gpus[gpu.uuid] = min(gpu.milli, MILLI)
                self.offers[gpu.uuid] = gpu
                self.gpu_memory[gpu.uuid] = gpu.memory_free
        self.memory = min(offer.memory, facts.memory)
        self.count()
        return self

    def count(self) -> None:
        """Recompute what is whole and what is shared, after amounts were set one by one."""
        self._order = list(self.cores)
        self._places = {core: place for place, core in enumerate(self._order)}
        self.free, self.whole, self.debts, self.whole_gpus, self.parts, self.gpu_parts = self.counted()

    @property
    def counts(self) -> Counts:
        """Return the counts that are kept beside the amounts."""
        return self.free, self.whole, self.debts, self.whole_gpus, self.parts, self.gpu_parts

    def counted(self) -> Counts:
        """Return the same counts, computed from scratch."""
        closed, whole_gpus, debts = self.closed, 0, 0
        free, parts, gpu_parts = list[int](), dict[int, int](), dict[str, int]()
        for place, (core, milli) in enumerate(self.cores.items()):
            if milli < 0:
                debts += 1
            elif closed and str(core) in closed:
                continue
            elif milli == MILLI:
                free.append(place)
            elif 0 < milli < MILLI:
                parts[core] = milli
        for uuid, milli in self.gpus.items():
            if uuid in closed:
                continue
            if milli == MILLI:
                whole_gpus += 1
            elif 0 < milli < MILLI:
                gpu_parts[uuid] = milli
        return free, len(free), debts, whole_gpus, parts, gpu_parts

    def cap(self, facts: NodeFacts, held: Iterable[Grant]) -> None:
        """Limit each device to what its holders leave, whatever the offer says. What is held of a device that the node
        does not have any more is a debt, so that its end makes no room."""
        real_cores = frozenset(facts.cores)
        cores: dict[int, int] = {}
        gpus: dict[str, int] = {}
        reserved: dict[str, int] = {}
        for grant in held:
            for core in grant.cores:
                cores[core] = MILLI
            if grant.shared_core >= 0:
                cores[grant.shared_core] = cores.get(grant.shared_core, 0) + grant.shared_milli
            for gpu in grant.gpus:
                gpus[gpu.uuid] = gpus.get(gpu.uuid, 0) + gpu.milli
                reserved[gpu.uuid] = reserved.get(gpu.uuid, 0) + gpu.reserved(self.memory_of(gpu.uuid))
        for core, milli in cores.items():
            if core not in real_cores:
                self.cores[core] = -milli
            elif self.cores.get(core, 0) > MILLI - milli:
                self.cores[core] = MILLI - milli
        for uuid, milli in gpus.items():
            if uuid not in self.offers:
                self.gpus[uuid] = -milli
            elif self.gpus.get(uuid, 0) > MILLI - milli:
                self.gpus[uuid] = MILLI - milli
            left = self.memory_of(uuid) - reserved[uuid]
            if self.gpu_memory.get(uuid, 0) > left:
                self.gpu_memory[uuid] = left
        self.count()

    def copy(self) -> "Capacity":
        """A copy for trials."""
        other = msgspec.structs.replace(self)
        for name in _AMOUNTS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def covers(self, grant: Grant) -> bool:
        """Whether exactly these cores and GPUs, and this memory, are free."""
        if grant.memory > self.free_memory or not self.closed.isdisjoint(map(str, (*grant.cores, grant.shared_core))):
            return False
        if any(self.cores.get(core) != MILLI for core in grant.cores):
            return False
        if grant.shared_core >= 0 and self.cores.get(grant.shared_core, 0) < grant.shared_milli:
            return False
        return all(
            self.gpus.get(gpu.uuid, 0) >= gpu.milli
            and gpu.uuid not in self.closed
            and self._has_gpu_memory(gpu.uuid, gpu.memory)
            for gpu in grant.gpus
        )

    def take(self, grant: Grant) -> None:
        """Subtract a grant."""
        self._change(grant, -1)

    def give(self, grant: Grant) -> None:
        """Add a grant."""
        self._change(grant, 1)

    def _change(self, grant: Grant, sign: int) -> None:
        for core in grant.cores:
            self._change_core(core, sign * MILLI)
        if grant.shared_core >= 0:
            self._change_core(grant.shared_core, sign * grant.shared_milli)
        self.memory += sign * grant.memory
        if grant.gpus:
            self._change_gpus(grant.gpus, sign)

    def _change_core(self, core: int, by: int) -> None:
        old = self.cores.get(core, 0)
        new = self.cores[core] = old + by
        if new < 0 <= old:
            self.debts += 1
        elif old < 0 <= new:
            self.debts -= 1
        if core not in self._places:  # it was not in the offer, since a job had it
            self._places[core] = len(self._order)
            self._order.append(core)
        self._recount_core(core, old, new)
        if (old == MILLI) is (new == MILLI) or (self.closed and str(core) in self.closed):
            return
        if new == MILLI:
            insort(self.free, self._places[core])
        else:
            del self.free[bisect_left(self.free, self._places[core])]

    def free_cores(self) -> tuple[int, ...]:
        """The unused cores, idlest first."""
        return tuple(c for c, m in self.cores.items() if m == MILLI and str(c) not in self.closed)

    def choose(self, wanted: Resources, need: Constraints | None = None) -> Grant:
        """Choose the cores and GPUs for an amount that fits. Whole cores: idlest first; fractions of cores and GPUs:
        best fit among shared devices; whole GPUs: smallest first, to spare the large ones. If the topology is known,
        GPUs come from one NUMA node if possible, and cores from as few as possible, those of the GPUs first."""
        whole, part = divmod(wanted.cpu, MILLI)
        shared = -1
        if part:
            fitting = [(milli, core) for core, milli in self.parts.items() if milli >= part]
            if fitting:
                shared = min(fitting)[1]
        needed = whole + (1 if part and shared < 0 else 0)
        gpus = self._choose_gpus(wanted.gpu, needed, need) if wanted.gpu else ()
        places = self._compact(needed, gpus) if self._numa and needed else self.free[:needed]
        cores = [self._order[place] for place in places]
        if len(cores) > whole:
            shared = cores.pop()
        return Grant(tuple(cores), shared, part, wanted.memory, gpus, self.virtual)

    def _choose_gpus(self, milli: int, cores: int, need: Constraints | None) -> tuple[GpuShare, ...]:
        memory = need.gpu_memory if need is not None else 0
        if milli < MILLI:
            fitting = [(left, uuid) for uuid, left in self.gpu_parts.items() if left >= milli]
            fitting = [one for one in fitting if self._suits(one[1], need)]
            if fitting:
                return (GpuShare(min(fitting)[1], milli, memory),)
        free = [
            (offer.memory_free, offer.index, uuid)
            for uuid, offer in self.offers.items()
            if self.gpus.get(uuid) == MILLI and self._suits(uuid, need)
        ]
        free.sort()
        if milli < MILLI:
            return (GpuShare(free[0][2], milli, memory),)
        uuids = [uuid for _, _, uuid in free]
        if self._gpu_numa:
            uuids = self._together(uuids, milli // MILLI, cores)
        return tuple(GpuShare(uuid, MILLI, memory) for uuid in uuids[: milli // MILLI])

    def _together(self, uuids: list[str], count: int, cores: int) -> list[str]:
        """The GPUs sorted for choosing several: first those of the NUMA node with enough of them and of free cores, and
        the fewest beyond that; else those of the nodes with most."""
        groups: dict[int, list[str]] = {}
        for uuid in uuids:
            groups.setdefault(self._gpu_numa.get(uuid, -1), []).append(uuid)
        free: dict[int, int] = {}
        for place in self.free:
            number = self._numa.get(self._order[place], -1)
            free[number] = free.get(number, 0) + 1
        enough = {number for number, group in groups.items() if len(group) >= count}

        def order(number: int) -> tuple[bool, bool, int]:
            size = len(groups[number])
            return number not in enough, free.get(number, 0) < cores, size if number in enough else -size

        return [uuid for number in sorted(groups, key=order) for uuid in groups[number]]

    def _compact(self, count: int, gpus: tuple[GpuShare, ...]) -> list[int]:
        """Return the places of `count` free cores: first on the NUMA nodes of the GPUs, then on the best fit for the
        rest, else on the largest ones; idlest first on each."""
        groups: dict[int, list[int]] = {}
        for place in self.free:
            groups.setdefault(self._numa.get(self._order[place], -1), []).append(place)
        near = {self._gpu_numa.get(gpu.uuid, -1) for gpu in gpus} & groups.keys()
        taken: list[int] = []
        while len(taken) < count:
            left = count - len(taken)
            enough = [number for number in groups if len(groups[number]) >= left]
            pick = (
                max(near, key=lambda number: (len(groups[number]), -number))
                if near
                else min(enough, key=lambda number: (len(groups[number]), number))
                if enough
                else max(groups, key=lambda number: (len(groups[number]), -number))
            )
            near.discard(pick)
            taken += groups.pop(pick)[:left]
        return taken


class FutureCapacity(Free, kw_only=True, gc=False):
    """The free resources of a node after some of its allocations have ended, or another one has begun. A grant costs
    its GPUs and not its cores, since those that are held whole become whole; the present capacity is not copied."""

    _cores: dict[int, int]
    """Those of the capacity now, which stay as they are."""
    _changed: dict[int, int] = {}
    _debts: bool
    """Whether any of those is in debt: without, the ones that a grant holds whole have nothing spare."""

    @classmethod
    def of(cls, capacity: Capacity) -> "FutureCapacity":
        """Return a copy that starts from the present capacity."""
        return cls(
            closed=capacity.closed,
            whole=capacity.whole,
            parts=capacity.parts.copy(),
            memory=capacity.memory,
            gpus=capacity.gpus.copy(),
            whole_gpus=capacity.whole_gpus,
            gpu_parts=capacity.gpu_parts.copy(),
            gpu_memory=capacity.gpu_memory.copy(),
            offers=capacity.offers,
            _cores=capacity.cores,
            _debts=capacity.debts > 0,
        )

    def give(self, grant: Grant) -> None:
        """An allocation with this grant ends."""
        if self.closed or (self._debts and any(map(self._cores.get, grant.cores))):  # not all become whole
            for core in grant.cores:
                self._change_core(core, MILLI)
        else:
            self.whole += len(grant.cores)
        self._change(grant, 1)

    def take(self, grant: Grant) -> None:
        """An allocation begins with this grant, which is free now."""
        self.whole -= len(grant.cores)
        self._change(grant, -1)

    def _change(self, grant: Grant, sign: int) -> None:
        """Change everything except the whole cores."""
        if grant.shared_core >= 0:
            self._change_core(grant.shared_core, sign * grant.shared_milli)
        self.memory += sign * grant.memory
        if grant.gpus:
            self._change_gpus(grant.gpus, sign)

    def _change_core(self, core: int, by: int) -> None:
        old = self._changed[core] if core in self._changed else self._cores.get(core, 0)
        new = self._changed[core] = old + by
        self._recount_core(core, old, new)


_AMOUNTS = [one.name for one in msgspec.structs.fields(Capacity) if one.default_factory is not msgspec.NODEFAULT]
"""The fields of a capacity that are changed in place."""
