"""The capacity index: finds nodes with room for a request among many thousands without a scan.

Nodes are in size classes by their free GPUs and cores, sorted by free memory in each. Size classes are searched from
the tightest fit upwards, so requests without GPUs find nodes without free ones first. The cost depends on the number of
distinct shapes, not of nodes.

Updates are lazy: a changed capacity is kept, and its node is moved at the next search.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from enum import Enum, auto

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.protocol.resources import MILLI, Resources

Accept = Callable[[str], bool]
Shape = tuple[int, int]
"""How many whole devices are free, and the largest spare part (milli) of one that is shared."""

IndexKey = tuple[int, Shape, Shape, int]
"""The index key of a node: its tier, the shapes of its free GPUs and cores, and its free memory in bytes."""

NO_GPUS: Shape = (0, 0)
"""The shape of a node without free GPUs."""

NO_KEY: IndexKey = (-1, (0, 0), (0, 0), 0)
"""The key of a node whose capacity has changed, until the next search."""

TIERS = 8
"""Number of tiers: the owner's `priority` in steps of a quarter, from 0 to 1.75 and more."""

FEW_ENDS = 4
"""Where there are fewer ends of size classes than this, the tightest fits are found beside them."""


class Order(Enum):
    """Which of the nodes with room are found: the tightest fits first, the most capacity first, or of each size class
    both ends (its tightest fit and its most capacity), tightest size class first."""

    TIGHTEST = auto()
    WIDEST = auto()
    ENDS = auto()


