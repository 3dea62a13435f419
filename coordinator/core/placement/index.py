"""The capacity index: finds nodes with room for a request among many thousands without a scan.

Nodes are in buckets by their free GPUs and cores, sorted by free memory in each. Buckets are searched from the tightest
fit upwards, so requests without GPUs find nodes without free ones first. The cost depends on the number of distinct
shapes, not of nodes.

Updates are lazy: a changed room is kept, and its node is moved at the next search.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from enum import Enum, auto

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.protocol.resources import MILLI, Resources

Accept = Callable[[str], bool]
Shape = tuple[int, int]
"""How many whole devices are free, and the largest spare part (milli) of one that is shared."""

IndexKey = tuple[int, Shape, Shape, int]
"""The index key of a node: its tier, the shapes of its free GPUs and cores, and its free memory in bytes."""

NO_GPUS: Shape = (0, 0)
"""The shape of a node without free GPUs."""

NO_KEY: IndexKey = (-1, (0, 0), (0, 0), 0)
"""The key of a node whose room has changed, until the next search."""

TIERS = 8
"""Number of tiers: the owner's `priority` in steps of a quarter, from 0 to 1.75 and more."""

FEW_ENDS = 4
"""Where there are fewer ends of buckets than this, the tightest fits are found beside them."""


class Order(Enum):
    """Which of the nodes with room are found: the tightest fits first, the widest rooms first, or of each bucket both
    ends (its tightest fit and its widest room), tightest bucket first."""

    TIGHTEST = auto()
    WIDEST = auto()
    ENDS = auto()


class Bucket:
    """Nodes with the same free GPUs: memory and name, ascending, by the shape of their free cores."""

    __slots__ = ("by_cores", "shapes")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.by_cores: dict[Shape, list[tuple[int, str]]] = {}


class Tier:
    """Nodes of one priority: buckets by the shape of their free GPUs."""

    __slots__ = ("shapes", "buckets")

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.buckets: dict[Shape, Bucket] = {}


class Index:
    """Usable nodes by their free capacity."""

    def __init__(self) -> None:
        self._tiers = [Tier() for _ in range(TIERS)]
        """Those of the highest priority first."""
        self._index_keys: dict[str, IndexKey] = {}
        self._changed: dict[str, tuple[float, Room]] = {}
        """Changed nodes, with their priority."""

    def __len__(self) -> int:
        return len(self._index_keys)

    def __contains__(self, name: str) -> bool:
        return name in self._index_keys

    def put(self, name: str, priority: float, room: Room) -> None:
        """Add or update a node."""
        self._changed[name] = (priority, room)
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
            for name, (priority, room) in changed.items():
                self.move(name, key_of_room(priority, room))
        return self._index_keys

    def fill(self, keys: Iterable[tuple[str, IndexKey]]) -> None:
        """Bulk-load an empty index."""
        for name, key in keys:
            self._index_keys[name] = key
            tier, gpus, cores, memory = key
            buckets = self._tiers[tier].buckets
            if (bucket := buckets.get(gpus)) is None:
                bucket = buckets[gpus] = Bucket()
            if (row := bucket.by_cores.get(cores)) is None:
                row = bucket.by_cores[cores] = []
            row.append((memory, name))
        for one in self._tiers:
            one.shapes = sorted(one.buckets)
            for bucket in one.buckets.values():
                bucket.shapes = sorted(bucket.by_cores)
                for row in bucket.by_cores.values():
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
        bucket = self._tiers[tier].buckets.get(gpus)
        if bucket is None:
            insort(self._tiers[tier].shapes, gpus)
            bucket = self._tiers[tier].buckets[gpus] = Bucket()
        row = bucket.by_cores.get(cores)
        if row is None:
            insort(bucket.shapes, cores)
            bucket.by_cores[cores] = [(memory, name)]
        else:
            insort(row, (memory, name))

    def _remove(self, name: str, key: IndexKey) -> None:
        at, gpus, cores, memory = key
        tier = self._tiers[at]
        bucket = tier.buckets[gpus]
        row = bucket.by_cores[cores]
        del row[bisect_left(row, (memory, name))]
        if not row:
            del bucket.by_cores[cores]
            del bucket.shapes[bisect_left(bucket.shapes, cores)]
            if not bucket.shapes:
                del tier.buckets[gpus]
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
                buckets = _buckets(tier, wanted.gpu, loosest)
                for bucket in buckets:
                    search(bucket, wanted, start + most, found, accept)
                    if len(found) >= start + most:
                        break
                if order is Order.ENDS and start < len(found) < start + FEW_ENDS:
                    found[start:] = _more(buckets, wanted, found[start:], accept)
        return found

    def most(self) -> list[str]:
        """In each tier, a node with the most free GPUs and one with the most free cores."""
        self.flush()
        best: dict[str, None] = {}
        for tier in self._tiers:
            if tier.shapes:
                last = tier.buckets[tier.shapes[-1]]
                best[last.by_cores[last.shapes[-1]][-1][1]] = None
                widest = max(tier.buckets.values(), key=lambda bucket: bucket.shapes[-1])
                best[widest.by_cores[widest.shapes[-1]][-1][1]] = None
        return list(best)


