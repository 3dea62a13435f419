"""The supervisor's journal: what it has promised, started and seen end, one line with a checksum per record. Records
are synced before they are reported, in a thread if the disk is slow (`SyncThread`). `JournaledJobs` is the state in
memory. A mark beside the journal shows when it is incomplete. Stdlib only."""

import _thread
import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.allocations import Syncs
from distributed_grid.agent.supervisor.job import Job, Leases, Loss, Record, Recorded
from distributed_grid.agent.supervisor.procs import boot_id
from distributed_grid.agent.walls.wire import encode
from distributed_grid.runtime.faults import fault

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_HEADER = "journal"
_MARK_BYTES = 160
_MAY_WAIT = ("forget", "ahead")  # kinds of records that a patient commit leaves: losing them is harmless
_MOST_WAITING = 1000


def line(record: Record, number: int = 0) -> bytes:
    """One record as line number `number` (0: not a line of a journal)."""
    body = b"%d %s" % (number, encode(record))
    return b"%08x %s\n" % (crc32(body), body)


def parse(text: bytes) -> Record | None:
    """The record of one line without its newline; None if it is damaged."""
    found = _numbered(text)
    return found[1] if found is not None else None


def _numbered(text: bytes) -> tuple[int, Record] | None:
    """Number and record of a line; None if it is damaged."""
    if len(text) < 9 or text[8:9] != b" ":
        return None
    try:
        if int(text[:8], 16) != crc32(text[9:]):
            return None
        number, _, body = text[9:].partition(b" ")
        numbered, record = int(number), json.loads(body)
    except ValueError:
        return None
    return (numbered, record) if isinstance(record, list) and record else None


class Mark(NamedTuple):
    """The journal's state as noted beside it: boot, generation (`following`: the one about to replace it) and number of
    the last committed line."""

    boot: str
    generation: str
    following: str
    number: int


def read_mark(path: str) -> Mark | None:
    """The mark of the journal at this path; None if unreadable."""
    try:
        with open(f"{path}.mark", "rb") as file:
            record = parse(file.read(_MARK_BYTES).split(b"\n")[0])
    except OSError:
        return None
    if record is None or len(record) != 4 or [type(one) for one in record] != [str, str, str, int]:
        return None
    return Mark(*record)


class Contents(NamedTuple):
    """A journal's content: generation, records, numbers of damaged lines, number of lines, whether the last one was
    cut, and evidence that it is incomplete (empty: none)."""

    generation: str
    records: list[Record]
    bad: list[int]
    lines: int
    torn: bool
    doubt: str


def examine(whole: bytes | None, mark: Mark | None, marked: bool) -> Contents:
    """Read a journal (None: missing) with its mark, if readable; `marked`: there is one."""
    if whole is None:
        return Contents("", [], [], 0, False, "the journal is not there any more" if marked else "")
    lines = whole.rstrip(b"\0").split(b"\n")
    torn = bool(lines.pop())  # what follows the last newline: nothing, or a line that was cut
    parsed = [_numbered(text) for text in lines]
    bad = [at for at, found in enumerate(parsed, 1) if found is None]
    # Blocks reach the disk in any order, so a cut can also leave a last line of the right length with wrong bytes.
    if bad and bad[-1] == len(lines):
        bad, torn = bad[:-1], True
    found = [one for one in parsed if one is not None]
    records = [record for _, record in found if record[0] != _HEADER]
    header = found[0][1] if found else []
    generation = str(header[1]) if header[:1] == [_HEADER] and len(header) > 1 else ""
    return Contents(generation, records, bad, len(lines), torn, _doubt(generation, found, bad, mark, marked))


def _doubt(generation: str, found: list[tuple[int, Record]], bad: list[int], mark: Mark | None, marked: bool) -> str:
    if not found:
        return "the journal is empty"
    if bad:
        return f"line {bad[0]} of the journal is damaged"
    numbers = [number for number, _ in found]
    if numbers != [*range(1, len(numbers) + 1)]:
        return "lines of the journal are missing"
    if mark is None:
        return "the journal's mark is damaged" if marked else "the journal's mark is not there any more"
    if generation not in (mark.generation, mark.following):
        return "the journal is an older copy"
    if generation == mark.generation and numbers[-1] < mark.number:
        return f"the journal ends at line {numbers[-1]}, and {mark.number} were written"
    return ""


