"""History: stores the buckets that agents report, the last hour in memory and the rest in `history.db`, and reads
windows of them.

Nothing else waits for it, and a full or broken disk stops only history. The database belongs to one thread; the loop
spends some microseconds on a bucket."""

import asyncio
import sqlite3
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from distributed_grid.coordinator.history.database import MINUTE, HistoryDatabase, Row
from distributed_grid.coordinator.history.series import COUNT, GAP, Ring, Series, encode, row, rows
from distributed_grid.protocol.history.buckets import KEPT, SECONDS, Bucket
from distributed_grid.protocol.messages import Buckets, DayOfLoans
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import to_next_second

LATE = 15.0
"""Delay after the end of a minute before it is written (s): its last bucket has arrived by then."""
TURNS = 60
"""Number of parts that nodes are divided into; one part is written each second."""
AGAIN = 60.0
"""Interval between attempts to write where the disk refuses (s)."""
PRUNE_EVERY = 3600.0
PER_MINUTE = MINUTE // SECONDS
T = TypeVar("T")

log = get_logger("history")


class Window(NamedTuple):
    """Codes of a node's series at intervals of `step` seconds; the last interval ends at or before now."""

    step: int
    codes: dict[Series, "array[int]"]


class _Node:
    """The ring and the unwritten minutes of a connected node."""

    __slots__ = ("boot", "dirty", "newest", "offset", "ring", "through")

    def __init__(self, boot: str, offset: int, number: int) -> None:
        self.boot = boot
        self.offset = offset
        self.ring = Ring(number)
        self.newest: Bucket | None = None
        self.dirty: set[int] = set()
        """Minutes of grid time whose content in the ring is not in the database yet."""


class _Due(NamedTuple):
    """A row to write, after which buckets up to this number are acknowledged to the node in this boot."""

    row: Row
    boot: str
    through: int


