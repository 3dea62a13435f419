"""Between the world and the ledger: events in a queue, the ledger's answer made durable, then performed.

One turn hands a batch of events to the ledger. Records of a batch are committed before any other command of it is
performed, and commands are performed in the order the ledger gave them. While a commit is under way further batches are
handled and gather for the next one, so a burst shares commits without anybody waiting for company.

A disk that does not take a commit is tried again until it does. What happens meanwhile joins the batch: nothing of it
is performed before it is stored, nothing new is started, and nothing that was stored before is affected.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import structlog

from distributed_grid.coordinator.core.commands import MAY_WAIT, RECORDS, Command, Event, Hold, Record, Send, Tick
from distributed_grid.coordinator.core.pipeline import newest_commands, newest_records
from distributed_grid.coordinator.core.rollback import CHOOSE, loss_words
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreFailed
from distributed_grid.coordinator.store.rows import Snapshot
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Renewed
from distributed_grid.protocol.text import format_duration
from distributed_grid.runtime.faults import fault

log = structlog.get_logger("disk")


class Trouble:
    """Whether there is any. `told` is called with the words when it begins, and with none when it is over."""

    def __init__(self) -> None:
        self.error: DiskTrouble | None = None
        self.found: tuple[str, ...] = ()
        """What shows that the store has lost commits."""
        self.told: Callable[[str], None] = lambda words: None
        self._began = 0.0

    def begin(self, error: DiskTrouble) -> bool:
        """It is here, for this reason; whether it was not before."""
        first, self.error = self.error is None, error
        if first:
            self._began = time.monotonic()
            log.error("the grid takes no new jobs: the disk is in trouble", what=error.what, why=error.why)
            self.told(self.words())
        return first

    def end(self) -> None:
        """It is over."""
        log.warning("the disk is well again, new jobs are taken", seconds=round(time.monotonic() - self._began, 1))
        self.error = None
        self.told(self.words())

    def alarm(self, *found: str) -> None:
        """The store has lost commits, as this shows: that is not over before an operator has chosen."""
        self.found += tuple(one for one in found if one not in self.found)
        for one in found:
            log.error("nothing is started: the store has lost commits", found=one, hint=CHOOSE)
        self.told(self.words())

    def words(self) -> str:
        """It in one sentence, for who asks how the grid is; empty: there is none."""
        said = [loss_words(self.found)] if self.found else []
        if self.error is not None:
            since = format_duration(time.monotonic() - self._began)
            said.append(f"no new jobs are taken since {since}: {self.error.what} ({self.error.why}); {self.error.hint}")
        return "; ".join(said)

    def refuse_new(self) -> None:
        """Raise GridError for who would have something started."""
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


BATCH = 256
"""Events a turn hands to the ledger; then the loop gets to its sockets."""
QUICK_SECONDS = 0.02
QUICK_RECORDS = 512
"""A small commit on a disk that has been quick lately is done on the loop, any other in the writer's thread.

