"""Bulk data between a node and the coordinator: the outputs of jobs, read while their files grow; and the second
connection, for outputs, standard input, files and shipped contents. It is opened on demand and closed with its session.
"""

import asyncio
import contextlib
import ctypes
import errno
import itertools
import os
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_grid.agent.data.inputs import Inputs
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.workdir import SlotIndex
from distributed_grid.agent.session import CannotConnect, Disconnected, Session, back_off, dial
from distributed_grid.agent.supervisor.sockets import Throttle
from distributed_grid.agent.walls.files_socket import Root
from distributed_grid.identity.credentials import IDENTITY
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import (
    BlobData,
    FileData,
    FileEntry,
    Files,
    Hello,
    Output,
    PutInput,
    WantBlob,
    WantFile,
    WantFiles,
    WantOutput,
)
from distributed_grid.protocol.text import from_wire
from distributed_grid.runtime import beneath
from distributed_grid.runtime.unix import boot_clock

_STREAMS = ("stdout", "stderr")
_NOTE_BYTES = 100
_POLL = 0.2  # seconds, where the kernel gives no inotify
_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_HEADER = struct.Struct("iIII")


@dataclass
class _Watch:
    """Readers waiting for an allocation; `number` is inotify's for its folder, -1 without."""

    number: int = -1
    waiting: set[asyncio.Event] = field(default_factory=set)


class Outputs:
    """Outputs of all allocations of one agent. `running` says whether an allocation may write more; `asked` is told of
    each question."""

    def __init__(
        self,
        state_dir: Path,
        running: Callable[[str], bool],
        asked: Callable[[WantOutput], None] = lambda want: None,
    ) -> None:
        self._dir = state_dir
        self._asked = asked
        self._running = running
        self._watches: dict[str, _Watch] = {}
        self._numbers: dict[int, _Watch] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None

    def ended(self, allocation: str) -> None:
        """Handle the end of an allocation of which nothing is alive: readers waiting for its output get the end."""
        if (watch := self._watches.get(allocation)) is not None:
            for event in watch.waiting:
                event.set()

    def close(self) -> None:
        """Close the inotify descriptor."""
        if self._fd >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def read(self, want: WantOutput) -> Output:
        """Read the requested piece. Empty and not the end if nothing came within `want.wait` seconds."""
        if want.stream not in _STREAMS:
            return Output(id=want.id, offset=want.offset, error=f"there is no stream {want.stream!r}")
        try:
            folder = workdir.folder(self._dir, want.allocation)
        except BadValue as error:
            return Output(id=want.id, offset=want.offset, error=error.what)
        self._asked(want)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + want.wait
        with self._waiting(want.allocation, folder) as (event, polled):
            while True:
                event.clear()
                # Checked before the file is read: once the job is over the file is complete.
                over = not self._running(want.allocation)
                piece = _piece(want, folder, over)
                left = deadline - loop.time()
                if piece is not None or left <= 0:
                    return piece or Output(id=want.id, offset=want.offset)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(left, _POLL) if polled else left)

    @contextlib.contextmanager
    def _waiting(self, allocation: str, folder: Path) -> Iterator[tuple[asyncio.Event, bool]]:
        """An event that is set when something in the folder grows; and whether the caller has to poll as well."""
        event = asyncio.Event()
        watch = self._watches.setdefault(allocation, _Watch())
        watch.waiting.add(event)
        if watch.number < 0 and self._fd >= 0:
            # The whole folder, to see a stream's file appear.
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_MODIFY | _IN_CREATE)
            if number >= 0:
                watch.number = number
                self._numbers[number] = watch
                if self._loop is None:
                    self._loop = asyncio.get_running_loop()
                    self._loop.add_reader(self._fd, self._grown)
        try:
            yield event, watch.number < 0
        finally:
            watch.waiting.discard(event)
            if not watch.waiting:
                self._watches.pop(allocation, None)
                if watch.number >= 0 and self._fd >= 0:
                    self._numbers.pop(watch.number, None)
                    self._libc.inotify_rm_watch(self._fd, watch.number)

    def _grown(self) -> None:
        try:
            events = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        at = 0
        while at < len(events):
            number, _, _, length = _HEADER.unpack_from(events, at)
            at += _HEADER.size + length
            if (watch := self._numbers.get(number)) is not None:
                for event in watch.waiting:
                    event.set()


