"""The door through which the agent gets at the working directories of jobs: each connection is handed to a process with
the rights of one slot, which then answers it (walls/files_socket.py). Stdlib only."""

import contextlib
import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed_grid.agent.supervisor.socket import job_roots
from distributed_grid.agent.walls import uids, wire
from distributed_grid.agent.walls.enclosure import USER, Slot
from distributed_grid.agent.walls.forkserver import ForkServer
from distributed_grid.runtime.peer import PeerRefused, judge
from distributed_grid.runtime.unix import bound

SOCKET = "files.sock"
_MOST = 4096
_AT_ONCE = 64
"""Connections that may wait to say which slot they are about."""


class FilesDoor:
    """Listens at `files.sock` in the state directory. A line of JSON says which slot, with the groups of its user."""

    def __init__(
        self,
        state_dir: str,
        walls: str,
        forks: ForkServer,
        selector: selectors.BaseSelector,
        log: Callable[[str], None],
    ) -> None:
        self._state, self._walls, self._forks = state_dir, walls, forks
        self._selector, self._log = selector, log
        self._waiting: dict[socket.socket, None] = {}
        path = Path(state_dir, SOCKET)
        path.unlink(missing_ok=True)
        self._listener = bound(path)
        self._listener.listen(16)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        try:
            judge(peer, "this supervisor", job_roots())
        except PeerRefused as why:
            self._log(f"not let in at {SOCKET}: {why}")
            peer.close()
            return
        if len(self._waiting) >= _AT_ONCE:
            self._drop(next(iter(self._waiting)))
        peer.setblocking(False)
        self._waiting[peer] = None
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._read(peer))

    def _read(self, peer: socket.socket) -> None:
        try:
            # What follows the line is for who answers.
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
        """The slot whose directory has this name. Who its user is says the directory, which only we can make."""
        name = asked["slot"]
        if not isinstance(name, str) or not name.isalnum():
            raise ValueError("that is not the name of a slot")
        folder = os.path.join(self._state, "jobs", name)
        seen = os.lstat(folder)
        own = uids.is_own(seen.st_uid)
        return Slot(
            name=name,
            walls=USER if seen.st_uid != os.geteuid() else self._walls,
            folder=folder,
            state=self._state,
            uid=seen.st_uid,
            gid=seen.st_gid,
            groups=() if own else tuple(map(int, asked.get("groups", ()))),
            own=own,
        )
