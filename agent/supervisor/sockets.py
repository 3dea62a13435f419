"""The supervisor's sockets: one for its agent, in JSON lines, and one for requests about a job's files, whose
connections it passes on to a process with that job's rights; and the warnings for an operator. Stdlib only."""

import contextlib
import json
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.supervisor.slots import is_private
from distributed_grid.agent.walls import accounts, wire
from distributed_grid.agent.walls.enclosure import USER, Slot
from distributed_grid.agent.walls.forkserver import ForkServer
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.unix import AGENT, PeerRefused, bound, judge, process_name

PATIENCE = 0.002
"""Maximum delay of a patient message (s)."""
_PART = 1 << 16  # bytes per read; larger buffers are allocated and freed by the system each time
_MOST_UNSENT = 8 << 20
_MOST_LINE = 16 << 20


class AgentSocket:
    """Listens at `supervisor.sock` in the state directory. `welcome` makes the first message for a new agent, `receive`
    takes each message of it, and `gone` is called when it is gone. `due` is when a flush has to be: NEVER without
    anything to send, 0 for at once; what the agent does not take yet is sent when the selector says that it does.
    Processes of jobs (`is_job`) are refused, though they may be of the right user."""

    def __init__(
        self,
        state_dir: str,
        selector: selectors.BaseSelector,
        welcome: Callable[[], dict[str, Any]],
        receive: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
        is_job: Callable[[int], bool],
        gone: Callable[[], None],
    ) -> None:
        self.connected = False
        self.due = NEVER
        self._selector = selector
        self._welcome, self._receive, self._log = welcome, receive, log
        self._gone = gone
        self._agent: socket.socket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._blocked = False
        """Whether the selector is to tell when the agent takes more."""
        _listen(os.path.join(state_dir, "supervisor.sock"), selector, self._accept, log, is_job)

    def tell(self, message: dict[str, Any], patient: bool = False) -> None:
        """Send this with the next flush, or, if patient, a little later. Dropped if no agent is connected, as a new
        one is sent everything."""
        if self._agent is not None:
            self._unsent += wire.encode(message) + b"\n"
            self.due = min(self.due, procs.now() + PATIENCE if patient else 0.0)

    def send_waiting(self) -> None:
        """Send with the next flush also what may wait."""
        if self._unsent:
            self.due = 0.0

    def flush(self) -> None:
        """Send all queued messages if one is due, as far as the socket accepts them."""
        if self._agent is None or not self._unsent or self.due > procs.now():
            return
        try:
            self._send(self._agent)
        except OSError:
            self._close("")
            return
        self.due = 0.0 if self._unsent else NEVER
        if len(self._unsent) > _MOST_UNSENT:
            self._close("the agent does not listen; it is told everything when it comes back")
            return
        if self._blocked != bool(self._unsent):
            self._blocked = not self._blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._blocked else 0)
            self._selector.modify(self._agent, events, self._read)

    @fault("supervisor.tell")
    def _send(self, agent: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            del self._unsent[: agent.send(self._unsent)]

    def _accept(self, peer: socket.socket) -> None:
        if self._agent is not None:
            self._read()  # messages that the older one still sent
            self._close("a newer agent took over")
        peer.setblocking(False)
        self._agent, self.connected, self._blocked = peer, True, False
        self._selector.register(peer, selectors.EVENT_READ, self._read)
        self.tell(self._welcome())

    def _read(self) -> None:
        peer = self._agent
        gone = False
        while peer is not None and not gone:
            try:
                part = peer.recv(_PART)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self._received += part
            gone = not part
            if len(part) < _PART:
                break
        lines = self._received.split(b"\n")
        self._received = lines.pop()
        for line in lines:
            try:
                message = json.loads(line.decode())  # of text: of bytes it would guess the encoding
                self._receive(message)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._log(f"a message of the agent is not understood: {type(error).__name__} {error}")
        if gone:
            self._close("")
        elif len(self._received) > _MOST_LINE:
            self._close("a message of the agent is too long")

    def _close(self, why: str) -> None:
        if why:
            self._log(why)
        if self._agent is not None:
            self._selector.unregister(self._agent)
            self._agent.close()
            self._gone()
        self._agent, self.connected, self.due = None, False, NEVER
        self._received.clear()
        self._unsent.clear()


def _listen(
    path: str,
    selector: selectors.BaseSelector,
    accepted: Callable[[socket.socket], None],
    log: Callable[[str], None],
    is_job: Callable[[int], bool],
) -> None:
    """Pass each connection to `accepted`, except those of jobs and of other users."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = bound(path)
    listener.listen(16)
    listener.setblocking(False)

    def accept() -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        try:
            judge(peer, "this supervisor", job_roots(), is_job=is_job)
        except PeerRefused as why:
            log(f"not let in at {os.path.basename(path)}: {why}")
            peer.close()
            return
        accepted(peer)

    selector.register(listener, selectors.EVENT_READ, accept)


def job_roots() -> set[int]:
    """The processes whose descendants are jobs: this one, and our agent, the heir of a killed supervisor."""
    parent = os.getppid()
    return {os.getpid()} | ({parent} if process_name(parent) == AGENT else set())


FILES_SOCKET = "files.sock"
_MOST = 4096
_AT_ONCE = 64
"""Maximum number of connections that have not named their slot yet."""


class FilesSocket:
    """Listens at `files.sock` in the state directory. A line of JSON says which slot, with the groups of its user.
    `oom` is the OOM score of jobs: a process that reads what a job left has it, too."""

    def __init__(
        self,
        state_dir: str,
        walls: str,
        oom: str,
        forks: ForkServer,
        selector: selectors.BaseSelector,
        log: Callable[[str], None],
        is_job: Callable[[int], bool],
    ) -> None:
        self._state, self._walls, self._oom, self._forks = state_dir, walls, oom, forks
        self._selector, self._log = selector, log
        self._waiting: dict[socket.socket, None] = {}
        _listen(os.path.join(state_dir, FILES_SOCKET), selector, self._accept, log, is_job)

    def _accept(self, peer: socket.socket) -> None:
        if len(self._waiting) >= _AT_ONCE:
            self._drop(next(iter(self._waiting)))
        peer.setblocking(False)
        self._waiting[peer] = None
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))

    def _read(self, peer: socket.socket) -> None:
        try:
            # The rest of the stream is for the process that answers.
            line, _, rest = peer.recv(_MOST, socket.MSG_PEEK).partition(b"\n")
            peer.recv(len(line) + 1)
            slot = self._slot(json.loads(line))
            peer.setblocking(True)
            self._forks.serve_files(slot, peer)
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError, wire.Closed) as error:
            self._log(f"no files can be asked for: {error}")
        self._drop(peer)

    def _drop(self, peer: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            del self._waiting[peer]
            self._selector.unregister(peer)
            peer.close()

    def _slot(self, asked: dict[str, Any]) -> Slot:
        """The slot with a directory of this name. Its user is the directory's owner, as only we can create directories
        there."""
        name = asked["slot"]
        if not isinstance(name, str) or not name.isalnum():
            raise ValueError("that is not the name of a slot")
        folder = os.path.join(self._state, "jobs", name)
        seen = os.lstat(folder)
        own = accounts.is_slot_uid(seen.st_uid)
        walls = USER if seen.st_uid != os.geteuid() else self._walls
        return Slot(
            name=name,
            walls=walls,
            folder=folder,
            state=self._state,
            uid=seen.st_uid,
            gid=seen.st_gid,
            groups=() if own else tuple(map(int, asked.get("groups", ()))),
            own=own,
            private=is_private(name, walls),
            oom=self._oom,
        )


INTERVAL = 60.0
LINES = 20
"""Maximum number of lines per interval."""
UNSENT_LINES = 20
"""Number of latest lines kept for an absent agent."""


class Throttle:
    """Passes a line unless it was logged within the last interval, or the interval has its maximum. The first line of
    the next interval says how many were suppressed."""

    def __init__(self) -> None:
        self._since = 0.0
        self._said: set[str] = set()
        self._unsaid = 0

    def passed(self, line: str, now: float) -> str:
        """The line to log at `now` (seconds); empty: it is suppressed."""
        if not self._said or now - self._since >= INTERVAL:
            self._since, unsaid, self._unsaid = now, self._unsaid, 0
            self._said = {line}
            return f"{line} ({unsaid} more lines like this one were left out)" if unsaid else line
        if line in self._said or len(self._said) >= LINES:
            self._unsaid += 1
            return ""
        self._said.add(line)
        return line


class Warnings:
    """Warnings of the supervisor, for its own log and the agent's, which operators read. `tell` sends one to the agent
    (False: none is connected; it is kept for the next one)."""

    def __init__(self, log: Callable[[str], None], tell: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self._log, self._tell, self._clock = log, tell, clock
        self._throttle = Throttle()
        self._unsent_lines: deque[str] = deque(maxlen=UNSENT_LINES)

    def warn(self, line: str) -> None:
        """Log and send this, unless it was logged recently."""
        if said := self._throttle.passed(line, self._clock()):
            self._log(said)
            if not self._tell(said):
                self._unsent_lines.append(said)

    def take_unsent(self) -> list[str]:
        """Take the lines that no agent has receive yet."""
        lines = [*self._unsent_lines]
        self._unsent_lines.clear()
        return lines
