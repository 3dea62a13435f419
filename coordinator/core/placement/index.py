"""The capacity index: finds nodes with room for a request among many thousands without a scan.

Nodes are in shelves by their free GPUs and cores, sorted by free memory in each. Shelves are searched from the tightest
fit upwards, so requests without GPUs find nodes without free ones first. The cost depends on the number of distinct
shapes, not of nodes.

Updates are lazy: a changed room is noted, and its node is moved at the next search.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.protocol.resources import MILLI, Resources

Accept = Callable[[str], bool]
Shape = tuple[int, int]
"""How many whole devices are free, and the largest spare part (milli) of one that is shared."""

Place = tuple[int, Shape, Shape, int]
"""The index key of a node: its tier, the shapes of its free GPUs and cores, and its free memory in bytes."""

NO_GPUS: Shape = (0, 0)
"""The shape of a node without free GPUs."""

NOWHERE: Place = (-1, (0, 0), (0, 0), 0)
"""The place of a node that is only noted yet."""

TIERS = 8
"""Number of tiers: the owner's `priority` in steps of a quarter, from 0 to 1.75 and more."""


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
    """Usable nodes by their free capacity."""

    def __init__(self) -> None:
        self._tiers = [Tier() for _ in range(TIERS)]
        """Those of the highest priority first."""
        self._where: dict[str, Place] = {}
        self._noted: dict[str, tuple[float, Room]] = {}
        """Changed nodes, with their priority."""

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def put(self, name: str, priority: float, room: Room) -> None:
        """Add or update a node."""
        self._noted[name] = (priority, room)
        if name not in self._where:
            self._where[name] = NOWHERE

    def drop(self, name: str) -> bool:
        """Remove a node; returns whether it was there."""
        self._noted.pop(name, None)
        old = self._where.pop(name, None)
        if old is not None and old is not NOWHERE:
            self._remove(name, old)
        return old is not None

    def laid(self) -> dict[str, Place]:
        """The places of all nodes, after the noted changes were applied."""
        if self._noted:
            noted, self._noted = self._noted, {}
            for name, (priority, room) in noted.items():
                self.lay(name, place_of(priority, room))
        return self._where

    def fill(self, places: Iterable[tuple[str, Place]]) -> None:
        """Bulk-load an empty index."""
        for name, place in places:
            self._where[name] = place
            tier, gpus, cores, memory = place
            shelves = self._tiers[tier].shelves
            if (shelf := shelves.get(gpus)) is None:
                shelf = shelves[gpus] = Shelf()
            if (row := shelf.by_cores.get(cores)) is None:
                row = shelf.by_cores[cores] = []
            row.append((memory, name))
        for one in self._tiers:
            one.shapes = sorted(one.shelves)
            for shelf in one.shelves.values():
                shelf.shapes = sorted(shelf.by_cores)
                for row in shelf.by_cores.values():
                    row.sort()

    def lay(self, name: str, place: Place) -> None:
        """Move a node to a place."""
        old = self._where.get(name, NOWHERE)
        if old == place:
            return
        if old is not NOWHERE:
            self._remove(name, old)
        self._where[name] = place
        tier, gpus, cores, memory = place
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

    def _remove(self, name: str, place: Place) -> None:
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

    def candidates(
        self, wanted: Resources, most: int, accept: Accept | None = None, loosest: bool = False
    ) -> list[str]:
        """Up to `most` accepted nodes of each tier with room for this amount, tightest fit first, or the widest rooms
        first (`loosest`)."""
        self.laid()
        found: list[str] = []
        search = _search_loosest if loosest else _search
        for tier in self._tiers:
            if tier.shapes:
                end = len(found) + most
                for shelf in _shelves(tier, wanted.gpu, loosest):
                    search(shelf, wanted, end, found, accept)
                    if len(found) >= end:
                        break
        return found

    def most(self) -> list[str]:
        """In each tier, a node with the most free GPUs and one with the most free cores."""
        self.laid()
        best: dict[str, None] = {}
        for tier in self._tiers:
            if tier.shapes:
                last = tier.shelves[tier.shapes[-1]]
                best[last.by_cores[last.shapes[-1]][-1][1]] = None
                widest = max(tier.shelves.values(), key=lambda shelf: shelf.shapes[-1])
                best[widest.by_cores[widest.shapes[-1]][-1][1]] = None
        return list(best)


def place_of(priority: float, room: Room) -> Place:
    """The place of a node with this room."""
    tier = TIERS - 1 - min(TIERS - 1, max(0, int(priority * 4)))
    gpus = (room.whole_gpus, max(room.gpu_parts.values()) if room.gpu_parts else 0)
    cores = (len(room.free), max(room.parts.values()) if room.parts else 0)
    return tier, gpus, cores, room.free_memory


def _shelves(tier: Tier, gpu: int, loosest: bool) -> list[Shelf]:
    shapes, shelves = tier.shapes, tier.shelves
    if not gpu:  # also of the widest rooms, those with no idle GPU come first
        return [shelves[shape] for shape in shapes]
    if gpu >= MILLI:
        fitting = shapes[bisect_left(shapes, (gpu // MILLI, 0)) :]
        return [shelves[shape] for shape in (reversed(fitting) if loosest else fitting)]
    if loosest:
        return [shelves[shape] for shape in reversed(shapes) if shape[0] or shape[1] >= gpu]
    # A device that is shared already comes before a whole one.
    shared = [shelves[shape] for shape in shapes if shape[1] >= gpu]
    return shared + [shelves[shape] for shape in shapes if shape[1] < gpu and shape[0]]


def _search(shelf: Shelf, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
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
        if accept is None:
            found += [name for _, name in row[start : start + end - len(found)]]
        else:
            for place in range(start, len(row)):
                if accept(row[place][1]):
                    found.append(row[place][1])
                    if len(found) >= end:
                        break
        if len(found) >= end:
            return


def _search_loosest(shelf: Shelf, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    for shape in reversed(shelf.shapes):
        if shape < (whole, part):
            return
        if part and shape[0] == whole and shape[1] < part:
            continue
        for memory, name in reversed(shelf.by_cores[shape]):
            if memory < wanted.memory:
                break
            if accept is None or accept(name):
                found.append(name)
                if len(found) >= end:
                    return