class History:
    """`path`: the database; `size`: its maximum size in bytes (0: none is used); `clock`: grid time. `kept` is called
    with a node and the number of its newest bucket that is saved."""

    def __init__(self, path: Path, size: int, clock: Callable[[], float]) -> None:
        self.kept: Callable[[str, int], None] = lambda node, through: None
        self.trouble = ""
        """Why nothing can be written now; empty: it can."""
        self.learned: dict[str, bytes] = {}
        """Memories of forecasters, to be saved with the next rows."""
        self.now = clock
        """Grid time."""
        self._nodes: dict[str, _Node] = {}
        self._turns: list[set[str]] = [set() for _ in range(TURNS)]
        self._database = HistoryDatabase(path, size) if size else None
        self._thread = ThreadPoolExecutor(1, "history")
        self._writing: asyncio.Task[None] | None = None
        self._waiting: list[_Due] = []
        self._lent: dict[tuple[int, str, str, str], DayOfLoans] = {}
        """Loans that are not in the database yet, by day, lender, borrower and node."""
        self._retry = self._pruned = float("-inf")
        self._turn = 0

    # --- from agents --------------------------------------------------------------------------------------------------

    def store(self, name: str, boot: str, message: Buckets) -> None:
        """Store the buckets of a node in this boot. Their place in grid time follows from the node's clock when the
        message was sent; that offset is kept until one of the clocks jumps by more than a bucket."""
        behind = (self.now() - message.at) / SECONDS
        node = self._nodes.get(name)
        if node is None or node.boot != boot or abs(behind - node.offset) > 1.0:
            offset = round(behind)
            if node is None:
                first = message.buckets[0].number + offset if message.buckets else 0
                node = self._nodes[name] = _Node(boot, offset, first)
                self._turns[zlib.crc32(name.encode()) % TURNS].add(name)
            node.boot, node.offset = boot, offset
        latest = int(self.now()) // SECONDS + 1
        for bucket in message.buckets:
            number = bucket.number + node.offset
            if 0 < number <= latest and node.ring.put(number, encode(bucket)):
                node.dirty.add(number // PER_MINUTE)
                if number == node.ring.newest:
                    node.newest = bucket

    def lend(self, days: Iterable[DayOfLoans]) -> None:
        """Add these loans to those of their days."""
        for one in days if self._database is not None else ():
            key = (one.day, one.lender, one.borrower, one.node)
            self._lent[key] = joined_loans(self._lent.get(key), one)

    # --- to the database ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write rows when they are due, for ever."""
        while True:
            await asyncio.sleep(to_next_second())
            self.tick()

    def tick(self) -> None:
        """Process one part of the nodes."""
        now = self.now()
        self._turn = (self._turn + 1) % TURNS
        hour_ago = int(now) // SECONDS - KEPT
        for name in list(self._turns[self._turn]):
            node = self._nodes[name]
            self._gather(name, node, now)
            if node.ring.newest < hour_ago and not node.dirty:
                del self._nodes[name]
                self._turns[self._turn].discard(name)
        if now - self._pruned >= PRUNE_EVERY and self._database is not None and self._writing is None:
            self._pruned = now
            self._writing = asyncio.create_task(self._prune(self._database, now), name="history")
        self._write_soon(now)

    def _gather(self, name: str, node: _Node, now: float) -> None:
        """Gather the minutes of a node that are over."""
        for minute in sorted(one for one in node.dirty if (one + 1) * MINUTE + LATE <= now):
            node.dirty.discard(minute)
            if (codes := node.ring.minute(minute)) is not None:
                through = (minute + 1) * PER_MINUTE - 1 - node.offset
                self._waiting.append(_Due(Row(name, minute, row(codes)), node.boot, through))

    def _write_soon(self, now: float) -> None:
        if self._lent and self._database is not None and self._writing is None and now >= self._retry:
            self._writing = asyncio.create_task(self._lend(self._database), name="history")
        if not self._waiting or self._writing is not None or now < self._retry:
            return
        found, self._waiting = self._waiting, []
        if self._database is None:
            self._acknowledge(found)
        else:
            self._writing = asyncio.create_task(self._write(self._database, found), name="history")

    async def _write(self, database: HistoryDatabase, found: list[_Due]) -> None:
        try:
            learned, self.learned = self.learned, {}
            await self._in_thread(lambda: database.write([one.row for one in found], learned))
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            for one in found:  # the ring has it for an hour
                if (node := self._nodes.get(one.row.node)) is not None:
                    node.dirty.add(one.row.at)
        else:
            if self.trouble:
                log.warning("history is written again")
            self.trouble, self._retry = "", float("-inf")
            self._acknowledge(found)
        finally:
            self._writing = None

    async def _lend(self, database: HistoryDatabase) -> None:
        found, self._lent = self._lent, {}
        try:
            await self._in_thread(lambda: database.lend(found.values()))
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            later, self._lent = self._lent, found
            self.lend(later.values())
        finally:
            self._writing = None

    async def _prune(self, database: HistoryDatabase, now: float) -> None:
        try:
            await self._in_thread(lambda: database.prune(now))
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
        finally:
            self._writing = None

    def _refused(self, error: Exception) -> None:
        if not self.trouble:  # not repeated every minute
            log.warning("history is not written now; all else goes on", error=str(error))
        self.trouble, self._retry = str(error) or type(error).__name__, self.now() + AGAIN

    def _acknowledge(self, found: Sequence[_Due]) -> None:
        newest = {one.row.node: one for one in sorted(found, key=lambda one: one.row.at)}
        for name, one in newest.items():
            node = self._nodes.get(name)
            if node is not None and node.boot == one.boot and one.through >= 0:
                self.kept(name, one.through)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Write all minutes, including unfinished ones, and end the thread."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        for name, node in self._nodes.items():
            self._gather(name, node, float("inf"))
        if self._database is not None:
            found, database = [one.row for one in self._waiting], self._database
            try:
                await self._in_thread(lambda: database.write(found, self.learned))
                await self._in_thread(lambda: database.lend(self._lent.values()))
            except (sqlite3.Error, OSError) as error:
                self._refused(error)
            await self._in_thread(database.close)
        self._thread.shutdown(wait=True)

    # --- windows ------------------------------------------------------------------------------------------------------

    def newest(self, name: str) -> tuple[Bucket, float] | None:
        """The newest bucket of a node, and when it ended (grid time)."""
        node = self._nodes.get(name)
        if node is None or node.newest is None:
            return None
        return node.newest, (node.ring.newest + 1.0) * SECONDS

    def in_turn(self, turn: int) -> list[str]:
        """The nodes of one part of TURNS."""
        return list(self._turns[turn])

    def ring(self, name: str) -> Ring | None:
        """The last hour of a node; None: it has reported nothing since the start, or for an hour."""
        node = self._nodes.get(name)
        return node.ring if node is not None else None

    async def recall(self, name: str) -> bytes | None:
        """The saved memory of a node's forecaster."""
        if (waits := self.learned.get(name)) is not None:
            return waits
        if (database := self._database) is None:
            return None
        try:
            return await self._in_thread(lambda: database.recall(name))
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            return None

    async def lent(self, since: int, node: str, users: tuple[str, str], limit: int) -> tuple[list[DayOfLoans], int]:
        """The loans since a day, and how many more there are, as HistoryDatabase.lent tells them."""
        if (database := self._database) is None:
            return [], 0
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        waiting = [
            one
            for one in self._lent.values()
            if one.day >= since and node in ("", one.node) and {*users} <= {"", one.lender, one.borrower}
        ]
        try:
            found, more = await self._in_thread(lambda: database.lent(since, node, users, limit))
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            found, more = [], 0
        return merged_loans([*found, *waiting]), more

    async def names(self) -> list[str]:
        """The nodes with stored history."""
        found = set(self._nodes)
        if (database := self._database) is not None:
            try:
                found |= {*await self._in_thread(database.names)}
            except (sqlite3.Error, OSError) as error:
                self._refused(error)
        return sorted(found)

    def recent(self, name: str, seconds: int) -> Window:
        """The buckets of these last seconds, as they are in memory."""
        behind = self._behind(name)
        node = self._nodes.get(name)
        first = behind - seconds // SECONDS
        if node is None:
            return Window(SECONDS, {one: array("H", (GAP,)) * (behind - first) for one in Series})
        return Window(SECONDS, {one: node.ring.span(one, first, behind) for one in Series})

    def _behind(self, name: str) -> int:
        """The number of the unfinished bucket: a node reports a bucket some seconds after its end."""
        now = int(self.now() - SECONDS) // SECONDS
        node = self._nodes.get(name)
        return node.ring.newest + 1 if node is not None and now - node.ring.newest <= 2 else now

    async def window(self, name: str, seconds: int, step: int) -> Window:
        """A window of a node in steps of ten seconds, a minute or a quarter of an hour, from the database and memory,
        which overrides it; from memory alone if the database cannot be read."""
        if step == SECONDS:
            return await self._of_an_hour(name, seconds)
        now = self.now()
        behind = int(now) // step
        first = behind - seconds // step
        found = await self._read(name, step, first, behind)
        if step == MINUTE and (node := self._nodes.get(name)) is not None:
            for minute in range(max(first, node.ring.began // PER_MINUTE), behind):
                if (codes := node.ring.minute(minute)) is not None:
                    found.append(Row(name, minute, row(codes)))
        return Window(step, _placed(found, first, behind))

    async def _of_an_hour(self, name: str, seconds: int) -> Window:
        window, node = self.recent(name, seconds), self._nodes.get(name)
        behind = self._behind(name)
        first, began = behind - seconds // SECONDS, node.ring.began if node is not None else behind
        if began <= first:
            return window
        # What was measured before the coordinator started is in the database, by the minute.
        minutes = await self._read(name, MINUTE, first // PER_MINUTE, began // PER_MINUTE + 1)
        for one in minutes:
            for series, code in zip(Series, rows(one.codes), strict=True):
                for number in range(max(first, one.at * PER_MINUTE), min(began, (one.at + 1) * PER_MINUTE)):
                    window.codes[series][number - first] = code
        return window

    async def _read(self, name: str, step: int, first: int, behind: int) -> list[Row]:
        if self._database is None:
            return []
        database = self._database
        try:
            return (await self._in_thread(lambda: database.read([name], step, first, behind))).get(name, [])
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            return []

    async def compute(self, work: Callable[[], T]) -> T:
        """Run this in the history's thread, which then pauses for as long as it took."""

        def slowly() -> T:
            began = time.thread_time()
            found = work()
            time.sleep(time.thread_time() - began)
            return found

        return await self._in_thread(slowly)


def joined_loans(one: DayOfLoans | None, other: DayOfLoans) -> DayOfLoans:
    """Merge two lines of the same day, users and node."""
    if one is None:
        return other
    sums = (one.share + other.share, one.cpu + other.cpu, one.memory + other.memory, one.gpu + other.gpu)
    return DayOfLoans(one.day, one.lender, one.borrower, one.node, *sums)


def merged_loans(days: Iterable[DayOfLoans]) -> list[DayOfLoans]:
    """Merge loans to one line for each day, lender, borrower and node: the newest and largest first."""
    found: dict[tuple[int, str, str, str], DayOfLoans] = {}
    for one in days:
        key = (one.day, one.lender, one.borrower, one.node)
        found[key] = joined_loans(found.get(key), one)
    return sorted(found.values(), key=lambda one: (-one.day, -one.share, one.lender, one.borrower, one.node))


def _placed(found: Sequence[Row], first: int, behind: int) -> dict[Series, "array[int]"]:
    """Return rows as one array for each series, by interval from `first` to before `behind`; later rows override
    earlier ones."""
    codes = array("H", (GAP,)) * (COUNT * (behind - first))
    for one in found:
        if first <= one.at < behind:
            at = (one.at - first) * COUNT
            codes[at : at + COUNT] = rows(one.codes)
    return {one: codes[one::COUNT] for one in Series}