def _piece(want: WantOutput, folder: Path, over: bool) -> Output | None:
    """Return the file's bytes from the wanted offset on; None if there are none and more may come."""
    try:
        above = beneath.open_root(folder)
    except OSError:
        if not over:
            return None
        return Output(id=want.id, offset=want.offset, error="the output is not kept on the node any more")
    try:
        fd = beneath.open_regular(above, want.stream)
    except FileNotFoundError:  # it was never started, so it never wrote
        os.close(above)
        return Output(id=want.id, offset=want.offset, end=True) if over else None
    except OSError as error:
        os.close(above)
        return Output(id=want.id, offset=want.offset, error=f"the output cannot be read: {error.strerror}")
    try:
        size = os.fstat(fd).st_size
        asked = max(0, want.offset)
        data, offset = _read_around_gap(fd, above, want.stream, asked, min(want.size, PART_BYTES))
        end = over and offset + len(data) >= size
        if not data and not end:
            return None
        return Output(id=want.id, offset=offset, data=data, end=end, gap=offset - asked)
    finally:
        os.close(fd)
        os.close(above)


def _read_around_gap(fd: int, above: int, stream: str, offset: int, size: int) -> tuple[bytes, int]:
    """Bytes from `offset` on, or from the end of the gap if it is in there; and their offset."""
    while True:
        data = os.pread(fd, size, offset)
        # The note is written before the hole is punched, so zeros of a new hole are recognised.
        start, end = _gap(above, stream, os.fstat(fd).st_size)
        if offset < start < offset + len(data):
            return data[: start - offset], offset
        if not start <= offset < end:
            return data, offset
        offset = end


def _gap(above: int, stream: str, size: int) -> tuple[int, int]:
    """Return the part missing in the middle of an output, as the supervisor noted it; (0, 0) if there is none."""
    try:
        start, end = map(int, beneath.read_whole(above, f"{stream}.gap", _NOTE_BYTES).split())
    except (OSError, ValueError):
        return 0, 0
    return (start, end) if 0 <= start <= end <= size else (0, 0)


FILES_BYTES = 3 << 20
"""Maximum size of a list of files in one message."""
ERROR_CHARS = 2000
THREADS = 32
"""Maximum number of concurrent requests about files: each waits for a process with a job's rights."""
AT_ONCE = 2
"""The same per job, so that one with millions of files or many readers delays nobody else."""
_ORDINARY = (errno.ENOENT, errno.EACCES, errno.EISDIR)
"""Errors of requests for missing files; others are also logged for the operator."""


