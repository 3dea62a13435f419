"""The holdings of a node, with sums that are kept up to date, so that the cost of a claim or an end does not grow with
the number of holdings. Sets of cores are bit masks by number."""

from collections.abc import Iterable
from typing import NamedTuple

from distributed_grid.agent.core.spare.thresholds import Holding
from distributed_grid.protocol.resources import MILLI, GpuShare


class Holdings:
    """All holdings by allocation, in order of arrival, and their sums. `cores` are held exclusively, `shared` in parts;
    `holders` and `sharers` say by whom, `parts` how many milli-cores of a shared one; `on_gpu` has the shares of each
    GPU. `memory` is granted, `excess` what jobs use above their grants (bytes)."""

    def __init__(self, holdings: Iterable[Holding] = ()) -> None:
        self.all: dict[str, Holding] = {}
        self.cores = self.shared = 0
        self.holders: dict[int, dict[str, None]] = {}
        self.sharers: dict[int, dict[str, None]] = {}
        self.parts: dict[int, int] = {}
        self.on_gpu: dict[str, dict[str, tuple[GpuShare, ...]]] = {}
        self.memory = self.excess = self.shared_milli = self.gpu = 0
        self._arrivals: dict[str, int] = {}
        self._arrived = 0
        self._using_gpus: dict[str, None] = {}
        for one in holdings:
            self.add(one)

    def __len__(self) -> int:
        return len(self.all)

    def add(self, one: Holding) -> None:
        """Add the holding of an allocation that has none."""
        key, grant = one.allocation, one.grant
        assert key not in self.all, key  # noqa: S101
        self.all[key] = one
        self._arrived += 1
        self._arrivals[key] = self._arrived
        for core in grant.cores:
            self.holders.setdefault(core, {})[key] = None
            self.cores |= 1 << core
        if grant.shared_core >= 0:
            self.sharers.setdefault(grant.shared_core, {})[key] = None
            self.parts[grant.shared_core] = self.parts.get(grant.shared_core, 0) + grant.shared_milli
            self.shared |= 1 << grant.shared_core
            self.shared_milli += grant.shared_milli
        for share in grant.gpus:
            on_gpu = self.on_gpu.setdefault(share.uuid, {})
            on_gpu[key] = (*on_gpu.get(key, ()), share)
            self.gpu += share.milli
        self.memory += grant.memory
        self.excess += max(0, one.rss - grant.memory)
        if one.on_gpus:
            self._using_gpus[key] = None

    def remove(self, allocation: str) -> Holding | None:
        """Remove the holding of this allocation, and return it; None if it has none."""
        one = self.all.pop(allocation, None)
        if one is None:
            return None
        grant = one.grant
        del self._arrivals[allocation]
        self._using_gpus.pop(allocation, None)
        for core in grant.cores:
            if (holders := self.holders.get(core)) is not None:
                holders.pop(allocation, None)
                if not holders:
                    del self.holders[core]
                    self.cores &= ~(1 << core)
        if grant.shared_core >= 0:
            sharers = self.sharers[grant.shared_core]
            del sharers[allocation]
            self.parts[grant.shared_core] -= grant.shared_milli
            self.shared_milli -= grant.shared_milli
            if not sharers:
                del self.sharers[grant.shared_core], self.parts[grant.shared_core]
                self.shared &= ~(1 << grant.shared_core)
        for share in grant.gpus:
            self.gpu -= share.milli
            if (on_gpu := self.on_gpu.get(share.uuid)) is not None:
                on_gpu.pop(allocation, None)
                if not on_gpu:
                    del self.on_gpu[share.uuid]
        self.memory -= grant.memory
        self.excess -= max(0, one.rss - grant.memory)
        return one

    def uses(self, allocation: str, rss: int, on_gpus: tuple[tuple[str, int], ...] = ()) -> None:
        """Set the resident memory, and that on GPUs, of an allocation that has a holding."""
        one = self.all[allocation]
        if rss == one.rss and on_gpus == one.on_gpus:
            return
        self.excess += max(0, rss - one.grant.memory) - max(0, one.rss - one.grant.memory)
        self.all[allocation] = Holding(allocation, one.grant, rss, on_gpus)
        if on_gpus:
            self._using_gpus[allocation] = None
        else:
            self._using_gpus.pop(allocation, None)

    @property
    def cpu(self) -> int:
        """Milli-cores granted."""
        return len(self.holders) * MILLI + self.shared_milli

    def gpu_milli(self, uuid: str) -> int:
        """Milli-GPUs granted of a GPU."""
        return sum(share.milli for shares in self.on_gpu.get(uuid, {}).values() for share in shares)

    def gpu_memory(self, uuid: str, total: int, but: str = "") -> int:
        """Bytes granted of a GPU with this total, without those of one allocation."""
        on_gpu = self.on_gpu.get(uuid, {})
        return sum(share.reserved(total) for key, shares in on_gpu.items() if key != but for share in shares)

    def gpu_excess(self, uuid: str, total: int, but: str = "") -> int:
        """Bytes that jobs use of a GPU with this total above their grants, without one of them."""
        return sum(self.all[key].gpu_excess(uuid, total) for key in self._using_gpus if key != but)

    def first(self, cores: Iterable[int]) -> tuple[int, str]:
        """The lowest of these cores that it holds, and the allocation: the oldest of those that hold any of these cores
        exclusively; (-1, empty): none does."""
        found = [(self._arrivals[key], core, key) for core in cores for key in self.holders.get(core, ())]
        _, core, key = min(found, default=(0, -1, ""))
        return core, key

    def without(self, allocation: str) -> "Others":
        """Return the holdings of all allocations except this one."""
        cpu, memory, excess, gpu = self.cpu, self.memory, self.excess, self.gpu
        if (own := self.all.get(allocation)) is not None:
            grant = own.grant
            alone = sum(len(self.holders[core]) == 1 for core in {*grant.cores})
            cpu -= alone * MILLI + (grant.shared_milli if grant.shared_core >= 0 else 0)
            memory -= grant.memory
            excess -= max(0, own.rss - grant.memory)
            gpu -= sum(share.milli for share in grant.gpus)
        return Others(self, allocation, cpu, memory, excess, gpu)


class Others(NamedTuple):
    """The sums of all holdings but one, as in Holdings."""

    holdings: Holdings
    but: str
    cpu: int
    memory: int
    excess: int
    gpu: int

    @property
    def gpus(self) -> list[str]:
        """The GPUs that they hold a part of."""
        return [uuid for uuid, shares in self.holdings.on_gpu.items() if len(shares) > (self.but in shares)]

    def gpu_memory(self, uuid: str, total: int) -> int:
        """Bytes granted of a GPU with this total."""
        return self.holdings.gpu_memory(uuid, total, self.but)

    def gpu_excess(self, uuid: str, total: int) -> int:
        """Bytes that jobs use of a GPU with this total above their grants."""
        return self.holdings.gpu_excess(uuid, total, self.but)
