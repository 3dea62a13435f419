"""Finds nodes with room for a request among many thousands without looking at each of them.

Nodes lie in shelves by their free GPUs and cores, and in a shelf by their free memory. Both are walked from the
tightest fit upwards, so a request that needs no GPU meets the nodes without free ones first. The cost is that of the
distinct shapes of room there are, not of the nodes.
"""

from bisect import bisect_left, insort

from distributed_grid.coordinator.core.room import Room
from distributed_grid.protocol.resources import MILLI, Resources

Shape = tuple[int, int]
"""How many whole devices are free, and the largest spare part (milli) of one that is shared."""

TIERS = 8
"""Nodes are told apart by their owner's `priority` in steps of a quarter, from 0 to 1.75 and more."""


class Shelf:
    """Nodes with the same free GPUs: memory and name, ascending, by the shape of their free cores."""

    __slots__ = ("by_cores", "shapes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.by_cores: dict[Shape, list[tuple[int, str]]] = {}


class Tier:
    """Nodes of one priority: shelves by the shape of their free GPUs."""

    __slots__ = ("shapes", "shelves")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.shelves: dict[Shape, Shelf] = {}


class Index:
    """The nodes that can be given work now, by what is left on them."""

    def __init__(self) -> None:
        self._tiers = [Tier() for _ in range(TIERS)]
        self._where: dict[str, tuple[int, Shape, Shape, int]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def put(self, name: str, priority: float, room: Room) -> None:
        """This node has this room from now on."""
        tier = min(TIERS - 1, max(0, int(priority * 4)))
        gpus = (room.whole_gpus, max(room.gpu_parts.values(), default=0))
        cores = (room.whole, max(room.parts.values(), default=0))
        memory = room.free_memory
        place = (tier, gpus, cores, memory)
        old = self._where.get(name)
        if old == place:
            return
        if old is not None:
            self._remove(name, old)
        self._where[name] = place
        shelf = self._tiers[tier].shelves.get(gpus)
        if shelf is None:
            insort(self._tiers[tier].shapes, gpus)
            shelf = self._tiers[tier].shelves[gpus] = Shelf()
        row = shelf.by_cores.get(cores)
        if row is None:
            insort(shelf.shapes, cores)
            shelf.by_cores[cores] = [(memory, name)]
        else:
            insort(row, (memory, name))

    def drop(self, name: str) -> None:
        """This node gets no work for now."""
        old = self._where.pop(name, None)
        if old is not None:
            self._remove(name, old)

    def _remove(self, name: str, place: tuple[int, Shape, Shape, int]) -> None:
        at, gpus, cores, memory = place
        tier = self._tiers[at]
        shelf = tier.shelves[gpus]
        row = shelf.by_cores[cores]
        del row[bisect_left(row, (memory, name))]
        if not row:
            del shelf.by_cores[cores]
            del shelf.shapes[bisect_left(shelf.shapes, cores)]
            if not shelf.shapes:
                del tier.shelves[gpus]
                del tier.shapes[bisect_left(tier.shapes, gpus)]

    def candidates(self, wanted: Resources, most: int) -> list[str]:
        """Up to `most` nodes of each tier with room for this amount, tightest fit first; empty: there is none."""
        found: list[str] = []
        for tier in reversed(self._tiers):
            if tier.shapes:
                end = len(found) + most
                for shelf in _shelves(tier, wanted.gpu):
                    _search(shelf, wanted, end, found)
                    if len(found) >= end:
                        break
        return found

    def most(self) -> list[str]:
        """A node with the most free GPUs, one with the most free cores and one with the most free memory there."""
        best: dict[str, None] = {}
        for tier in reversed(self._tiers):
            if tier.shapes:
                last = tier.shelves[tier.shapes[-1]]
                best[last.by_cores[last.shapes[-1]][-1][1]] = None
                widest = max(tier.shelves.values(), key=lambda shelf: shelf.shapes[-1])
                best[widest.by_cores[widest.shapes[-1]][-1][1]] = None
        return list(best)


def _shelves(tier: Tier, gpu: int) -> list[Shelf]:
    shapes, shelves = tier.shapes, tier.shelves
    if not gpu:
        return [shelves[shape] for shape in shapes]
    if gpu >= MILLI:
        return [shelves[shape] for shape in shapes[bisect_left(shapes, (gpu // MILLI, 0)) :]]
    # A device that is shared already comes before a whole one.
    shared = [shelves[shape] for shape in shapes if shape[1] >= gpu]
    return shared + [shelves[shape] for shape in shapes if shape[1] < gpu and shape[0]]


def _search(shelf: Shelf, wanted: Resources, end: int, found: list[str]) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    memory = wanted.memory
    shapes = shelf.shapes
    # A fraction fits beside exactly as many whole cores where a shared core has it, and else takes one core more.
    for shape in shapes[bisect_left(shapes, (whole, part)) :]:
        if part and shape[0] == whole and shape[1] < part:
            continue
        row = shelf.by_cores[shape]
        if row[-1][0] < memory:
            continue
        start = bisect_left(row, (memory, ""))
        for _, name in row[start : start + end - len(found)]:
            found.append(name)
        if len(found) >= end:
            return
