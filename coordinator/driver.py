"""The driver: the commit pipeline (core/pipeline.py) on the asyncio loop, with a disk, clocks and a writer thread.

Each turn hands a batch of events to the ledger. Small commits on a quick disk are done on the loop, all others in the
thread, so that heartbeats do not wait for a slow disk. A commit that fails is retried until it succeeds.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from distributed_grid.coordinator.core.commands import Command, Event, HeartbeatReceived, Record
from distributed_grid.coordinator.core.pipeline import NEVER, Mutator, Pipeline
from distributed_grid.coordinator.core.rollback import CHOOSE, loss_words
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreFailed
from distributed_grid.coordinator.store.rows import Snapshot
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.text import format_duration
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import to_next_second

QUICK_SECONDS = 0.02
QUICK_RECORDS = 512
"""A small commit on a disk that has been quick lately is done on the loop, any other in the writer's thread.

Handing over to a thread costs two waits for the interpreter. Measured (2 shared cores, fsync 0.2 ms; four rounds each):
one job from submit to done 1.2-1.9 ms at the median and 1.9-4.2 at p99 on the loop, 1.6-2.1 and 2.9-9.8 through the
thread; null jobs 5,000-7,400 a second against 4,100-6,300. But a disk that takes its time must not keep the heartbeats
waiting, nor must a large commit."""
STOOD_STILL = 3.0
"""Seconds by which grid time goes on at the most without a beat of the clock, of which there is one a second. With the
two between heartbeats they are fewer than those after which a node counts as silent."""
AHEAD = 60.0
"""Seconds by which the store may be ahead of the wall clock before that is told."""
CROWDED = 4096
"""Events in the queue from which on connections are not read further."""

log = get_logger("driver")


class LedgerBroken(Exception):
    """The ledger refused its own state: a bug. Nothing may go on with it; a restart replays from the store."""


class Keeper(Protocol):
    """The interface of the store that the driver uses."""

    def snapshot(self, records: list[Record], clock: float) -> Snapshot: ...
    def commit(self, snapshot: Snapshot) -> None: ...
    def reopen(self) -> None: ...
    def secure(self) -> DiskTrouble | None: ...


class Clock:
    """Grid time: seconds since the epoch that never jump and never run backwards, over restarts too. Once it `beat`s it
    stands still while this process does (SIGSTOP, a frozen container or virtual machine, swap): messages of nodes were
    not received meanwhile, and nodes do not count as silent for that."""

    def __init__(self, stored: float, wall: float | None = None) -> None:
        wall = time.time() if wall is None else wall
        self._from = max(wall, stored) - time.monotonic()
        if (ahead := stored - wall) > AHEAD:
            log.warning(
                f"this machine's clock is {format_duration(ahead)} behind the latest time in the store",
                why="it is wrong now, or was ahead before",
                hint="see that it is right: date; times that are shown stay ahead by that much",
            )
        self._last = NEVER
        self._thread = threading.get_ident()

    def __call__(self) -> float:
        now = time.monotonic()
        # This thread never read it as later than STOOD_STILL after the last beat, so it does not go back.
        if (still := now - self._last - STOOD_STILL) > 0.0 and threading.get_ident() == self._thread:
            self._from, self._last = self._from - still, now
            log.warning("this process stood still, and grid time with it", seconds=round(still, 1))
        return self._from + now

    def beat(self) -> None:
        """Record that this process runs; to be called every second from the first time on."""
        self()
        self._last = time.monotonic()


class Trouble:
    """The failures of the disk and of the store. `on_change` gets the one-line status when a failure begins, and an
    empty one when it is over."""

    def __init__(self) -> None:
        self.error: GridError | None = None
        self.found: tuple[str, ...] = ()
        """What shows that the store has lost commits."""
        self.on_change: Callable[[str], None] = lambda words: None
        self._began = 0.0

    def update(self, error: GridError | None) -> None:
        """Set the failure of the disk; None: there is none."""
        before, self.error = self.error, error
        if error is not None and before is None:
            self._began = time.monotonic()
            log.error("the grid takes no new jobs: the disk is in trouble", what=error.what, why=error.why)
            self.on_change(self.words())
        elif error is None and before is not None:
            log.warning("the disk has recovered, new jobs are taken", seconds=round(time.monotonic() - self._began, 1))
            self.on_change(self.words())

    def alarm(self, *found: str) -> None:
        """The store has lost commits, as this shows: that is not over before an operator has chosen."""
        self.found += tuple(one for one in found if one not in self.found)
        for one in found:
            log.error("nothing is started: the store has lost commits", found=one, hint=CHOOSE)
        self.on_change(self.words())

    def words(self) -> str:
        """One-line status; empty: no trouble."""
        said = [loss_words(self.found)] if self.found else []
        if self.error is not None:
            since = format_duration(time.monotonic() - self._began)
            said.append(f"no new jobs are taken since {since}: {self.error.what} ({self.error.why}); {self.error.hint}")
        return "; ".join(said)

    def refuse_new(self) -> None:
        """Raise GridError for requests that would start something."""
        if self.found:
            hint = f"an operator is to {CHOOSE}; what runs is not affected"
            raise GridError("the grid takes no new jobs now: its store has lost commits", self.found[0], hint)
        self.refuse()

    def refuse(self) -> None:
        """Raise GridError for a request that would need the disk."""
        if self.error is not None:
            why = f"{self.error.what}: {self.error.why}"
            hint = f"{self.error.hint}; the grid goes on by itself, and what runs is not affected"
            raise GridError("the grid takes no new jobs and orders now", why, hint)


class Driver:
    """Call `put` from the loop; `failed` gets the reason when nothing can go on (LedgerBroken, StoreFailed). `trouble`
    says whether the disk is in trouble, which passes."""

    def __init__(self, ledger: Mutator, store: Keeper, clock: Clock) -> None:
        self._pipeline = Pipeline(ledger)
        self._store = store
        self._clock = clock
        self._perform: Callable[[Any], None] = lambda command: None
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.trouble = Trouble()
        self._turn_due = False
        self._write: asyncio.Task[None] | None = None
        self._secure: asyncio.Task[None] | None = None
        # One thread, because there is one writer.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._commit_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._armed = NEVER
        self._room: asyncio.Future[None] | None = None
        self._leaving = self._closing = False

    def put(self, event: Event) -> None:
        """Something happened. Taken in order."""
        self._pipeline.put(event)
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def heartbeat(self, event: HeartbeatReceived) -> None:
        """Handle a heartbeat. If no event is queued before it, it is a turn of its own, at once: nearly always without
        consequence."""
        if self._turn_due or self._pipeline.queue or self.failed.done() or self._closing:
            self.put(event)
            return
        try:
            followed = self._pipeline.heartbeat(event, self._clock())
        except Exception as error:
            self._broken(error)
            return
        if followed or self._pipeline.next_time() < self._armed:
            self._advance()

    def begin(self, perform: Callable[[Any], None], restored: list[Command]) -> None:
        """Let `perform` carry out all commands that are no records from now on, first those of the restored ledger."""
        self._perform = perform
        self._beat()
        self._pipeline.secured(self._store.secure(), self._clock())
        self._pipeline.take(restored)
        self._advance()

    def _beat(self) -> None:
        self._clock.beat()
        self._beating = self._loop.call_later(to_next_second(), self._beat)

    @property
    def crowded(self) -> bool:
        return len(self._pipeline.queue) > CROWDED

    def being_stored(self) -> Iterator[Record]:
        """Return the records of the ledger that are not on disk yet."""
        return self._pipeline.records()

    async def room(self) -> None:
        """Wait until the queue is short; to be called before reading events from outside. Once it has been, all waiting
        readers have a turn, even if one of them has filled it again before the others: else a peer that floods would
        keep them all waiting."""
        if self.crowded and not self.failed.done():
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    async def close(self) -> None:
        """Handle what is queued, make it durable, perform it, and stop. After a disk failure one more attempt is made:
        records that fail then were not acknowledged."""
        self._leaving = True
        while not (self._pipeline.idle and self._write is None) and not self.failed.done():
            if not self._pipeline.queue:
                self._pipeline.hurry()
                self._advance()
            await (self._write or asyncio.sleep(0))
        self._closing = True
        for pending in (self._timer, self._secure, self._beating):
            if pending is not None:
                pending.cancel()
        self._writer.shutdown(wait=True)

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_due = False
        if self.failed.done() or self._closing:
            return
        try:
            self._pipeline.turn(self._clock())
        except Exception as error:
            self._broken(error)
            return
        self._advance()

    def _broken(self, error: Exception) -> None:
        event = self._pipeline.handling
        log.critical("the ledger is broken", doing=repr(event) if event else "settle", exc_info=True)
        self._fail(LedgerBroken(f"{type(error).__name__}: {error}"))

    def _advance(self) -> None:
        """Carry out the next steps of the pipeline."""
        if self.failed.done():
            return
        if self._pipeline.trouble is not self.trouble.error:
            self.trouble.update(self._pipeline.trouble)
        now = self._clock()
        try:
            if commands := self._pipeline.performable(now):
                self._perform_these(commands)
        except Exception as error:
            self._fail_performing(error)
            return
        if self._write is None and self._pipeline.write_due(now):
            if self._is_quick():
                self._write_now()
                return
            self._write = self._loop.create_task(self._write_all())
        if self._secure is None and self._pipeline.take_secure(now):
            self._secure = self._loop.create_task(self._secure_reserve())
        if self._pipeline.queue and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)
        if self._room is not None and not self.crowded:
            self._room.set_result(None)
            self._room = None
        self._arm()

    @fault("coordinator.perform")
    def _perform_these(self, commands: list[Command]) -> None:
        for command in commands:
            self._perform(command)

    def _fail_performing(self, error: Exception) -> None:
        log.critical("a command could not be performed", exc_info=True)
        self._fail(LedgerBroken(f"{type(error).__name__}: {error}"))

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
        if self._room and not self._room.done():
            self._room.set_result(None)

    # --- the disk -----------------------------------------------------------------------------------------------------

    def _is_quick(self) -> bool:
        """Whether the next write is done on the loop."""
        pipeline = self._pipeline
        return not pipeline.refused and pipeline.gathered <= QUICK_RECORDS and self._commit_seconds < QUICK_SECONDS

    def _write_now(self) -> None:
        """Write on the loop, without a task: a start and an end wait for it."""
        pipeline = self._pipeline
        try:
            records = pipeline.begin_write(self._clock())
            snapshot, began = self._store.snapshot(records, self._clock()), time.monotonic()
            self._store.commit(snapshot)
            self._took(len(records), time.monotonic() - began)
        except DiskTrouble as error:
            pipeline.refuse(error, self._clock())
        except StoreFailed as error:
            self._fail(error)
        except Exception as error:
            self._fail_performing(error)
        else:
            pipeline.written()
        self._advance()

    async def _write_all(self) -> None:
        pipeline = self._pipeline
        try:
            while pipeline.write_due(self._clock()) and not self.failed.done():
                again = pipeline.refused
                try:
                    if again:
                        await self._loop.run_in_executor(self._writer, self._store.reopen)
                    await self._commit(pipeline.begin_write(self._clock()), again)
                except DiskTrouble as error:
                    if again and self._leaving:
                        raise
                    pipeline.refuse(error, self._clock())
                else:
                    pipeline.written()
                self._advance()
                if self._is_quick():
                    break
        except StoreFailed as error:
            self._fail(error)
        except Exception as error:
            self._fail_performing(error)
        finally:
            self._write = None
        self._advance()

    async def _commit(self, records: list[Record], again: bool) -> None:
        snapshot, size = self._store.snapshot(records, self._clock()), len(records)
        began = time.monotonic()
        self._arm()  # for a write that stalls
        await self._loop.run_in_executor(self._writer, self._store.commit, snapshot)
        if again:
            self._commit_seconds = 1.0  # not on the loop before it has been quick for a while
        else:
            self._took(size, time.monotonic() - began)

    def _took(self, size: int, seconds: float) -> None:
        if size <= QUICK_RECORDS:
            # The slowest of late counts; 14 quicker ones halve it.
            self._commit_seconds = max(seconds, self._commit_seconds * 0.95)

    async def _secure_reserve(self) -> None:
        error = await self._loop.run_in_executor(self._writer, self._store.secure)
        self._secure = None
        self._pipeline.secured(error, self._clock())
        self._advance()

    # --- deadlines ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """A timer that is early finds nothing to do and is set again; so it is only moved to come sooner."""
        when = self._pipeline.next_time()
        if when >= self._armed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = when
        self._timer = self._loop.call_later(max(0.001, when - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer, self._armed = None, NEVER
        if not self.failed.done() and not self._closing:
            self._pipeline.tick(self._clock())
            self._advance()
