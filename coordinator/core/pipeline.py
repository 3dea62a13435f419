"""The commit pipeline: events go into the ledger in batches, and what it answers comes out in the order that keeps the
grid's promises. Records are durable before any other command of their batch is performed; commands keep their order.

It is sans-IO, and the time is an argument. Its shell (the asyncio driver, the simulator) calls `turn` while events are
queued, writes what `begin_write` gives and says what became of it, performs what `performable` gives, and calls `tick`
when `next_time` has come. While a write is under way further batches gather for the next one, so a burst shares commits
without anybody waiting for company.

A write that the disk refuses is tried again until the disk takes it. What happens meanwhile joins it: nothing of it is
performed before it is stored, nothing new is started, and nothing that was stored before is affected. Of several
records or commands about one thing only the newest is kept, so what waits stays small.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from distributed_grid.coordinator.core.commands import (
    MAY_WAIT,
    RECORDS,
    AckExits,
    Audit,
    Command,
    Event,
    Hold,
    Publish,
    Record,
    RecordAllocation,
    RecordForgotten,
    RecordGroup,
    RecordJob,
    RecordLoss,
    RecordNode,
    RecordOrders,
    RecordReceipt,
    RecordShare,
    Send,
    Tick,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch, Renewed, Stop

BATCH = 256
"""The most events that one turn hands to the ledger."""
SOON_SECONDS = 0.05
"""How long a record that may wait waits for company on its way to the disk."""
STALLED_SECONDS = 10.0
"""A write that takes longer is trouble already, though nobody can say yet whether it will fail."""
AGAIN_SECONDS = 1.0
"""Interval between tries whether the disk has recovered."""
LINES_KEPT = 1000
"""The most audit lines that wait for the disk; the newest stay."""
NEVER = float("inf")
R = TypeVar("R", bound=Command)


class Mutator(Protocol):
    """What the pipeline needs of the ledger."""

    def handle(self, event: Event, now: float) -> list[Command]: ...
    def settle(self, now: float) -> list[Command]: ...
    def next_deadline(self) -> float | None: ...


class Pipeline:
    """Events in, writes and commands out. `trouble` is why the disk takes nothing now; None: it is well."""

    def __init__(self, ledger: Mutator) -> None:
        self.trouble: GridError | None = None
        self.queue: deque[Event] = deque()
        self.handling: Event | None = None
        """What the ledger was given last, while it is at work; None: it was asked to settle."""
        self._ledger = ledger
        self._records: list[Record] = []
        self._commands: list[Command] = []
        self._urgent = False
        """Whether one of the gathered records may not wait."""
        self._due: list[Command] = []
        """Commands that rest on nothing that is not stored."""
        self._writing: list[Record] | None = None
        self._waiting: list[Command] = []
        """Commands that rest on what is being written."""
        self.refused = False
        """Whether the disk has refused what is to be written, and not taken it since: then it is to be written through
        a new connection, as nobody knows what of it is there."""
        self._retry_at = NEVER
        self._soon_at = NEVER
        self._stalled_at = NEVER
        self._secure_at = NEVER

    # --- events -------------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Something happened. Taken in order."""
        self.queue.append(event)

    def turn(self, now: float) -> None:
        """Hand a batch of the queued events to the ledger, and have it settle. Raises what the ledger raises."""
        ledger, queue = self._ledger, self.queue
        for _ in range(min(BATCH, len(queue))):
            self.handling = event = queue.popleft()
            self.take(ledger.handle(event, now))
        self.handling = None
        self.take(ledger.settle(now))

    def take(self, commands: list[Command]) -> None:
        """What the ledger answered."""
        for command in commands:
            if isinstance(command, RECORDS):
                self._records.append(command)
                self._urgent = self._urgent or not (isinstance(command, MAY_WAIT) and command.soon)
            elif type(command) is Send and type(command.message) is Renewed:
                self._due.append(command)  # it rests on no record, and a slow disk must not let a lease expire
            else:
                self._commands.append(command)

    # --- what to perform ----------------------------------------------------------------------------------------------

    def performable(self, now: float) -> list[Command]:
        """The commands to perform now, in order, each once. Records that may wait are left for the next write, or for a
        moment."""
        due, self._due = self._due, []
        if self._writing is None and not self._urgent:
            if self._records and self._soon_at == NEVER:
                self._soon_at = now + SOON_SECONDS
            if self._commands:
                due += self._commands
                self._commands = []
        return due

    # --- what to write ------------------------------------------------------------------------------------------------

    def write_due(self, now: float) -> bool:
        """Whether something is to be written now."""
        return self._urgent if self._writing is None else now >= self._retry_at

    def begin_write(self, now: float) -> list[Record]:
        """The records to write, as one transaction; `written` or `refuse` says what became of it."""
        if self._writing is None:
            self._writing, self._waiting = self._records, self._commands
        else:
            self._writing = newest_records([*self._writing, *self._records])
            self._waiting = newest_commands([*self._waiting, *self._commands])
        self._records, self._commands, self._urgent = [], [], False
        self._soon_at, self._retry_at, self._stalled_at = NEVER, NEVER, now + STALLED_SECONDS
        return self._writing

    def written(self) -> None:
        """The disk has it."""
        self._due += self._waiting
        self._writing, self._waiting, self.refused = None, [], False
        self._stalled_at = NEVER

    def refuse(self, error: GridError, now: float) -> None:
        """The disk did not take it."""
        self.refused, self._retry_at, self._stalled_at = True, now + AGAIN_SECONDS, NEVER
        self._in_trouble(error, now)

    def records(self) -> Iterator[Record]:
        """What the ledger has recorded and the disk does not have yet."""
        yield from self._writing or ()
        yield from self._records

    # --- a disk in trouble --------------------------------------------------------------------------------------------

    def take_secure(self, now: float) -> bool:
        """Whether the reserve is to be secured now; `secured` says what became of it."""
        if now < self._secure_at:
            return False
        self._secure_at = NEVER
        return True

    def secured(self, error: GridError | None, now: float) -> None:
        """The trouble is over when the disk has taken what there is and the reserve is there again (no `error`)."""
        if error is not None:
            self._in_trouble(error, now)
            self._secure_at = now + AGAIN_SECONDS
        elif self.refused:
            self._secure_at = now + AGAIN_SECONDS
        elif self.trouble is not None:
            self.trouble = None
            self.put(Hold(False))

    def _in_trouble(self, error: GridError, now: float) -> None:
        first, self.trouble = self.trouble is None, error
        if first:
            self.put(Hold(True))
            self._secure_at = now + AGAIN_SECONDS

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_time(self) -> float:
        """When to call `tick` and look what is due, even if nothing happens. Whoever is early finds nothing to do.
        While events are queued the ledger's deadline does not count: the next turn settles what is due."""
        deadline = None if self.queue else self._ledger.next_deadline()
        times = self._soon_at, self._retry_at, self._stalled_at, self._secure_at
        return min(times if deadline is None else (deadline, *times))

    def tick(self, now: float) -> None:
        """Time has passed."""
        deadline = self._ledger.next_deadline()
        if deadline is not None and deadline <= now:
            self.put(Tick())
        if now >= self._soon_at:
            self._soon_at, self._urgent = NEVER, bool(self._records)
        if now >= self._stalled_at:
            self._stalled_at = NEVER
            why = f"a commit has been under way for {STALLED_SECONDS:g} s"
            self._in_trouble(GridError("the coordinator's disk does not answer", why, "look at that disk"), now)

    def hurry(self) -> None:
        """All that waits for company or for the disk to recover is to be written now."""
        self._urgent = bool(self._records)
        if self._retry_at < NEVER:
            self._retry_at = -NEVER

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or to be written."""
        return not (self.queue or self._records or self._writing is not None)


# --- what waits for a disk in trouble, kept small ---------------------------------------------------------------------


def newest_records(records: Iterable[R]) -> list[R]:
    """Each job, allocation, group and node once, as it is now. (Of orders, which do not change, the last ones stay.)"""
    kept: dict[tuple[str, str], R] = {}
    lines: deque[R] = deque(maxlen=LINES_KEPT)
    for record in records:
        match record:
            case RecordJob(job):
                kept["job", job.id] = record
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
            case RecordLoss(found):
                kept["loss", found] = record
            case Audit():
                lines.append(record)
            case _:
                raise TypeError(f"{type(record).__name__} is not a record")
    return [*kept.values(), *lines]


def newest_commands(commands: Iterable[Command]) -> list[Command]:
    """In order; what would be said several times only once, at the place of the first, in the words of the last."""
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
