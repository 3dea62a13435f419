"""The commit pipeline: events go into the ledger in batches, and its commands come out in the order that keeps the
grid's guarantees. Records are durable before any other command of their batch is performed; commands keep their order.

It is sans-IO, and the time is an argument. Its shell (the asyncio driver, the simulator) calls `turn` while events are
queued, writes what `begin_write` returns and reports the result, performs what `performable` returns, and calls `tick`
when `next_time` has come. While a write is under way further batches gather for the next one: a group commit.

A write that fails is retried until it succeeds. Later records join it: none of their commands is performed before they
are stored, and nothing new is started. Of several records or commands about one thing only the newest is kept, so the
backlog stays small.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from distributed_grid.coordinator.core.commands import (
    MAY_WAIT,
    RECORDS,
    AckExits,
    Audit,
    Command,
    Event,
    Publish,
    Record,
    RecordAllocation,
    RecordBalancing,
    RecordForgotten,
    RecordGroup,
    RecordJob,
    RecordLoan,
    RecordLoss,
    RecordNode,
    RecordOrders,
    RecordReceipt,
    RecordReturns,
    RecordRights,
    RecordShare,
    RecordSpent,
    Send,
    StoreFailing,
    Tick,
)
from distributed_grid.coordinator.core.scaling.events import RecordMachine, RecordPauses
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch, Renewed, Stop

BATCH = 256
"""Maximum number of events in a turn."""
SOON_SECONDS = 0.05
"""Maximum delay of a record that may wait for a group commit."""
MOST_GATHERED = 64
"""Number of records from which on no commit waits for more."""
STALLED_SECONDS = 10.0
"""A write that takes longer counts as a disk failure."""
AGAIN_SECONDS = 1.0
"""Interval between retries after a disk failure."""
LINES_KEPT = 1000
"""Maximum number of audit lines in the backlog; the newest of each node stay."""
NEVER = float("inf")
R = TypeVar("R", bound=Command)


class Mutator(Protocol):
    """The interface of the ledger that the pipeline uses."""

    def patience(self, event: Event) -> float: ...
    def handle(self, event: Event, now: float) -> list[Command]: ...
    def settle(self, now: float) -> list[Command]: ...
    def next_deadline(self) -> float | None: ...


class Pipeline:
    """Events in, writes and commands out. `trouble`: the failure of the disk; None: it works."""

    def __init__(self, ledger: Mutator) -> None:
        self.trouble: GridError | None = None
        self.queue: deque[Event] = deque()
        self.handling: Event | None = None
        """The event that the ledger is handling; None: it is settling."""
        self._ledger = ledger
        self._records: list[Record] = []
        self._commands: list[Command] = []
        self._urgent = False
        """Whether one of the gathered records may not wait."""
        self._urgent_at = NEVER
        """When the gathered starts and ends are written (NEVER: there are none)."""
        self._due: list[Command] = []
        """Commands whose records are stored."""
        self._writing: list[Record] | None = None
        self._waiting: list[Command] = []
        """Commands whose records are being written."""
        self.refused = False
        """Whether the last write failed: the retry needs a new connection, since its result is unknown."""
        self._retry_at = NEVER
        self._soon_at = NEVER
        self._stalled_at = NEVER
        self._secure_at = NEVER

    # --- events -------------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Queue an event."""
        self.queue.append(event)

    def turn(self, now: float) -> None:
        """Hand a batch of the queued events to the ledger, and have it settle. Raises what the ledger raises."""
        ledger, queue = self._ledger, self.queue
        before, self._urgent, patience = self._urgent, False, NEVER if queue else 0.0
        for _ in range(min(BATCH, len(queue))):
            self.handling = event = queue.popleft()
            if patience:
                patience = min(patience, ledger.patience(event))
            self.take(ledger.handle(event, now))
        self.handling = None
        self.take(ledger.settle(now))
        if self._urgent and patience and not before and len(self._records) < MOST_GATHERED:
            self._urgent, self._urgent_at = False, min(self._urgent_at, now + patience)
        self._urgent = self._urgent or before

    def heartbeat(self, event: Event, now: float) -> bool:
        """A turn with one event, while none is queued. Returns whether commands came of it. Raises what the ledger
        raises."""
        self.handling = event
        commands = self._ledger.handle(event, now)
        self.handling = None
        settled = self._ledger.settle(now)
        if not commands and not settled:
            return False
        self.take(commands)
        self.take(settled)
        return True

    def take(self, commands: list[Command]) -> None:
        """Sort the ledger's commands into records and what follows them."""
        for command in commands:
            if type(command) is Send:
                # A renewal needs no record, and a slow disk must not let a lease expire.
                (self._due if type(command.message) is Renewed else self._commands).append(command)
            elif isinstance(command, RECORDS):
                self._records.append(command)
                self._urgent = self._urgent or not (isinstance(command, MAY_WAIT) and command.soon)
            else:
                self._commands.append(command)

    # --- what to perform ----------------------------------------------------------------------------------------------

    def performable(self, now: float) -> list[Command]:
        """The commands to perform now, in order, each once. Starts the delay of records that may wait."""
        due, self._due = self._due, []
        if self._writing is None and not self._urgent and self._urgent_at == NEVER:
            if self._records and self._soon_at == NEVER:
                self._soon_at = now + SOON_SECONDS
            if self._commands:
                due += self._commands
                self._commands = []
        return due

    # --- what to write ------------------------------------------------------------------------------------------------

    def write_due(self, now: float) -> bool:
        """Whether something is to be written now."""
        if self._writing is None:
            return self._urgent or now >= self._urgent_at
        return now >= self._retry_at

    @property
    def gathered(self) -> int:
        """The number of records that the next write has, if it is no retry."""
        return len(self._records)

    def begin_write(self, now: float) -> list[Record]:
        """The records to write, as one transaction; report the result by `written` or `refuse`."""
        if self._writing is None:
            self._writing, self._waiting = self._records, self._commands
        else:
            self._writing = newest_records([*self._writing, *self._records])
            self._waiting = newest_commands([*self._waiting, *self._commands])
        self._records, self._commands, self._urgent = [], [], False
        self._soon_at = self._retry_at = self._urgent_at = NEVER
        self._stalled_at = now + STALLED_SECONDS
        return self._writing

    def written(self) -> None:
        """The write has succeeded."""
        self._due += self._waiting
        self._writing, self._waiting, self.refused = None, [], False
        self._stalled_at = NEVER

    def refuse(self, error: GridError, now: float) -> None:
        """The write has failed."""
        self.refused, self._retry_at, self._stalled_at = True, now + AGAIN_SECONDS, NEVER
        self._in_trouble(error, now)

    def records(self) -> Iterator[Record]:
        """Records that are not stored yet."""
        yield from self._writing or ()
        yield from self._records

    # --- disk failures ------------------------------------------------------------------------------------------------

    def take_secure(self, now: float) -> bool:
        """Whether to allocate the disk reserve now; report the result by `secured`."""
        if now < self._secure_at:
            return False
        self._secure_at = NEVER
        return True

    def secured(self, error: GridError | None, now: float) -> None:
        """The failure is over once the backlog is written and the reserve is allocated again (no `error`)."""
        if error is not None:
            self._in_trouble(error, now)
            self._secure_at = now + AGAIN_SECONDS
        elif self.refused:
            self._secure_at = now + AGAIN_SECONDS
        elif self.trouble is not None:
            self.trouble = None
            self.put(StoreFailing(False))

    def _in_trouble(self, error: GridError, now: float) -> None:
        first, self.trouble = self.trouble is None, error
        if first:
            self.put(StoreFailing(True))
            self._secure_at = now + AGAIN_SECONDS

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """Return when to call `tick` if nothing happens before; an early call does no harm. The ledger's deadline does
        not count while events are queued, since the next turn settles."""
        deadline = None if self.queue else self._ledger.next_deadline()
        times = self._urgent_at, self._soon_at, self._retry_at, self._stalled_at, self._secure_at
        return min(times if deadline is None else (deadline, *times))

    def tick(self, now: float) -> None:
        """Handle the timers."""
        deadline = self._ledger.next_deadline()
        if deadline is not None and deadline <= now:
            self.put(Tick())
        if now >= self._urgent_at:
            self._urgent, self._urgent_at = True, NEVER
        if now >= self._soon_at:
            self._soon_at, self._urgent = NEVER, bool(self._records)
        if now >= self._stalled_at:
            self._stalled_at = NEVER
            why = f"a commit has been under way for {STALLED_SECONDS:g} s"
            self._in_trouble(GridError("the coordinator's disk does not answer", why, "look at that disk"), now)

    def hurry(self) -> None:
        """Make all records due now, also those that wait for a group commit or a retry."""
        self._urgent = bool(self._records)
        if self._retry_at < NEVER:
            self._retry_at = -NEVER

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or to be written."""
        return not (self.queue or self._records or self._writing is not None)


# --- coalescing the backlog -------------------------------------------------------------------------------------------


def newest_records(records: Iterable[R]) -> list[R]:
    """The last record of each thing. (A record shows its job, allocation or group as it is when written.)"""
    kept: dict[tuple[str, ...], R] = {}
    lines: list[tuple[str, R]] = []
    for record in records:
        match record:
            case RecordJob(job, new):
                before = kept.get(("job", job.id))
                was_new = isinstance(before, RecordJob) and before.new
                kept["job", job.id] = RecordJob(job, new=True) if was_new and not new else record  # type: ignore[assignment]
            case RecordAllocation(allocation):
                kept["allocation", allocation.id] = record
            case RecordGroup(group):
                kept["group", group.id] = record
            case RecordNode(facts):
                kept["node", facts.name] = record
            case RecordForgotten(node):
                kept["node", node] = record
            case RecordOrders(node):
                kept["orders", node] = record
            case RecordReceipt(receipt):
                kept["receipt", receipt.id] = record
            case RecordShare(user):
                kept["share", user] = record
            case RecordLoan(lender, borrower):
                kept["loan", lender, borrower] = record
            case RecordReturns(node):
                kept["returns", node] = record
            case RecordBalancing():
                kept["balancing",] = record
            case RecordMachine(name):
                kept["machine", name] = record
            case RecordPauses():
                kept["pauses",] = record
            case RecordRights(key):
                kept["rights", key] = record
            case RecordSpent(pool):
                kept["spent", pool] = record
            case RecordLoss(found):
                kept["loss", found] = record
            case Audit(node):
                lines.append((node, record))
            case _:
                raise TypeError(f"{type(record).__name__} is not a record")
    return [*kept.values(), *_newest_lines(lines)]


def _newest_lines(lines: list[tuple[str, R]]) -> list[R]:
    """Return the newest lines of each node, as many as the store keeps of one: a node with many lines cannot displace
    those of others."""
    if len(lines) > LINES_KEPT:
        seen: Counter[str] = Counter()
        places = []
        for at in range(len(lines) - 1, -1, -1):
            node = lines[at][0]
            seen[node] += 1
            places.append((seen[node], -at))
        lines = [lines[at] for at in sorted(-place for _, place in sorted(places)[:LINES_KEPT])]
    return [record for _, record in lines]


def newest_commands(commands: Iterable[Command]) -> list[Command]:
    """Repeated commands once, at the position of the first, with the content of the last."""
    kept: dict[Any, Command] = {}
    for number, command in enumerate(commands):
        match command:
            case Publish(view):
                kept["publish", view.id] = command
            case Send(node, Launch() | Stop() as order):
                kept[node, type(order), order.allocation] = command
            case AckExits(node, allocations):
                kept[node, allocations] = command
            case _:
                kept[number] = command
    return list(kept.values())
