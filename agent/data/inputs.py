"""The standard input of jobs: what their submitters send goes into each job's pipe, in order, each byte once.

The pipe is a FIFO in the allocation's folder. The supervisor makes it with the job, and holds it open for writing
beside the agent (walls/pipes.py), so the job sees the end of its input only when the submitter has said so and all of
it was written. The position is noted on disk before and after each write, so the next agent continues there. If the
position cannot be known, or if the submitter is gone, the job is ended for that reason: it must not take a part of its
input for the whole.
"""

import asyncio
import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from distributed_grid.agent.launch import workdir
from distributed_grid.agent.walls.pipes import PIPE
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import InputTaken, PutInput, Stop
from distributed_grid.runtime.unix import boot_clock

WINDOW = 2 * PART_BYTES
"""Bytes of one job's input that are taken before they fit into its pipe."""
PATIENCE = 300.0
"""Seconds without word from the submitter, while it could reach us, after which the input counts as lost."""
LOOK = 5.0
"""Interval between two checks of that (s)."""
WAIT_SECONDS = 60.0
_CHUNK = 1 << 16
_NOTE = struct.Struct(">QQ?")  # bytes in the pipe, bytes when the write in progress is done, whether that is all
_NOTE_FILE = "stdin.at"


@dataclass(eq=False)
class _Input:
    """One job's input: `written` bytes are in the pipe, `waiting` follow them; `ended`: nothing follows these. `over`:
    it takes no more."""

    folder: str
    heard: float
    pipe: int = -1
    note: int = -1
    written: int = 0
    waiting: bytearray = field(default_factory=bytearray)
    ended: bool = False
    over: bool = False
    asking: set[asyncio.Event] = field(default_factory=set)

    @property
    def next(self) -> int:
        return self.written + len(self.waiting)

    @property
    def until(self) -> int:
        return self.written + WINDOW


