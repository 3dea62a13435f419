"""The supervisor's end of its talk with the agent: JSON lines over a Unix socket that only this user can open.
One agent at a time, the newest one; nobody is waited for. Stdlib only."""

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed_grid.agent.supervisor import procs
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.peer import AGENT, PeerRefused, judge, process_name
from distributed_grid.runtime.unix import bound

PATIENCE = 0.002
"""Seconds that a patient message waits at most for others to go with."""
NEVER = float("inf")
_PART = 1 << 16  # more would be fetched from the system, and given back, for each message
_MOST_UNSENT = 8 << 20
_MOST_LINE = 16 << 20
_encode = json.JSONEncoder(separators=(",", ":")).encode


class AgentSocket:
    """Listens at `supervisor.sock` in the state directory. `greet` makes the first message for a new agent, `hear`
    takes each message of it. `due` is when a flush has to be: NEVER without anything to send, 0 for at once; what the
    agent does not take yet is sent when the selector tells that it does. A process for which `of_a_job` holds is
    not let in, though it is of the right user. `gone` is called when an agent is."""

    def __init__(
        self,
        state_dir: str,
        selector: selectors.BaseSelector,
        greet: Callable[[], dict[str, Any]],
        hear: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
        of_a_job: Callable[[int], bool],
        gone: Callable[[], None],
    ) -> None:
        self.connected = False
        self.due = NEVER
        self._selector = selector
        self._greet, self._hear, self._log, self._of_a_job = greet, hear, log, of_a_job
        self._gone = gone
        self._agent: socket.socket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        path = Path(state_dir, "supervisor.sock")
        path.unlink(missing_ok=True)
        self._listener = listener = bound(path)
        listener.listen(8)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def tell(self, message: dict[str, Any], patient: bool = False) -> None:
        """Send this with the next flush, if it is patient with one that is a little later. Dropped if no agent is
        there, since a new one is told everything."""
        if self._agent is not None:
            self._unsent += _encode(message).encode() + b"\n"
            self.due = min(self.due, procs.now() + PATIENCE if patient else 0.0)

    def flush(self) -> None:
        """Send what is due and can be sent now, with all that waits."""
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
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._agent).events != events:
            self._selector.modify(self._agent, events, self._read)

    @fault("supervisor.tell")
    def _send(self, agent: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            del self._unsent[: agent.send(self._unsent)]

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        try:
            pid = judge(peer, "this supervisor", job_roots()).pid
            if self._of_a_job(pid):
                raise PeerRefused(f"process {pid} is a job's")
        except PeerRefused as refused:
            self._log(f"a connection is refused: {refused}")
            peer.close()
            return
        if self._agent is not None:
            self._read()  # what the older one still said counts
            self._close("a newer agent took over")
        peer.setblocking(False)
        self._agent, self.connected = peer, True
        self._selector.register(peer, selectors.EVENT_READ, self._read)
        self.tell(self._greet())

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
                message = json.loads(line)
                self._hear(message)
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


def job_roots() -> set[int]:
    """Whose descendants are jobs: ours, and our agent's, which are what a killed supervisor before us left."""
    parent = os.getppid()
    return {os.getpid()} | ({parent} if process_name(parent) == AGENT else set())
