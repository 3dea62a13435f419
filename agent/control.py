"""The agent's control socket for the operator on this machine: `agent.sock` in its state directory. A request is one
line of JSON, answered by lines of JSON; closing the connection withdraws the request. Jobs are refused, also where they
run as the agent's own user: a job is any descendant of the supervisor or the agent.

Requests: `status`, `accept-loss`, and `stop` with what happens to the jobs. After `stop` the process is ended by
SIGTERM.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.session import Session
from distributed_grid.agent.supervisor.sockets import Throttle
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.nodes import NodeFacts, Offer
from distributed_grid.runtime import unix
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.unix import boot_clock, bound

SOCKET = "agent.sock"
CLOSED = "the agent is being stopped"
MOST = 4096
LOOK = 0.1
"""Interval between checks of what is left (s)."""
ACKNOWLEDGED = 10.0
"""Timeout for the coordinator to acknowledge the last ends (s)."""

log = get_logger("agent")


class Control:
    """Serves the control socket. `about` describes the agent; `take_back` ends all jobs not told to end yet; `changed`
    is called when `closed` has changed."""

    def __init__(
        self,
        state_dir: Path,
        launcher: Launcher,
        table: Table,
        about: Callable[[], dict[str, Any]],
        take_back: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        self._stops = 0
        """Number of open requests to stop."""
        self._dir = state_dir
        self._launcher, self._table = launcher, table
        self._about, self._take_back, self._changed = about, take_back, changed
        self._throttle = Throttle()

    @property
    def closed(self) -> str:
        """Why nothing is started any more; empty: jobs are taken."""
        return CLOSED if self._stops else ""

    async def run(self) -> None:
        """Serve, for ever."""
        server = await asyncio.start_unix_server(self._meet, sock=_bound(self._dir), limit=MOST)
        async with server:
            await server.serve_forever()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if why := self._refusal(writer.get_extra_info("socket")):
                if said := self._throttle.passed(why, boot_clock()):
                    log.warning("not let in at the agent's own socket", why=said)
                _tell(writer, {"error": why})
                return
            try:
                asked = json.loads(await reader.readline())
                op, jobs, deadline = asked["op"], asked.get("jobs", "keep"), float(asked.get("deadline") or 0)
            except (ValueError, KeyError, TypeError, AttributeError):
                _tell(writer, {"error": "this is not understood here"})
                return
            if op == "status":
                _tell(writer, self._about())
            elif op == "accept-loss":
                loss = self._launcher.loss
                if loss is None or not loss.open:
                    _tell(writer, {"error": "it is known here what ran"})
                else:
                    log.warning("the owner says that nothing lives of what ran before", why=loss.words)
                    self._launcher.accept_loss()
                    _tell(writer, {"accepted": loss.words})
            elif op == "stop" and jobs in ("keep", "drain", "kill"):
                await self._prepare_to_stop(jobs, deadline, reader, writer)
            else:
                _tell(writer, {"error": f"this agent knows no {op!r} of {jobs!r}"})
        except (OSError, asyncio.CancelledError):
            pass  # the caller disconnected, or we are stopping
        finally:
            writer.close()

    async def _prepare_to_stop(
        self, jobs: str, deadline: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Start nothing more, and send `ready` when the jobs are as requested. The caller stays connected until we are
        stopped: closing the connection withdraws the request, but not those of others."""
        loop = asyncio.get_running_loop()
        began, empty_since, reported = loop.time(), 0.0, -1
        log.info("to be stopped", jobs=jobs)
        self._count(1)
        gone = asyncio.create_task(reader.read())
        ending = False
        try:
            ready = False
            while not gone.done():
                left, now = len(self._table.live()), loop.time()
                empty_since = 0.0 if left else empty_since or now
                if jobs == "kill" or (jobs == "drain" and 0 < deadline <= now - began):
                    self._take_back(CLOSED)
                told_all = not self._table.unacknowledged() or self._about()["connected_for"] is None
                settled = not left and (told_all or now - empty_since > ACKNOWLEDGED)
                if not ready and (jobs == "keep" or settled):
                    ready = True
                    _tell(writer, {"ready": True, "left": left})
                elif not ready and left != reported:
                    reported = left
                    _tell(writer, {"left": left})
                await asyncio.wait({gone}, timeout=LOOK)
        except asyncio.CancelledError:
            ending = True  # as requested; nothing may be offered any more
            raise
        finally:
            gone.cancel()
            if not ending:
                self._count(-1)
                log.info("a request to stop is withdrawn", others=self._stops)

    def _count(self, change: int) -> None:
        self._stops += change
        self._changed()

    def _refusal(self, theirs: socket.socket) -> str:
        """Why the caller is refused; empty: it is not."""
        try:
            unix.judge(theirs, "this agent", {os.getpid(), self._launcher.supervisor_pid} - {0})
        except unix.PeerRefused as refused:
            return f"a job may not order its own node: {refused}" if refused.job else str(refused)
        return ""


def described(
    facts: NodeFacts, url: str, session: Session | None, launcher: Launcher, table: Table, offer: Offer
) -> dict[str, Any]:
    """The agent's state, for `grid agent status`."""
    now = boot_clock()
    return {
        "node": facts.name,
        "software": __version__,
        "coordinator": url,
        "connected_for": round(now - session.began, 1) if session is not None else None,
        "grid": session.welcome.grid if session is not None else "",
        "supervisor": {"pid": launcher.supervisor_pid, "software": launcher.supervisor_software},
        "jobs": [msgspec.to_builtins(one) for one in table.inventory(now) if one.state is not State.ENDED],
        "walls": facts.walls,
        "walls_why": facts.walls_why,
        "nameless": facts.nameless or launcher.nameless,
        "owners": list(facts.owners),
        "trusts": facts.trusts,
        "limits": launcher.limits,
        "ends": facts.ends,
        "offers": str(offer.resources),
        "withheld": [f"{one.what}: {one.why}" for one in offer.withheld],
    }


def _tell(writer: asyncio.StreamWriter, said: dict[str, Any]) -> None:
    writer.write(json.dumps(said).encode() + b"\n")


def _bound(state_dir: Path) -> socket.socket:
    """The socket, for our user alone, replacing that of an earlier agent: we hold the directory's lock."""
    path = state_dir / SOCKET
    path.unlink(missing_ok=True)
    return bound(path)