class DataConnection:
    """Bulk data of one agent. `slots` says where each allocation ran, `files` accesses what is there, `hello` makes the
    first message of a session; `log` gets messages about errors. `trusts`: as for `dial`."""

    def __init__(
        self,
        url: str,
        state_dir: Path,
        outputs: Outputs,
        inputs: Inputs,
        slots: SlotIndex,
        files: JobFiles,
        hello: Callable[[str], Hello],
        log: Callable[[str], None],
        trusts: str,
    ) -> None:
        self._url, self._trusts = url, trusts
        self._dir = state_dir
        self._outputs = outputs
        self._inputs = inputs
        self._slots, self._files = slots, files
        self._hello = hello
        self._log = log
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._there = asyncio.Event()
        self._numbers = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[BlobData]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "files")
        self._turns: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}
        self._throttle = Throttle()

    async def begin(self, session_id: str) -> None:
        """Close what belonged to the earlier control connection, as the new one has this session (empty: there is
        none)."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        if session_id:
            self._task = asyncio.create_task(self._serve(session_id), name="data")

    def open(self) -> None:
        """Open the connection, if it is not open."""
        self._wanted.set()

    async def part(self, blob: str, offset: int) -> BlobData:
        """The next bytes of a shipped blob. Waits for a connection as long as it takes."""
        while True:
            while self._session is None:
                self.open()
                await self._there.wait()
            number = next(self._numbers)
            answer: asyncio.Future[BlobData] = asyncio.get_running_loop().create_future()
            self._awaited[number] = answer
            self._session.send(WantBlob(id=number, blob=blob, offset=offset, size=PART_BYTES))
            try:
                return await answer
            except Disconnected:
                continue
            finally:
                self._awaited.pop(number, None)

    async def _serve(self, session_id: str) -> None:
        """Connect on demand, as long as the session lasts."""
        tries, said = 0, ""
        while True:
            await self._wanted.wait()
            try:
                hello = self._hello(session_id)
                session = await dial(self._url, hello, identity=self._dir / IDENTITY, trusts=self._trusts)
            except CannotConnect as error:
                if (text := f"no connection for bulk data: {error.what} ({error.why})") != said:
                    self._log(text)
                tries, said = tries + 1, text
                await asyncio.sleep(back_off(tries))
                continue
            tries, said = 0, ""
            self._wanted.clear()
            self._session = session
            self._there.set()
            try:
                await self._talk(session)
            finally:
                self._session = None
                self._there.clear()
                self._give_up()
                await session.close()

    async def _talk(self, session: Session) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                for message in await session.receive():
                    if isinstance(message, BlobData):
                        self._blob_came(message)
                        continue
                    task = asyncio.create_task(self._answer(session, message))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        except Disconnected:
            pass
        except GridError as error:
            self._log(f"the connection for bulk data is given up: {error.what}")
        finally:
            for task in tasks:
                task.cancel()

    def _give_up(self) -> None:
        for answer in self._awaited.values():
            if not answer.done():
                answer.set_exception(Disconnected())

    def _blob_came(self, message: BlobData) -> None:
        answer = self._awaited.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _answer(self, session: Session, want: Any) -> None:
        match want:
            case WantOutput():
                session.send(await self._outputs.read(want))
            case PutInput():
                session.send(await self._inputs.put(want))
            case WantFiles():
                session.send(await self._guard(want.id, Files, self._list(want)))
            case WantFile():
                session.send(await self._guard(want.id, FileData, self._read(want)))

    async def _guard(self, number: int, kind: type[Any], answer: "Coroutine[Any, Any, Any]") -> Any:
        """Return the answer, or why there is none."""
        try:
            return await answer
        except GridError as error:
            text = f"{error.what}: {error.why}" if error.why else error.what
            self._refused(text)
            return kind(id=number, error=text[:ERROR_CHARS])
        except (OSError, ValueError, OverflowError) as error:
            if getattr(error, "errno", None) not in _ORDINARY:
                self._refused(str(getattr(error, "strerror", None) or error))
            return kind(id=number, error=str(getattr(error, "strerror", None) or error)[:ERROR_CHARS])
        except Exception as error:  # the caller would wait in vain
            self._log(f"a question about files failed: {type(error).__name__}: {error}"[:ERROR_CHARS])
            return kind(id=number, error=f"the node could not do this: {type(error).__name__}")

    async def _list(self, want: WantFiles) -> Files:
        async with self._turn(want.allocation):
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._find, want)
        if sum(len(entry.path.encode()) + len(entry.raw) + 32 for entry in found) > FILES_BYTES:
            raise GridError(f"{len(found)} files match, and their names are more than one answer carries")
        return Files(id=want.id, files=tuple(found))

    async def _read(self, want: WantFile) -> FileData:
        size = min(want.size, PART_BYTES)
        async with self._turn(want.allocation):
            part = await asyncio.get_running_loop().run_in_executor(self._threads, self._part, want, size)
        data, end, hole = part
        return FileData(id=want.id, data=data, end=end, hole=hole)

    @contextlib.asynccontextmanager
    async def _turn(self, allocation: str) -> AsyncIterator[None]:
        turn, waiting = self._turns.setdefault(allocation, (asyncio.Semaphore(AT_ONCE), []))
        waiting.append(1)
        try:
            async with turn:
                yield
        finally:
            waiting.pop()
            if not waiting:
                self._turns.pop(allocation, None)

    def _refused(self, why: str) -> None:
        if said := self._throttle.passed(why, boot_clock()):
            self._log(f"files of a job are not given: {said}"[:ERROR_CHARS])

    def _find(self, want: WantFiles) -> list[FileEntry]:
        return self._files.find(*self._place(want.allocation), want.globs)

    def _part(self, want: WantFile, size: int) -> tuple[bytes, bool, int]:
        path = from_wire(want.path, want.raw)
        return self._files.read(*self._place(want.allocation), path, want.offset, size, want.holes)

    def _place(self, allocation: str) -> tuple[str, Root]:
        """The slot and working directory of an allocation. Raises GridError also if that is the agent's own
        directory."""
        place = self._slots.find(allocation)
        if not place.slot:
            raise GridError(f"the files of {allocation} are not on the node", why="it never ran here, or long ago")
        if not place.workdir:
            return place.slot, self._files.root(place.slot, allocation)
        named, own = Path(os.path.realpath(place.workdir)), Path(os.path.realpath(self._dir))
        if named == own or own in named.parents:
            raise GridError(f"{named} cannot be read", why="the directory of the node's agent is there")
        return place.slot, Root(path=os.fsencode(named), follow=True)