def key_of_room(priority: float, room: Room) -> IndexKey:
    """The key of a node with this room."""
    tier = TIERS - 1 - min(TIERS - 1, max(0, int(priority * 4)))
    gpus = (room.whole_gpus, max(room.gpu_parts.values()) if room.gpu_parts else 0)
    cores = (len(room.free), max(room.parts.values()) if room.parts else 0)
    return tier, gpus, cores, room.free_memory


def _buckets(tier: Tier, gpu: int, loosest: bool) -> list[Bucket]:
    shapes, buckets = tier.shapes, tier.buckets
    if not gpu:  # also of the widest rooms, those with no idle GPU come first
        return [buckets[shape] for shape in shapes]
    if gpu >= MILLI:
        fitting = shapes[bisect_left(shapes, (gpu // MILLI, 0)) :]
        return [buckets[shape] for shape in (reversed(fitting) if loosest else fitting)]
    if loosest:
        return [buckets[shape] for shape in reversed(shapes) if shape[0] or shape[1] >= gpu]
    # A device that is shared already comes before a whole one.
    shared = [buckets[shape] for shape in shapes if shape[1] >= gpu]
    return shared + [buckets[shape] for shape in shapes if shape[1] < gpu and shape[0]]


def _search(bucket: Bucket, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    memory = wanted.memory
    shapes = bucket.shapes
    # A fraction fits beside exactly as many whole cores where a shared core has it, and else takes one core more.
    for shape in shapes[bisect_left(shapes, (whole, part)) :]:
        if part and shape[0] == whole and shape[1] < part:
            continue
        row = bucket.by_cores[shape]
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


def _search_loosest(bucket: Bucket, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    whole, part = divmod(wanted.cpu, MILLI)
    for shape in reversed(bucket.shapes):
        if shape < (whole, part):
            return
        if part and shape[0] == whole and shape[1] < part:
            continue
        for memory, name in reversed(bucket.by_cores[shape]):
            if memory < wanted.memory:
                break
            if accept is None or accept(name):
                found.append(name)
                if len(found) >= end:
                    return


def _search_ends(bucket: Bucket, wanted: Resources, end: int, found: list[str], accept: Accept | None) -> None:
    shapes, before = bucket.shapes, len(found)
    if shapes[-1] < (wanted.cpu // MILLI, 0):
        return
    _search(bucket, wanted, before + 1, found, accept)
    if before < len(found) < end and (len(shapes) > 1 or len(bucket.by_cores[shapes[0]]) > 1):
        _search_loosest(bucket, wanted, before + 2, found, accept)
        if found[-1] == found[-2]:
            found.pop()


def _more(buckets: list[Bucket], wanted: Resources, found: list[str], accept: Accept | None) -> list[str]:
    tightest: list[str] = []
    for bucket in buckets:
        _search(bucket, wanted, FEW_ENDS, tightest, accept)
        if len(tightest) >= FEW_ENDS:
            break
    return [*dict.fromkeys((*found, *tightest))]


_SEARCHES = {Order.TIGHTEST: _search, Order.WIDEST: _search_loosest, Order.ENDS: _search_ends}
