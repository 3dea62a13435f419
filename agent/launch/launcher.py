"""The agent's side of the connection to the supervisor: starts or finds one, sends it orders, and passes its reports
on. No state that matters is kept here: after a restart of either, everything is reported again from the supervisor's
journal."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.core.entry import Kept, keep
from distributed_grid.agent.launch.isolation import Account
from distributed_grid.agent.launch.messages import (
    REPORTS,
    SupervisorReport,
    frozen,
    known_of,
    launch_order,
    outcome_of,
    slot_order,
    with_output,
)
from distributed_grid.agent.launch.supervisor import Loss, last_words, lives, may_start, start
from distributed_grid.agent.launch.workdir import Place, SlotIndex
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import OUTPUT_LIMIT, VERSION
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages import AwaitsReader, Exited, Launch, Started, Stop, Suspended
from distributed_grid.protocol.nodes import Known
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.unix import connected

_START_SECONDS = 15.0
_PAUSE = 0.005
NAMELESS = (
    "the machine's accounts were changed since the supervisor began, which took its copy of them away;"
    " nothing, another one begins when no job runs"
)


class SupervisorGone(GridError):
    """There is no supervisor, and this agent has dropped the privileges to start one; the next agent has them."""


class _Reservation(NamedTuple):
    """A slot that is asked for: for what, where the answer goes, and until when it is waited for."""

    launch: Launch
    account: Account | None
    answer: asyncio.Future[str]
    limit: asyncio.Timeout


def _ignore(value: Any) -> None:
    """Callback that ignores its argument."""


class Launcher:
    """Jobs of one node. `report` gets a Started or an Exited for each launch and stop, in order, also for launches of
    an earlier agent; `pids_limit` is the maximum number of processes and threads of a job (0: as requested), `nice` the
    niceness of jobs; `log` gets messages about the supervisor. `pids` are the main processes of running jobs by
    allocation; `limits` says how each limit is enforced.

    `cgroup`: the setting for `hierarchies.survey`. `walls`: behind which jobs run (walls/enclosure.py); `owners` are
    the users whose jobs see what the agent's user sees, where jobs have namespaces. `promise`: the level that is
    reported for a job; empty: the one that is built.

    `process` is a supervisor that was just started. `slots` says in which slot each allocation ran."""

    def __init__(
        self,
        state_dir: Path,
        report: Callable[[Started | Exited], None],
        output_limit: int = OUTPUT_LIMIT,
        log: Callable[[str], None] = _ignore,
        pids_limit: int = 0,
        cgroup: str = "none",
        nice: int = 0,
        walls: str = "none",
        promise: str = "",
        owners: tuple[str, ...] = (),
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.supervisor_pid, self.supervisor_software = 0, ""
        self.suspended: Callable[[Suspended], None] = _ignore
        self.awaits_reader: Callable[[AwaitsReader], None] = _ignore
        self.pids: dict[str, int] = {}
        self.kept: dict[str, Kept] = {}
        """Of the launches that are not known to be over; at the start of all that are known."""
        self._dir = state_dir.absolute()
        self._report = report
        self.keep_output = output_limit
        self._log = log
        self._walls = walls
        self._promise = promise
        self._pids_limit = pids_limit
        self._cgroup = cgroup
        self._nice = nice
        self.owners = owners
        self.slots = SlotIndex(self._dir)
        self.walls = ""
        """What the supervisor that lives has built."""
        self.gone = ""
        """Why there is no supervisor now; empty: there is one, or another one is on its way."""
        self.walls_changed: Callable[[], None] = lambda: None
        """Called when `walls`, `other_walls` or `gone` has changed."""
        self._reserving: dict[str, _Reservation] = {}
        self._filled: dict[str, str] = {}
        """The slots that were reserved for launches to come: what was made there is nowhere else."""
        self.limits: dict[str, str] = {}
        self._process = process
        self.nameless = ""
        """Why new jobs have no name though this node has names for them; empty: they have one."""
        self.queues = False
        """Whether the supervisor that lives can hold successors."""
        self.grouped = False
        """Whether the supervisor that lives has a control group for each slot."""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._outbox = bytearray()
        self._unanswered: dict[str, list[dict[str, Any]]] = {}
        self._told: set[str] = set()
        self._whole: set[str] = set()
        """Running allocations whose standard input has ended."""
        self._renewed = 0.0
        self._frozen: list[dict[str, Any]] = []
        self.loss: Loss | None = None
        self.loss_changed: Callable[[Collection[str] | None], None] = _ignore
        """Is told of a `loss` while we run, with what is known all the same; and (None) that nothing of it lives."""
        self.unended: dict[str, str] = {}
        """Allocations that were killed and of which something lives all the same, and what that is."""
        self.reported: Callable[[], None] = lambda: None  # called after the reports that came together
        self.noted: Callable[[str, str], None] = lambda allocation, text: None
        """Is told what there is to say of an allocation, and of one that was unended and is over, with nothing."""

    @property
    def other_walls(self) -> str:
        """Why nothing new may start: the living supervisor builds other walls than this agent reports. Empty: the same
        ones."""
        if self.walls in ("", self._walls):
            return ""
        return (
            f"running jobs are behind walls {self.walls}; behind walls {self._walls} the next start when these are over"
        )

    async def start(self) -> list[Known]:
        """Start a supervisor or adopt the living one. Returns all allocations that it knows: running ones, and ended
        ones that are not forgotten yet. Raises GridError if no supervisor can be had."""
        known = await self._connect()
        self._send({"op": "keep-output", "bytes": self.keep_output})
        self._renew_supervisor()
        self._told = {one.allocation for one in known if one.outcome is not None}
        self._task = asyncio.create_task(self._listen(), name="launcher")
        return known

    async def watch(self) -> None:
        """Wait until the supervisor is gone for good: raises SupervisorGone."""
        assert self._task is not None  # noqa: S101
        await asyncio.shield(self._task)

    def launch(
        self,
        launch: Launch,
        directory: Path | None,
        env: dict[str, str],
        lease_from: float = 0.0,
        account: Account | None = None,
        chain: str = "",
    ) -> None:
        """Start the job in this working directory (None: one of its own) with this environment, behind the node's walls
        or as the user of `account`. Its folder exists. Reported: Started, or Exited if it failed. A known allocation is
        reported as it is, and not started again.

        A leased one is ended `launch.lease` seconds after `lease_from` or the latest renewal (seconds since boot); if
        that has passed, it is not started. A successor, of this `chain`, starts when nothing of its chain is alive.
        """
        kept = self.kept[launch.allocation] = keep(launch, chain)
        slot = self._slot_order(launch, account)
        if filled := self._filled.pop(launch.allocation, ""):
            slot["slot"] = filled
        self._ask(launch_order(launch, str(directory or ""), env, lease_from, kept) | slot)

    async def reserve(self, launch: Launch, account: Account | None = None) -> str:
        """Reserve a slot for this launch and return it; the working directory is to be made there before the launch,
        which is withdrawn if the slot is gone by then. Repeated calls return the same one as long as it exists. Waits
        for a supervisor as long as there is none. Raises GridError if no slot can be had."""
        key, slot = launch.allocation, ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS if self._writer is not None else None) as limit:
                answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._reserving[key] = _Reservation(launch, account, answer, limit)
                try:
                    self.announce(launch, account)
                    slot = await answer
                finally:
                    del self._reserving[key]
        if not slot:
            raise GridError("its walls cannot be built on this node", why="see the supervisor's log there")
        self._filled[key] = slot
        return slot

    def announce(self, launch: Launch, account: Account | None = None) -> None:
        """Have a slot made for this launch while it is prepared. `launch` or `unreserve` follows."""
        self._send({"op": "reserve", "id": launch.allocation, **self._slot_order(launch, account)})

    def unreserve(self, allocation: str) -> None:
        """Release the slot of an announced or reserved launch that is not launched."""
        self._filled.pop(allocation, None)
        self._send({"op": "unreserve", "id": allocation})

    def _slot_order(self, launch: Launch, account: Account | None) -> dict[str, Any]:
        return slot_order(launch, account, launch.user in self.owners, self._pids_limit, self._nice)

    def renew(self, at: float) -> None:
        """The coordinator answered the heartbeat sent at `at` (seconds since boot): renew all leases from then. Expired
        ones are not revived."""
        self._renewed = max(self._renewed, at)
        now = procs.now()
        for messages in self._unanswered.values():
            for one in messages:
                # Not sent yet: renewed here, as the supervisor applies a renewal only to what it already knows.
                if one["op"] == "launch" and one["lease_from"] + one["lease"] > now:
                    one["lease_from"] = max(one["lease_from"], at)
        self._send_renewal()

    def report_frozen(self) -> None:
        """Report all allocations that are or were frozen when the supervisor was found."""
        reports, self._frozen = self._frozen, []
        for one in reports:
            self._froze(msgspec.convert(one, SupervisorReport))

    def _froze(self, said: SupervisorReport) -> None:
        message = frozen(said)
        if isinstance(message, AwaitsReader):
            self.awaits_reader(message)
        else:
            self.suspended(message)

    def _send_renewal(self) -> None:
        if self._renewed:
            self._send({"op": "renew", "at": self._renewed})

    def stop(self, stop: Stop) -> None:
        """End the allocation, known or not. Exited is reported when nothing of it is alive."""
        message = {"op": "stop", "id": stop.allocation, "grace": stop.grace, "cause": stop.cause, "text": stop.text}
        self._ask(message)

    def withdraw(self, stop: Stop) -> None:
        """End the allocation if it has not started; otherwise its Started or Exited is reported as usual."""
        if not self.queues:  # nothing waits there: it starts now, or was never there
            if stop.allocation not in self._unanswered:
                self.stop(stop)
        else:
            message = {"op": "stop", "id": stop.allocation, "grace": stop.grace, "cause": stop.cause}
            self._ask(message | {"text": stop.text, "unless_started": True})

    def signal(self, allocation: str, signum: int) -> None:
        """Send a signal to the job's process group, if it runs."""
        self._send({"op": "signal", "id": allocation, "signal": signum})

    def end_input(self, allocation: str) -> None:
        """Note that all of an allocation's standard input is in its pipe: it ends there. Repeated to the next
        supervisor."""
        self._whole.add(allocation)
        self._send({"op": "end-input", "id": allocation})

    def limit(self, allocation: str, seconds: float) -> None:
        """Set its time limit in seconds from its start (0: none)."""
        self._ask({"op": "limit", "id": allocation, "limit": seconds})

    def renice(self, allocation: str) -> None:
        """Give an allocation that was started with a normal weight the weight of jobs."""
        self._ask({"op": "renice", "id": allocation})

    def freeze(self, allocation: str, why: str, seconds: float) -> None:
        """Freeze all its processes for `seconds`, or until `thaw`. A repeated call extends it."""
        self._send({"op": "freeze", "id": allocation, "why": why, "for": seconds})

    def read(self, allocation: str, reader: str, stream: str, offset: int) -> None:
        """An attached reader has read this stream of its output up to there."""
        self._send({"op": "read", "id": allocation, "reader": reader, "stream": stream, "offset": offset})

    def thaw(self, allocation: str) -> None:
        """Let a frozen allocation continue."""
        self._send({"op": "thaw", "id": allocation})

    def forget(self, allocations: Iterable[str]) -> None:
        """The coordinator has these ends: the supervisor need not report them any more."""
        ids = [*allocations]
        for one in ids:
            self.kept.pop(one, None)
        self._told.difference_update(ids)
        self._send({"op": "forget", "ids": ids})

    def accept_loss(self) -> None:
        """The node's owner confirms that nothing is alive of what a damaged journal did not name."""
        self._send({"op": "proven"})

    async def close(self, leave: bool = False) -> None:
        """Disconnect; supervisor and jobs stay. With `leave` the supervisor exits as soon as nothing runs."""
        if leave:
            self._send({"op": "leave"})
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._disconnect(flush=True)
        self.slots.close()

    async def lost(self) -> None:
        """The supervisor or the connection is gone: find or start one, report what ended meanwhile, and repeat
        unanswered orders. The journal makes repeated starts harmless."""
        await self._disconnect()
        for asked in self._reserving.values():
            asked.limit.reschedule(None)
        before, other = self.loss and self.loss.id, self.other_walls
        known = {one.allocation: one for one in await self._connect()}
        if self.other_walls != other:
            self.walls_changed()
        if self.loss is not None and self.loss.id != before:
            self._unanswered = {key: asked for key, asked in self._unanswered.items() if key in known}
            self.loss_changed(known.keys())
        self._send({"op": "keep-output", "bytes": self.keep_output})
        self._send_renewal()
        self.report_frozen()
        for one in known.values():
            if one.outcome is not None and one.allocation not in self._told:
                self._exited(one.allocation, one.outcome)
            elif one.outcome is None and one.allocation in self._unanswered:
                pid = self.pids.get(one.allocation, 0)
                self._report(Started(allocation=one.allocation, pid=pid, walls=one.walls))
        for asked in self._reserving.values():
            asked.limit.reschedule(asyncio.get_running_loop().time() + _START_SECONDS)
            self.announce(asked.launch, asked.account)
        for messages in [*self._unanswered.values()]:
            for message in messages:
                self._send(message)
        for allocation in self._whole:
            self._send({"op": "end-input", "id": allocation})

    # --- messages ------------------------------------------------------------------------------------------------

    def _ask(self, message: dict[str, Any]) -> None:
        self._unanswered.setdefault(message["id"], []).append(message)
        self._send(message)

    def _send(self, message: dict[str, Any]) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox += msgspec.json.encode(message) + b"\n"

    def flush(self) -> None:
        """Send the orders of this turn."""
        messages, self._outbox = self._outbox, bytearray()
        # Without a connection, or with one that closes: orders that need an answer are repeated.
        if self._writer is None or not messages or self._writer.is_closing():
            return
        try:
            written = self._write(self._writer, bytes(messages))
        except OSError:
            written = False
        if not written:
            self._writer.close()

    @fault("agent.launch")
    def _write(self, writer: asyncio.StreamWriter, orders: bytes) -> bool:
        writer.write(orders)
        return True

    async def _listen(self) -> None:
        while True:
            await self._read_reports()
            self._log("the supervisor is gone: another one takes over")
            while True:
                try:
                    await self.lost()
                    self._note_gone("")
                    break
                except SupervisorGone:
                    raise
                except (GridError, OSError) as error:
                    self._note_gone(f"no supervisor: {error}")
                    await asyncio.sleep(1.0)

    def _note_gone(self, why: str) -> None:
        if why != self.gone:
            self.gone = why
            self._log(why or "a supervisor is there again")
            self.walls_changed()

    async def _read_reports(self) -> None:
        assert self._reader is not None  # noqa: S101
        rest = b""
        while True:
            try:
                part = await self._reader.read(1 << 18)
            except OSError:
                return
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._handle_report(REPORTS.decode(line))
            self.reported()

    def _handle_report(self, said: SupervisorReport) -> None:
        allocation = said.id
        if said.op == "proven" and self.loss is not None:
            self.loss = msgspec.structs.replace(self.loss, open=False)
            self.loss_changed(None)
            return
        if said.op == "nameless":
            self.nameless = NAMELESS
            self._log(f"new jobs have no name: {NAMELESS}")
            self._renew_supervisor()
            return
        if said.op == "warning":
            self._log(f"the supervisor warns: {said.why}")
            return
        if said.op == "reserved":
            if (waits := self._reserving.get(allocation)) is not None and not waits.answer.done():
                waits.answer.set_result(said.slot)
            return
        if said.op in ("noted", "unended"):
            if said.op == "unended":
                self.unended[allocation] = said.text
            self.noted(allocation, said.text)
            return
        if said.slot:
            self._note_place(allocation, said.slot)
        if said.op == "frozen":
            self._froze(said)
            return
        if said.outcome is not None:
            unstarted = allocation not in self.pids
            outcome = with_output(self._dir, allocation, outcome_of(said.outcome))
            self._exited(allocation, outcome, (self._promise or said.walls) if unstarted and outcome.started else "")
            return
        waiting = self._unanswered.pop(allocation, [])
        if stops := [one for one in waiting if one["op"] == "stop" and not one.get("unless_started")]:
            self._unanswered[allocation] = stops
        self.pids[allocation] = said.pid
        self._report(Started(allocation=allocation, pid=said.pid, walls=self._promise or said.walls))

    def _note_place(self, allocation: str, slot: str) -> None:
        kept = self.kept.get(allocation)
        if kept is not None or not self.slots.slot(allocation):
            kept = kept or Kept()
            self.slots.note(allocation, Place(slot, kept.user, kept.workdir))

    def _exited(self, allocation: str, outcome: Outcome, walls: str = "") -> None:
        self._unanswered.pop(allocation, None)
        self.kept.pop(allocation, None)
        self.pids.pop(allocation, None)
        self._told.add(allocation)
        self._whole.discard(allocation)
        self._filled.pop(allocation, None)
        if self.unended.pop(allocation, ""):
            self.noted(allocation, "")
        self._report(Exited(allocation=allocation, outcome=outcome, walls=walls))
        self._renew_supervisor()

    def _renew_supervisor(self) -> None:
        """Ask a supervisor of another release, with other walls, or with nameless jobs to exit when its jobs are over;
        this agent starts the next one."""
        other = self.supervisor_software not in ("", __version__) or bool(self.nameless or self.other_walls)
        if other and not self.pids and not self._unanswered:
            self._send({"op": "leave"})

    # --- the connection ------------------------------------------------------------------------------------------

    async def _connect(self) -> list[Known]:
        """Connect, starting a supervisor if none is alive. Returns the allocations that it knows."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                hello = await self._dial()
            except (FileNotFoundError, ConnectionError, asyncio.IncompleteReadError):
                self._start_if_none()
            else:
                if hello["version"] == VERSION:
                    self.supervisor_pid, self.limits = hello["pid"], hello["limits"]
                    self.supervisor_software, self.walls = hello["software"], hello["walls"]
                    self.nameless = NAMELESS if hello.get("nameless") else ""
                    self.grouped, self.queues = hello["grouped"], hello.get("successors", False)
                    for one in hello["known"]:
                        if one.get("kept"):
                            self.kept[one["id"]] = msgspec.convert(one["kept"], Kept)
                        if one.get("slot"):
                            self._note_place(one["id"], one["slot"])
                    self.loss = msgspec.convert(hello["loss"], Loss | None)
                    self._frozen = [report for one in hello["known"] for report in one["frozen"]]
                    self.unended = {one["id"]: one["unended"] for one in hello["known"] if one["unended"]}
                    self.pids = {one["id"]: one["pid"] for one in hello["known"] if one["outcome"] is None}
                    for line in hello.get("warnings", ()):
                        self._log(f"the supervisor warns: {line}")
                    return [known_of(self._dir, one, self._promise) for one in hello["known"]]
                await self._dismiss(hello)
            if time.monotonic() > deadline:
                raise GridError(
                    "the supervisor of this node's jobs cannot be reached",
                    why=last_words(self._dir) or "it did not answer in time",
                    hint=f"look into {self._dir / 'supervisor.log'}",
                )
            await asyncio.sleep(_PAUSE)

    async def _dial(self) -> dict[str, Any]:
        await self._disconnect()
        ours = connected(self._dir / "supervisor.sock", 0.0)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 26)
        hello: dict[str, Any] = json.loads(await self._reader.readuntil(b"\n"))
        return hello

    async def _disconnect(self, flush: bool = False) -> None:
        if flush and self._writer is not None:
            self.flush()
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:  # whoever waits may be cancelled: nobody else waits for the same then
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _dismiss(self, hello: dict[str, Any]) -> None:
        """Ask a supervisor of another version to exit when nothing runs."""
        running = [one["id"] for one in hello["known"] if one["outcome"] is None]
        if running:
            raise GridError(
                f"the node's supervisor has version {hello['version']}, this agent needs {VERSION}",
                why=f"it was started by another release and still watches {len(running)} running jobs",
                hint="run that release's agent until these jobs are over, then start this one",
            )
        assert self._writer is not None  # noqa: S101
        with contextlib.suppress(ConnectionError):  # it was asked before, and has exited
            self._writer.write(b'{"op":"leave"}\n')
            await self._writer.drain()

    def _start_if_none(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        if not may_start(self._walls):
            if lives(self._dir):
                return
            raise SupervisorGone(
                "the supervisor of this node's jobs is gone",
                why=f"it left or was killed; the last line of its log: {last_words(self._dir) or 'none'}",
                hint="the next agent starts another one, for which this one has no rights any more; jobs go on. systemd"
                " starts it by itself, and who runs an agent otherwise has to",
            )
        # Only the first supervisor gets the fault points: the next one would die of them as well.
        started = start(self._dir, self.keep_output, self._cgroup, self._walls, faults=self._process is None)
        self._process = started or self._process
