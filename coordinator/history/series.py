"""The series of a node's history, and their encoding in 16 bits: a bucket of ten seconds or a row of the database has
one code for each series. The last hour of a node is a ring of 360 buckets (11.3 KiB)."""

import math
import sys
from array import array
from enum import IntEnum

from distributed_grid.protocol.history.buckets import KEPT, Bucket, MeanMax
from distributed_grid.protocol.history.trends import Measured

GAP = 0xFFFF
"""The code of a value that was not measured."""
MOST = 0xFFFE
MINUTE = 6
"""Buckets in a minute."""
RATE = 2000.0
"""Codes of rates are logarithmic: 0.05 % apart."""


class Series(IntEnum):
    """All series of a node, by their index. Those of use are parts of what the node has; `MOST` are maxima."""

    FOREIGN_CPU = 0
    FOREIGN_CPU_MOST = 1
    OWN_CPU = 2
    FOREIGN_MEMORY = 3
    FOREIGN_MEMORY_MOST = 4
    OWN_MEMORY = 5
    FOREIGN_GPU = 6
    OWN_GPU = 7
    GPU_MOST = 8
    FOREIGN_GPU_MEMORY = 9
    OWN_GPU_MEMORY = 10
    WAITS_CPU = 11
    WAITS_MEMORY = 12
    WAITS_IO = 13
    DISK = 14
    NET = 15


COUNT = len(Series)
MAXIMA = frozenset({Series.FOREIGN_CPU_MOST, Series.FOREIGN_MEMORY_MOST, Series.GPU_MOST})
RATES = frozenset({Series.DISK, Series.NET})
BYTES = 2 * COUNT

PARTS: dict[Measured, tuple[Series, ...]] = {
    Measured.CPU: (Series.FOREIGN_CPU, Series.OWN_CPU),
    Measured.MEMORY: (Series.FOREIGN_MEMORY, Series.OWN_MEMORY),
    Measured.GPU: (Series.FOREIGN_GPU, Series.OWN_GPU),
    Measured.GPU_MEMORY: (Series.FOREIGN_GPU_MEMORY, Series.OWN_GPU_MEMORY),
    Measured.DISK: (Series.DISK,),
    Measured.NET: (Series.NET,),
}
"""The series whose sum is all use of a resource; the first is the owner's."""


def code(part: float) -> int:
    """The code of a part of 1. What is beyond is cut off; NaN is a gap."""
    if 0.0 <= part <= 1.0:
        return int(part * MOST + 0.5)
    return MOST if part > 1.0 else 0 if part < 0.0 else GAP


def code_rate(rate: float) -> int:
    """The code of bytes per second."""
    if rate >= 0.0:
        return min(MOST, int(math.log1p(rate) * RATE + 0.5))
    return 0 if rate < 0.0 else GAP


def value(found: int, series: int) -> float:
    """The value of a code; NaN for a gap."""
    if found == GAP:
        return math.nan
    return math.expm1(found / RATE) if series in RATES else found / MOST


def values(codes: "array[int]", series: int) -> list[float]:
    """The values of the codes of one series."""
    if series in RATES:
        return [value(one, series) for one in codes]
    return [math.nan if one == GAP else one / MOST for one in codes]


def encode(bucket: Bucket) -> tuple[int, ...]:
    """The codes of a bucket. GPUs are summed up by their mean utilisation and by their memory together."""
    cores, memory, waiting = max(1, bucket.cores), max(1, bucket.memory_total), bucket.waiting
    if gpus := bucket.gpus:
        count, room = 100.0 * len(gpus), max(1, sum(gpu.memory_total for gpu in gpus))
        foreign = sum(gpu.foreign.mean for gpu in gpus) / count
        theirs = sum(gpu.memory_foreign.mean for gpu in gpus) / room
        of_gpus = (
            code(foreign),
            code(sum(gpu.utilisation.mean for gpu in gpus) / count - foreign),
            code(max(gpu.utilisation.most for gpu in gpus) / 100.0),
            code(theirs),
            code(sum(gpu.memory.mean for gpu in gpus) / room - theirs),
        )
    else:
        of_gpus = (GAP,) * 5
    return (
        code(bucket.foreign_cpu.mean / cores),
        code(bucket.foreign_cpu.most / cores),
        code(bucket.own_cpu.mean / cores),
        code(bucket.foreign_memory.mean / memory),
        code(bucket.foreign_memory.most / memory),
        code(bucket.own_memory.mean / memory),
        *of_gpus,
        code(waiting.get("cpu", _NONE).mean / 100.0),
        code(waiting.get("memory", _NONE).mean / 100.0),
        code(waiting.get("io", _NONE).mean / 100.0),
        code_rate(bucket.disk.mean),
        code_rate(bucket.net.mean),
    )


_NONE = MeanMax()


def joined(codes: "array[int]", series: int) -> int:
    """The code of several intervals together: their mean, or their maximum; a gap where all are."""
    there = [one for one in codes if one != GAP]
    if not there:
        return GAP
    if series in MAXIMA:
        return max(there)
    if series in RATES:
        return code_rate(sum(value(one, series) for one in there) / len(there))
    return (2 * sum(there) + len(there)) // (2 * len(there))


def row(codes: list[int]) -> bytes:
    """The codes as a row of the database, in an order of bytes that no machine changes."""
    found = array("H", codes)
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def rows(data: bytes) -> "array[int]":
    """The codes of rows, one after the other."""
    found = array("H")
    found.frombytes(data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


class Ring:
    """The last hour of one node: buckets by number, counted in grid time, with gaps where nothing was measured.
    `began`: the first one received."""

    __slots__ = ("_codes", "began", "newest")

    def __init__(self, began: int) -> None:
        self._codes = array("H", (GAP,)) * (COUNT * KEPT)
        self.began = began
        self.newest = began - 1

    def put(self, number: int, codes: tuple[int, ...]) -> bool:
        """Store a bucket; False if it is older than an hour."""
        newest, ring = self.newest, self._codes
        if number > newest:
            if number > newest + 1:
                self._clear(max(newest + 1, number - KEPT + 1), number)
            self.newest = number
        elif number <= newest - KEPT:
            return False
        elif number < self.began:
            self.began = number
        at = number % KEPT
        for one in codes:
            ring[at] = one
            at += KEPT
        return True

    def _clear(self, first: int, behind: int) -> None:
        for number in range(first, behind):
            for at in range(number % KEPT, COUNT * KEPT, KEPT):
                self._codes[at] = GAP

    def span(self, series: Series, first: int, behind: int) -> "array[int]":
        """The codes of one series from bucket `first` to before `behind`; gaps where the hour does not reach."""
        base, oldest = series * KEPT, self.newest - KEPT + 1
        here = range(max(first, oldest), min(behind, self.newest + 1))
        if not here:
            return array("H", (GAP,)) * max(0, behind - first)
        found = array("H", (GAP,)) * (here.start - first)
        begin, size = here.start % KEPT, len(here)
        found += self._codes[base + begin : base + min(KEPT, begin + size)]
        if begin + size > KEPT:
            found += self._codes[base : base + begin + size - KEPT]
        return found + array("H", (GAP,)) * (behind - here.stop)

    def minute(self, number: int) -> list[int] | None:
        """The codes of a minute (counted in grid time); None where nothing of it was measured."""
        first = number * MINUTE
        if not self.newest - KEPT < first + MINUTE - 1 or first > self.newest:
            return None
        found = [joined(self.span(one, first, first + MINUTE), one) for one in Series]
        return found if any(one != GAP for one in found) else None