class Inputs:
    """The inputs of all allocations that have one. `stop` ends an allocation; `whole` has the supervisor close its
    pipe."""

    def __init__(
        self,
        state_dir: Path,
        stop: Callable[[Stop], object],
        whole: Callable[[str], None],
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._dir = state_dir
        self._stop, self._whole, self._clock = stop, whole, clock
        self._inputs: dict[str, _Input] = {}

    def expect(self, allocation: str) -> None:
        """Note that an allocation takes input, from now on or from where an earlier agent was."""
        folder = workdir.allocation_path(self._dir, allocation)
        self._inputs.setdefault(allocation, _Input(folder, self._clock()))

    def resume(self, allocation: str) -> None:
        """Expect input for an allocation that an earlier agent left running; if all of its input has come, its pipe is
        closed."""
        self.expect(allocation)
        one = self._inputs[allocation]
        with contextlib.suppress(OSError):
            self._open(allocation, one)

    def ended(self, allocation: str) -> None:
        """Forget an allocation of which nothing is alive."""
        if (one := self._inputs.pop(allocation, None)) is not None:
            self._finish(one)

    def reachable(self) -> None:
        """Restart the patience with submitters, who can reach this agent again."""
        for one in self._inputs.values():
            one.heard = self._clock()

    def close(self) -> None:
        """Close all pipes; the supervisor holds them open."""
        for one in self._inputs.values():
            self._finish(one)
        self._inputs.clear()

    async def run(self, connected: Callable[[], bool]) -> None:
        """End the jobs whose submitters are gone."""
        while True:
            await asyncio.sleep(LOOK)
            self.poll(connected())

    def poll(self, connected: bool) -> None:
        """End the jobs whose submitter was not heard for too long; without a connection (`connected`) that time does
        not count."""
        if not connected:
            self.reachable()
            return
        for allocation, one in [*self._inputs.items()]:
            if not (one.over or one.ended or one.asking) and self._clock() - one.heard > PATIENCE:
                self._lose(allocation, one, f"who sends it was not heard of for {PATIENCE:.0f} s")

    async def put(self, put: PutInput) -> InputTaken:
        """Take bytes, and say how far the input is, at once or when it takes more."""
        allocation = put.allocation
        one = self._inputs.get(allocation)
        if one is None:
            return InputTaken(id=put.id, error=f"{allocation} takes no standard input here")
        one.heard = self._clock()
        if put.cut:
            self._lose(allocation, one, put.cut)
        if not one.over:
            try:
                self._open(allocation, one)
            except OSError as error:
                return InputTaken(id=put.id, error=f"the pipe of {allocation} cannot be opened: {error.strerror}")
            self._take(allocation, one, put)
        await self._hold(one, put)
        one.heard = self._clock()
        return InputTaken(id=put.id, offset=one.written, next=one.next, until=one.until, over=one.over)

    async def _hold(self, one: _Input, put: PutInput) -> None:
        """Wait until there is something to tell: the input is over, or the node takes more than the submitter knows."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        deadline = loop.time() + min(put.wait, WAIT_SECONDS)
        one.asking.add(event)
        try:
            while not one.over and put.offset <= one.next and (one.ended or one.until <= put.until):
                if loop.time() >= deadline:
                    break
                event.clear()
                async with asyncio.timeout_at(deadline):
                    await event.wait()
        except TimeoutError:
            pass
        finally:
            one.asking.discard(event)

    # --- the pipe -----------------------------------------------------------------------------------------------------

    def _open(self, allocation: str, one: _Input) -> None:
        """Open the pipe, and find out how far it was filled before. Raises OSError where it is not there yet."""
        if one.over or one.pipe >= 0:
            return
        meant, flags = 0, os.O_NOFOLLOW | os.O_CLOEXEC
        with workdir.opened(one.folder) as above:
            note = os.open(_NOTE_FILE, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=above)
            try:
                if len(noted := os.pread(note, _NOTE.size, 0)) == _NOTE.size:
                    one.written, meant, one.ended = _NOTE.unpack(noted)
                if not one.ended:
                    one.pipe = os.open(PIPE, os.O_WRONLY | os.O_NONBLOCK | flags, dir_fd=above)
            except OSError as error:
                os.close(note)
                if error.errno != errno.ENXIO:
                    raise
                self._finish(one)  # nobody reads it
                return
            one.note = note
        if one.ended:
            self._all_written(allocation, one)
        elif meant != one.written:
            self._lose(allocation, one, "the node's agent was killed while it passed it on")
        elif not stat.S_ISFIFO(os.fstat(one.pipe).st_mode):
            self._lose(allocation, one, "its pipe was replaced by something else")

    def _take(self, allocation: str, one: _Input, put: PutInput) -> None:
        if one.over or one.ended or put.offset > one.next:
            return
        end = put.offset + len(put.data)
        fresh = put.data[one.next - put.offset : one.until - put.offset]
        one.waiting += fresh
        one.ended = put.end and one.next == end
        self._pump(allocation, one)

    def _pump(self, allocation: str, one: _Input) -> None:
        """Fill the pipe."""
        loop, before = asyncio.get_running_loop(), one.written
        try:
            while one.waiting:
                piece = bytes(one.waiting[:_CHUNK])
                self._note(one, one.written + len(piece))
                try:
                    count = os.write(one.pipe, piece)
                except BlockingIOError:
                    count = 0
                one.written += count
                self._note(one, one.written)
                del one.waiting[:count]
                if count < len(piece):
                    break
        except BrokenPipeError:  # as for any pipe: what nobody reads is nobody's loss
            self._finish(one)
            return
        except OSError as error:
            self._lose(allocation, one, f"the node cannot pass it on: {error.strerror}")
            return
        if one.waiting:
            loop.add_writer(one.pipe, self._pump, allocation, one)
        else:
            loop.remove_writer(one.pipe)
            if one.ended:
                self._all_written(allocation, one)
        if one.written > before:
            self._tell(one)

    def _note(self, one: _Input, meant: int) -> None:
        os.pwrite(one.note, _NOTE.pack(one.written, meant, False), 0)

    def _all_written(self, allocation: str, one: _Input) -> None:
        try:
            os.pwrite(one.note, _NOTE.pack(one.written, one.written, True), 0)
        except OSError as error:
            self._lose(allocation, one, f"the node cannot note its end: {error.strerror}")
            return
        self._finish(one)
        self._whole(allocation)

    def _lose(self, allocation: str, one: _Input, why: str) -> None:
        """The input cannot go on. Its pipe stays open at the supervisor, so that the job does not see an end."""
        if one.over:
            return
        self._finish(one)
        text = f"its standard input ended too early, after {one.written} bytes: {why}"
        self._stop(Stop(allocation=allocation, grace=-1.0, cause=Cause.INPUT_LOST, text=text[:2000]))

    def _finish(self, one: _Input) -> None:
        """Close an input that takes no more, and answer those who wait for it."""
        one.over = True
        one.waiting.clear()
        if one.pipe >= 0:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_writer(one.pipe)
            os.close(one.pipe)
        if one.note >= 0:
            os.close(one.note)
        one.pipe = one.note = -1
        self._tell(one)

    def _tell(self, one: _Input) -> None:
        for event in one.asking:
            event.set()