class SizeClass:
    """Nodes with the same free GPUs: memory and name, ascending, by the shape of their free cores."""

    __slots__ = ("by_cores", "shapes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.by_cores: dict[Shape, list[tuple[int, str]]] = {}


class Tier:
    """Nodes of one priority: size classes by the shape of their free GPUs."""

    __slots__ = ("shapes", "size_classes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.size_classes: dict[Shape, SizeClass] = {}


class Index:
    """Usable nodes by their free capacity."""

    def __init__(self) -> None:
        self._tiers = [Tier() for _ in range(TIERS)]
        """Those of the highest priority first."""
        self._index_keys: dict[str, IndexKey] = {}
        self._changed: dict[str, tuple[float, Capacity]] = {}
        """Changed nodes, with their priority."""

    def __len__(self) -> int:
        return len(self._index_keys)

    def __contains__(self, name: str) -> bool:
        return name in self._index_keys

    def put(self, name: str, priority: float, capacity: Capacity) -> None:
        """Add or update a node."""
        self._changed[name] = (priority, capacity)
        if name not in self._index_keys:
            self._index_keys[name] = NO_KEY

    def drop(self, name: str) -> bool:
        """Remove a node; returns whether it was there."""
        self._changed.pop(name, None)
        old = self._index_keys.pop(name, None)
        if old is not None and old is not NO_KEY:
            self._remove(name, old)
        return old is not None

    def flush(self) -> dict[str, IndexKey]:
        """The keys of all nodes, after the changes since the last search were applied."""
        if self._changed:
            changed, self._changed = self._changed, {}
            for name, (priority, capacity) in changed.items():
                self.move(name, key_of_capacity(priority, capacity))
        return self._index_keys

    def fill(self, keys: Iterable[tuple[str, IndexKey]]) -> None:
        """Bulk-load an empty index."""
        for name, key in keys:
            self._index_keys[name] = key
            tier, gpus, cores, memory = key
            size_classes = self._tiers[tier].size_classes
            if (size_class := size_classes.get(gpus)) is None:
                size_class = size_classes[gpus] = SizeClass()
            if (row := size_class.by_cores.get(cores)) is None:
                row = size_class.by_cores[cores] = []
            row.append((memory, name))
        for one in self._tiers:
            one.shapes = sorted(one.size_classes)
            for size_class in one.size_classes.values():
                size_class.shapes = sorted(size_class.by_cores)
                for row in size_class.by_cores.values():
                    row.sort()

    def move(self, name: str, key: IndexKey) -> None:
        """Move a node to a key."""
        old = self._index_keys.get(name, NO_KEY)
        if old == key:
            return
        if old is not NO_KEY:
            self._remove(name, old)
        self._index_keys[name] = key
        tier, gpus, cores, memory = key
        size_class = self._tiers[tier].size_classes.get(gpus)
        if size_class is None:
            insort(self._tiers[tier].shapes, gpus)
            size_class = self._tiers[tier].size_classes[gpus] = SizeClass()
        row = size_class.by_cores.get(cores)
        if row is None:
            insort(size_class.shapes, cores)
            size_class.by_cores[cores] = [(memory, name)]
        else:
            insort(row, (memory, name))

    def _remove(self, name: str, key: IndexKey) -> None:
        at, gpus, cores, memory = key
        tier = self._tiers[at]
        size_class = tier.size_classes[gpus]
        row = size_class.by_cores[cores]
        del row[bisect_left(row, (memory, name))]
        if not row:
            del size_class.by_cores[cores]
            del size_class.shapes[bisect_left(size_class.shapes, cores)]
            if not size_class.shapes:
                del tier.size_classes[gpus]
                del tier.shapes[bisect_left(tier.shapes, gpus)]

    def candidates(
        self, wanted: Resources, most: int, accept: Accept | None = None, order: Order = Order.TIGHTEST
    ) -> list[str]:
        """Up to `most` accepted nodes of each tier with room for this amount, in this order."""
        self.flush()
        found: list[str] = []
        search, loosest = _SEARCHES[order], order is Order.WIDEST
        for tier in self._tiers:
            if tier.shapes:
                start = len(found)
                size_classes = _size_classes(tier, wanted.gpu, loosest)
                for size_class in size_classes:
                    search(size_class, wanted, start + most, found, accept)
                    if len(found) >= start + most:
                        break
                if order is Order.ENDS and start < len(found) < start + FEW_ENDS:
                    found[start:] = _more(size_classes, wanted, found[start:], accept)
        return found

    def most(self) -> list[str]:
        """Return, from each tier, a node with the most free GPUs and one with the most free cores."""
        self.flush()
        best: dict[str, None] = {}
        for tier in self._tiers:
            if tier.shapes:
                last = tier.size_classes[tier.shapes[-1]]
                best[last.by_cores[last.shapes[-1]][-1][1]] = None
                widest = max(tier.size_classes.values(), key=lambda size_class: size_class.shapes[-1])
                best[widest.by_cores[widest.shapes[-1]][-1][1]] = None
        return list(best)


def key_of_capacity(priority: float, capacity: Capacity) -> IndexKey:
    """The key of a node with this capacity."""
    tier = TIERS - 1 - min(TIERS - 1, max(0, int(priority * 4)))
    gpus = (capacity.whole_gpus, max(capacity.gpu_parts.values()) if capacity.gpu_parts else 0)
    cores = (len(capacity.free), max(capacity.parts.values()) if capacity.parts else 0)
    return tier, gpus, cores, capacity.free_memory


def _size_classes(tier: Tier, gpu: int, loosest: bool) -> list[SizeClass]:
    shapes, size_classes = tier.shapes, tier.size_classes
    if not gpu:  # also of those with most, those with no idle GPU come first
        return [size_classes[shape] for shape in shapes]
    if gpu >= MILLI:
        fitting = shapes[bisect_left(shapes, (gpu // MILLI, 0)) :]
        return [size_classes[shape] for shape in (reversed(fitting) if loosest else fitting)]
    if loosest:
        return [size_classes[shape] for shape in reversed(shapes) if shape[0] or shape[1] >= gpu]
    # A device that is shared already comes before a whole one.
    shared = [size_classes[shape] for shape in shapes if shape[1] >= gpu]
    return shared + [size_classes[shape] for shape in shapes if shape[1] < gpu and shape[0]]


def _search(size_class: SizeClass, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    memory = wanted.memory
    shapes = size_class.shapes
    # A fraction fits beside exactly as many whole cores where a shared core has it, and else takes one core more.
    for shape in shapes[bisect_left(shapes, (whole, part)) :]:
        if part and shape[0] == whole and shape[1] < part:
            continue
        row = size_class.by_cores[shape]
        if row[-1][0] < memory:
            continue
        start = bisect_left(row, (memory, ""))
        if accept is None:
            found += [name for _, name in row[start : start + end - len(found)]]
        else:
            for at in range(start, len(row)):
                if accept(row[at][1]):
                    found.append(row[at][1])
                    if len(found) >= end:
                        break
        if len(found) >= end:
            return


def _search_loosest(
    size_class: SizeClass, wanted: Resources, end: int, found: list[str], accept: Accept | None
) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    for shape in reversed(size_class.shapes):
        if shape < (whole, part):
            return
        if part and shape[0] == whole and shape[1] < part:
            continue
        for memory, name in reversed(size_class.by_cores[shape]):
            if memory < wanted.memory:
                break
            if accept is None or accept(name):
                found.append(name)
                if len(found) >= end:
                    return


def _search_ends(size_class: SizeClass, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    shapes, by_cores, memory = size_class.shapes, size_class.by_cores, wanted.memory
    first = bisect_left(shapes, divmod(wanted.cpu, MILLI))
    if accept is not None:
        if first < len(shapes):
            _both_ends(size_class, wanted, end, found, accept)
        return
    for at in range(first, len(shapes)):
        row = by_cores[shapes[at]]
        if row[-1][0] >= memory:
            break
    else:
        return
    tightest = row[0] if row[0][0] >= memory else row[bisect_left(row, (memory, ""))]
    found.append(tightest[1])
    if len(found) < end:
        for other in range(len(shapes) - 1, at - 1, -1):
            widest = by_cores[shapes[other]][-1]
            if widest[0] >= memory:
                if widest is not tightest:
                    found.append(widest[1])
                return


def _both_ends(size_class: SizeClass, wanted: Resources, end: int, found: list[str], accept: Accept) -> None:
    shapes, before = size_class.shapes, len(found)
    _search(size_class, wanted, before + 1, found, accept)
    if before < len(found) < end and (len(shapes) > 1 or len(size_class.by_cores[shapes[0]]) > 1):
        _search_loosest(size_class, wanted, before + 2, found, accept)
        if found[-1] == found[-2]:
            found.pop()


def _more(size_classes: list[SizeClass], wanted: Resources, found: list[str], accept: Accept | None) -> list[str]:
    tightest: list[str] = []
    for size_class in size_classes:
        _search(size_class, wanted, FEW_ENDS, tightest, accept)
        if len(tightest) >= FEW_ENDS:
            break
    return [*dict.fromkeys((*found, *tightest))]


_SEARCHES = {Order.TIGHTEST: _search, Order.WIDEST: _search_loosest, Order.ENDS: _search_ends}