Handing over to a thread costs two waits for the interpreter. Measured (2 shared cores, fsync 0.2 ms; four rounds each):
one job from submit to done 1.2-1.9 ms at the median and 1.9-4.2 at p99 on the loop, 1.6-2.1 and 2.9-9.8 through the
thread; null jobs 5,000-7,400 a second against 4,100-6,300. But a disk that takes its time must not keep the heartbeats
waiting, nor must a large commit."""
SOON_SECONDS = 0.05
"""How long a record that may wait waits for company on its way to the disk."""
STALLED_SECONDS = 10.0
"""A commit that takes longer is trouble already, though nobody can say yet whether it will fail."""
AGAIN_SECONDS = 1.0
"""How often it is tried whether the disk is well again."""
CROWDED = 4096
"""Events in the queue from which on connections are not read further."""

log = structlog.get_logger("driver")


class LedgerBroken(Exception):
    """The ledger refused its own state: a bug. Nothing may go on with it; a restart replays from the store."""


class Mutator(Protocol):
    """What the driver needs of the ledger."""

    def handle(self, event: Event, now: float) -> list[Command]: ...
    def settle(self, now: float) -> list[Command]: ...
    def next_deadline(self) -> float | None: ...


class Keeper(Protocol):
    """What the driver needs of the store."""

    def snapshot(self, records: list[Record], clock: float) -> Snapshot: ...
    def commit(self, snapshot: Snapshot) -> None: ...
    def reopen(self) -> None: ...
    def secure(self) -> DiskTrouble | None: ...


class Clock:
    """Grid time: seconds since the epoch that never jump and never run backwards, over restarts too."""

    def __init__(self, stored: float, wall: float | None = None) -> None:
        self._from = max(time.time() if wall is None else wall, stored) - time.monotonic()

    def __call__(self) -> float:
        return self._from + time.monotonic()


class Driver:
    """Call `put` from the loop; `failed` gets the reason when nothing can go on (LedgerBroken, StoreFailed). `trouble`
    says whether the disk is in trouble, which passes."""

    def __init__(self, ledger: Mutator, store: Keeper, clock: Clock) -> None:
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._perform: Callable[[Any], None] = lambda command: None
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._queue: deque[Event] = deque()
        self._turn_due = False
        self._records: list[Record] = []
        self._urgent = False
        self._later: asyncio.TimerHandle | None = None
        self._storing: list[Record] = []
        self._commands: list[Command] = []
        self._commit: asyncio.Task[None] | None = None
        # One thread, because there is one writer.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._commit_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")
        self._room: asyncio.Future[None] | None = None
        self.trouble = Trouble()
        self._refused = False
        self._relief: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._closing = False

    def put(self, event: Event) -> None:
        """Something happened. Taken in order."""
        self._queue.append(event)
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def begin(self, perform: Callable[[Any], None], restored: list[Command]) -> None:
        """From now on `perform` does what is not a record. First what restoring the ledger asked for."""
        self._perform = perform
        if (error := self._store.secure()) is not None:
            self._in_trouble(error)
        self._take(restored)
        self._finish_turn()

    @property
    def crowded(self) -> bool:
        return len(self._queue) > CROWDED

    def being_stored(self) -> Iterator[Record]:
        """What the ledger has recorded and the disk does not have yet."""
        yield from self._storing
        yield from self._records

    async def room(self) -> None:
        """Wait until the queue is short: who reads events from outside calls this first."""
        while self.crowded and not self.failed.done():
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    async def close(self) -> None:
        """Handle what is queued, make it durable, perform it, and stop. In trouble the disk is tried once more: what it
        does not take then was acknowledged to nobody."""
        self._leaving.set()
        while (self._queue or self._commit or self._records) and not self.failed.done():
            if not self._queue:
                self._now()
            await (self._commit or asyncio.sleep(0))
        self._closing = True
        for pending in (self._timer, self._later, self._relief):
            if pending:
                pending.cancel()
        self._writer.shutdown(wait=True)

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_due = False
        if self.failed.done() or self._closing:
            return
        now = self._clock()
        event: Event | None = None
        try:
            for _ in range(min(BATCH, len(self._queue))):
                event = self._queue.popleft()
                self._take(self._ledger.handle(event, now))
            event = None
            self._take(self._ledger.settle(now))
        except Exception as error:
            log.critical("the ledger is broken", doing=repr(event) if event else "settle", exc_info=True)
            self._fail(LedgerBroken(f"{type(error).__name__}: {error}"))
            return
        if self._queue:
            self._turn_due = True
            self._loop.call_soon(self._turn)
        self._finish_turn()

    def _take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, RECORDS):
                self._records.append(command)
                self._urgent = self._urgent or not (isinstance(command, MAY_WAIT) and command.soon)
            elif type(command) is Send and type(command.message) is Renewed:
                self._perform(command)  # it rests on no record, and a slow disk must not let a lease expire
            else:
                self._commands.append(command)

    def _finish_turn(self) -> None:
        if self._room and not self.crowded:
            self._room.set_result(None)
            self._room = None
        self._arm()
        if self._commit is not None:
            return
        if self._urgent:
            self._commit = self._loop.create_task(self._commit_all())
            return
        self._perform_all()

    def _now(self) -> None:
        """What could wait has waited long enough."""
        self._later = None
        if self._records and not self._closing:
            self._urgent = True
            self._finish_turn()

    async def _commit_all(self) -> None:
        try:
            while self._urgent and not self.failed.done():
                self._storing, self._records, self._urgent = self._records, [], False
                commands, self._commands = self._commands, []
                try:
                    await self._commit_one()
                except DiskTrouble as error:
                    commands = await self._insist(error, commands)
                self._storing = []
                self._perform_these(commands)
            self._perform_all()
        except StoreFailed as error:
            self._fail(error)
        except Exception as error:
            log.critical("a command could not be performed", exc_info=True)
            self._fail(LedgerBroken(f"{type(error).__name__}: {error}"))
        finally:
            self._commit = None

    async def _commit_one(self) -> None:
        snapshot, size = self._store.snapshot(self._storing, self._clock()), len(self._storing)
        began = time.monotonic()
        if size <= QUICK_RECORDS and self._commit_seconds < QUICK_SECONDS:
            self._store.commit(snapshot)
        else:
            await self._in_thread(snapshot)
        if size <= QUICK_RECORDS:
            # The slowest of late counts; 14 quicker ones halve it.
            self._commit_seconds = max(time.monotonic() - began, self._commit_seconds * 0.95)

    async def _in_thread(self, snapshot: Snapshot) -> None:
        stalled = self._loop.call_later(STALLED_SECONDS, self._stalled)
        try:
            await self._loop.run_in_executor(self._writer, self._store.commit, snapshot)
        finally:
            stalled.cancel()

    def _perform_all(self) -> None:
        """What is due now; records that may wait are left, for the next commit or a timer."""
        if self.failed.done():
            return
        if self._records and self._later is None:
            self._later = self._loop.call_later(SOON_SECONDS, self._now)
        commands, self._commands = self._commands, []
        if not commands:
            return
        try:
            self._perform_these(commands)
        except Exception as error:
            log.critical("a command could not be performed", exc_info=True)
            self._fail(LedgerBroken(f"{type(error).__name__}: {error}"))

    @fault("coordinator.perform")
    def _perform_these(self, commands: list[Command]) -> None:
        for command in commands:
            self._perform(command)

    # --- a disk in trouble --------------------------------------------------------------------------------------------

    async def _insist(self, error: DiskTrouble, commands: list[Command]) -> list[Command]:
        """Try until the disk takes the batch, and what has joined it meanwhile. All the commands that waited for that;
        raises the trouble only where we are told to leave."""
        self._refused = True
        while True:
            self._in_trouble(error)
            last = self._leaving.is_set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), AGAIN_SECONDS)
            self._storing = newest_records([*self._storing, *self._records])
            commands = newest_commands([*commands, *self._commands])
            self._records, self._commands, self._urgent = [], [], False
            try:
                await self._loop.run_in_executor(self._writer, self._store.reopen)
                await self._in_thread(self._store.snapshot(self._storing, self._clock()))
            except DiskTrouble as again:
                if last:
                    raise
                error = again
            else:
                self._refused = False
                self._commit_seconds = 1.0  # not on the loop before it has been quick for a while
                return commands

    def _stalled(self) -> None:
        why = f"a commit has been under way for {STALLED_SECONDS:g} s"
        self._in_trouble(DiskTrouble("the coordinator's disk does not answer", why, "look at that disk"))

    def _in_trouble(self, error: DiskTrouble) -> None:
        if self.trouble.begin(error):
            self.put(Hold(True))
            self._relief = self._loop.create_task(self._relieve())

    async def _relieve(self) -> None:
        """The trouble is over when the disk has taken what there is and the reserve is there again."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            error = await self._loop.run_in_executor(self._writer, self._store.secure)
            if self._refused:
                continue
            if error is None:
                self.trouble.end()
                self.put(Hold(False))
                return
            self.trouble.begin(error)

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
        if self._room and not self._room.done():
            self._room.set_result(None)

    # --- deadlines ----------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """A timer that is early finds nothing to do and is set again; so it is only moved to come sooner."""
        deadline = self._ledger.next_deadline()
        if deadline is None or deadline >= self._armed:
            return
        if self._timer:
            self._timer.cancel()
        self._armed = deadline
        self._timer = self._loop.call_later(max(0.001, deadline - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._armed = float("inf")
        if not self.failed.done() and not self._closing:
            self.put(Tick())