class Journal:
    """A line is eight hex digits of CRC-32, a space, its number, a space and a JSON array. What a killed process wrote
    is in the kernel and safe; only a sync makes it safe from a power cut. A torn last line is the ordinary trace of a
    cut and is dropped; damage elsewhere puts the file aside, and what can be read of it is used. The mark beside it has
    the boot, the generation (each rewrite makes a new one) and the number of the last committed line, and is not
    synced: by it a journal that is missing, older or cut is known as such. The file is filled up with zeros, a chunk at
    a time, since a sync of a file that grew waits for all that others did on the filesystem. After a write or sync that
    failed the content of the disk is unknown, so that file is not used again.

    The journal at `path`, `size` bytes of records in it. `log` takes a sentence for a person when something was wrong
    with the file. `sound` says that all appended records are in the file at `path`; it is not until the first rewrite,
    and after an error not until the next one: until then a commit raises. `doubt`: what showed, when it was loaded,
    that it is not all that was written in this boot; empty: it is.
    """

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        self.path = path
        self.size = 0
        self.sound = False
        self.doubt = ""
        self._generation = ""
        self._number = 0
        self._marking = -1
        self._boot = ""
        self._log = log
        self._fd = -1
        self._room = 0  # bytes that the file has on disk
        self._buffer: list[bytes] = []
        self._due = False
        """Whether a record of the buffer may not wait."""
        self._sync_seconds = 0.0
        self._thread = SyncThread()
        self.synced = self._thread.done
        """A descriptor that is readable when the sync of `begin_sync` has ended."""

    def load(self) -> list[Record]:
        """Return all readable records, in order. Damage is logged, and the damaged file is kept beside the journal."""
        try:
            with open(self.path, "rb") as file:
                whole: bytes | None = file.read()
        except FileNotFoundError:
            whole = None
        mark = read_mark(self.path)
        self._number = mark.number if mark is not None else 0
        found = examine(whole, mark, os.path.exists(f"{self.path}.mark"))
        self._generation = found.generation
        # Nothing was started in this boot where no supervisor wrote a mark in it.
        self.doubt = found.doubt if mark is None or mark.boot == boot_id() else ""
        if found.torn:
            self._log(f"journal {self.path}: the last line was cut and is dropped")
        if found.bad:
            shown = ", ".join(map(str, found.bad[:10])) + ("…" if len(found.bad) > 10 else "")
            self._log(
                f"journal {self.path}: {len(found.bad)} of {found.lines} lines are damaged (line {shown}); "
                f"the file is kept as {self._put_aside()} and the other lines are used"
            )
        elif self.doubt:
            kept = f"; the file is kept as {self._put_aside()}" if whole is not None else ""
            self._log(f"journal {self.path}: {self.doubt}{kept}")
        return found.records

    def _put_aside(self) -> str:
        """Link the file to a second name, which stays when the journal is replaced. It needs no space on a full
        disk."""
        number = 1
        while os.path.exists(aside := f"{self.path}.corrupt-{number}"):
            number += 1
        try:
            os.link(self.path, aside)
        except OSError as error:
            return f"nothing ({error.strerror})"
        return aside

    @fault("supervisor.rewrite")
    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the journal atomically and durably by these records."""
        generation = os.urandom(6).hex()
        every = [[_HEADER, generation], *records]
        body = b"".join(line(record, number) for number, record in enumerate(every, 1))
        fresh = f"{self.path}.new"
        room = (len(body) // _CHUNK + 1) * _CHUNK
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            _write(fd, body.ljust(room, b"\0"), 0)
            os.fsync(fd)
            self._mark(self._generation, generation, self._number)
            os.rename(fresh, self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):  # on a full disk its room is for others
                os.unlink(fresh)
            raise
        # From here on the old file has no name any more.
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size, self._room, self.sound = fd, len(body), room, False
        self._generation, self._number = generation, len(every)
        self._buffer.clear()
        self._due = False
        self._mark(generation, "", len(every))
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.sound = True

    def append(self, *record: Any) -> None:
        """Add a record for the next commit; ignored if a rewrite has to come first."""
        if self.sound:
            self._buffer.append(line(list(record), self._number + len(self._buffer) + 1))
            self._due = self._due or record[0] not in _MAY_WAIT or len(self._buffer) > _MOST_WAITING

    def commit(self, patient: bool = False) -> None:
        """Write what was appended; a sync makes it durable. After an OSError a rewrite is needed. `patient`: another
        commit comes soon, and takes with it what may wait."""
        self._check()
        if not (self._due if patient else self._buffer):
            return
        body, count = b"".join(self._buffer), len(self._buffer)
        self._buffer.clear()
        self._due = False
        self.sound = False
        self._extend(body)
        self._number += count
        self._mark(self._generation, "", self._number)
        self.sound = True

    def _check(self) -> None:
        if not self.sound:
            raise OSError(errno.EIO, "an earlier write failed")

    @property
    def quick(self) -> bool:
        """Whether the disk has been quick lately, so that `sync` costs less than the thread does."""
        return self._sync_seconds < QUICK_SECONDS

    def sync(self) -> None:
        """Make durable what is written. After an OSError a rewrite is needed."""
        self._check()
        self._took(_timed_sync(self._fd))

    def begin_sync(self) -> bool:
        """The same by a thread, while more is written. `end_sync` has to follow before anything else is synced or
        rewritten. False: there can be no thread."""
        return self.sound and self._thread.begin(self._fd)

    def end_sync(self) -> None:
        """Wait for the end of that sync. After an OSError a rewrite is needed."""
        self._took(self._thread.end())

    def _took(self, seconds: float | OSError) -> None:
        if isinstance(seconds, OSError):
            self.sound = False  # what the disk has is unknown, and a second sync would not tell
            raise seconds
        # Not the slowest of late: on a busy machine that is how long we had to wait for a processor.
        self._sync_seconds += (seconds - self._sync_seconds) / 8

    def _mark(self, generation: str, following: str, number: int) -> None:
        """Update the mark in place, so that it needs no space on a full disk."""
        if self._marking < 0:
            self._boot = boot_id()
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._marking = os.open(f"{self.path}.mark", flags, 0o600)
        _write(self._marking, line([self._boot, generation, following, number]).ljust(_MARK_BYTES), 0)

    @fault("supervisor.write")
    def _extend(self, body: bytes) -> None:
        while self.size + len(body) > self._room:
            _write(self._fd, _ZEROS, self._room)
            self._room += _CHUNK
        _write(self._fd, body, self.size)
        self.size += len(body)


QUICK_SECONDS = 0.001
"""A disk whose syncs took less lately is synced on the loop: to hand one over costs some 0.05 ms of CPU, and two waits
for the interpreter."""


class SyncThread:
    """Syncs one file at a time, while the loop goes on. The thread is started by the first `begin`. `done` is readable
    when the sync has ended, and until `end`."""

    def __init__(self) -> None:
        self.done = os.eventfd(0, os.EFD_CLOEXEC)
        self._fd = -1
        self._result: float | OSError = 0.0
        self._asked: _thread.LockType | None = None

    def begin(self, fd: int) -> bool:
        """Sync this file, which stays open until `end`. False: no thread can be started."""
        self._fd = fd
        if self._asked is not None:
            self._asked.release()
            return True
        asked = _thread.allocate_lock()
        try:
            _thread.start_new_thread(self._run, (asked,))
        except RuntimeError:
            return False
        self._asked = asked
        return True

    def end(self) -> float | OSError:
        """Wait for the end of the sync. Returns its seconds, or why it failed."""
        os.eventfd_read(self.done)
        return self._result

    def _run(self, asked: "_thread.LockType") -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # they are for the loop
        asked.acquire()
        while True:
            self._result = _timed_sync(self._fd)
            os.eventfd_write(self.done, 1)
            asked.acquire()


def _timed_sync(fd: int) -> float | OSError:
    """The seconds that a sync took, or why it failed."""
    began = time.monotonic()
    try:
        _sync(fd)
    except OSError as error:
        return error
    return time.monotonic() - began


@fault("supervisor.sync")
def _sync(fd: int) -> None:
    os.fdatasync(fd)


def _write(fd: int, body: bytes, at: int) -> None:
    view = memoryview(body)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


REMEMBERED = 10_000
"""Acknowledged allocations whose ids are remembered, to refuse a late launch."""
_COMPACT_AT = 4 << 20
_CLOCKS = 60.0  # seconds by which the wall clock may have been set since the boot
_RETRY = 1.0  # seconds after which a disk that refused is tried again


_LOST = "the record of it was lost when the node's journal was damaged; how it ended is not known"


L = TypeVar("L")


class JournaledJobs(Generic[L]):
    """`jobs` are those that run or are not acknowledged, `syncs` what of them waits for the disk, `forgotten` the ids
    of acknowledged ones. While the disk fails this stays in memory, and is rewritten when possible, not before
    `retry_at` (seconds since boot)."""

    def __init__(self, path: str, leases: Leases, log: Callable[[str], None]) -> None:
        self._known = Recorded()
        self.jobs = self._known.jobs
        self.forgotten = self._known.forgotten
        self.syncs: Syncs[L] = Syncs()
        self.journal = Journal(path, log)
        self._allocs = os.path.join(os.path.dirname(path), "allocs")
        self.retry_at = 0.0
        self._leases = leases
        self._log = log
        self._compact_at = 0
        self._refused = False
        self._thread_syncs = False

    def read(self) -> str:
        """Load what an earlier supervisor wrote. Returns the boot in which it did, empty if there is nothing."""
        now_boot = procs.boot_id()
        for record in self.journal.load():
            self._known.take(record)
        boot, self._known.boot = self._known.boot, now_boot
        self._leases.renewed = self._known.renewed
        doubt = self.journal.doubt
        if not doubt and not self.unknown and (unnamed := self._not_named()):
            doubt = f"{unnamed[0]} was started, and the journal does not name it"
        if doubt:
            self._known.loss = Loss(os.urandom(4).hex(), round(time.time(), 3), doubt, now_boot)
            self._log(f"unknown what ran: {doubt}")
            return boot or now_boot
        if self.loss is not None and self.loss.open and self.loss.boot != now_boot:
            self.loss.open = False  # nothing outlives a reboot
            self._log("the node was restarted: nothing lives of what the damaged journal did not name")
        return boot

    def _not_named(self) -> list[str]:
        """Allocations started in this boot, by their output, that are not in the journal: then journal and mark are
        older copies, or missing."""
        found: list[str] = []
        if len(self.forgotten) >= REMEMBERED:
            return found  # of more the journal keeps no names
        booted = time.time() - procs.now() - _CLOCKS
        for name in os.listdir(self._allocs) if os.path.isdir(self._allocs) else ():
            if name in self.jobs or name in self.forgotten or name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                if os.lstat(os.path.join(self._allocs, name, "stdout")).st_ctime >= booted:
                    found.append(name)
        return found

    @property
    def ahead(self) -> dict[str, Record]:
        """Return the records that an earlier supervisor had written of successors that it had not started."""
        return self._known.ahead

    @property
    def loss(self) -> Loss | None:
        """The latest loss."""
        return self._known.loss

    @property
    def unknown(self) -> bool:
        """Whether something unrecorded may be alive."""
        return self.loss is not None and self.loss.open

    def proven(self) -> None:
        """Close the loss: nothing of it is alive, as proven by a search or confirmed by the owner."""
        if self.loss is not None and self.loss.open:
            self.loss.open = False
            self.journal.append("proven", self.loss.id)
            for key in self._not_named():  # over, and how is not known: it is never started again
                job = self.jobs[key] = Job(key, outcome={"cause": "supervisor-lost", "text": _LOST})
                self.syncs.over.append(job)
            self._log("nothing lives of what the damaged journal did not name")

    def write(self, ends: bool = True, patient: bool = False) -> bool:
        """Write records and, with `ends`, ends. False if the disk fails. `patient`: see Journal.commit."""
        for job in self.syncs.take_unwritten() if ends else ():
            self.journal.append("exit", job.id, job.outcome)
        if not self._commit(patient):
            self.end_sync()  # what that covers may be durable all the same
            if not self.journal.sound and not self._rewrite():
                self.retry_at = procs.now() + _RETRY
                return False
        elif self.journal.size > self._compact_at and not self.syncs.under_way and not self._rewrite():
            self._compact_at = self.journal.size + _COMPACT_AT  # what there is will do for now
        return True

    def begin_sync(self, launches: list[L]) -> None:
        """Make the written records durable, with the intents of these launches and the records of delayed writes: at
        once if the disk is quick, else in a thread; `end_sync` is due when the journal's `synced` is readable."""
        written = self.write(ends=False)  # an intent that was appended before a sync begins is durable with it
        self.syncs.begin(launches)
        if not written:
            self.syncs.failed()
            return
        self._thread_syncs = not self.journal.quick and self.journal.begin_sync()
        if not self._thread_syncs:
            self.end_sync()

    def end_sync(self) -> None:
        """Wait for the sync that is under way, if one is. Where it fails, a new journal is written."""
        if not self.syncs.under_way:
            return
        try:
            (self.journal.end_sync if self._thread_syncs else self.journal.sync)()
        except OSError as error:
            self._say_broken(error)
            if not self._rewrite():
                self.retry_at = procs.now() + _RETRY
                self.syncs.failed()
        else:
            self.syncs.succeeded()

    def _commit(self, patient: bool) -> bool:
        if not self.journal.sound:
            return False
        try:
            self.journal.commit(patient)
        except OSError as error:
            self._say_broken(error)
            return False
        return True

    def _say_broken(self, error: OSError) -> None:
        self._log(f"the journal cannot be written ({error.strerror}): a new one is made")

    def _rewrite(self) -> bool:
        while len(self.forgotten) > REMEMBERED:
            del self.forgotten[next(iter(self.forgotten))]
        try:
            self.journal.rewrite(self._records())
        except OSError as error:
            if not self._refused:  # not the same lines every second
                state = "" if self.journal.sound else ": nothing is started and ends wait in memory until it can be"
                self._log(f"no new journal can be written ({error.strerror}){state}")
            self._refused = True
            return False
        if self._refused:
            self._log("a new journal could be written again")
        self._refused = False
        self.syncs.rewritten()
        self._compact_at = max(_COMPACT_AT, 2 * self.journal.size)
        return True

    def _records(self) -> Iterator[Record]:
        self._known.renewed = self._leases.renewed
        return self._known.records()
