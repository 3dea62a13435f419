"""The node's supervisor: it owns all jobs, and outlives the agent.

One process with one loop, standard library only, started by supervisor/main.py. It does not start the processes of jobs
itself: a spawner behind the walls of a slot does (slots.py, walls/). Each turn of its loop reads all input, writes it
to the journal, and makes it durable with one sync; on a slow disk the loop continues meanwhile (Syncs). Only then it
acts on the input and reports: an intent is on disk before a spawner has the order, and an exit is on disk before it is
reported, and is kept until it is acknowledged. No allocation is ever spawned twice, whichever process dies in between.
An agent that connects is sent the state of all jobs. Leases are enforced without an agent.
"""

import contextlib
import itertools
import os
import selectors
import signal
import socket
import time
from typing import Any

from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.cgroups.hierarchies import described, freezer, survey
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.allocations import Allocations, ReportBatch
from distributed_grid.agent.supervisor.endings import Endings, Freezer
from distributed_grid.agent.supervisor.job import NEVER, OUTPUT_LIMIT, READER, VERSION, Job, Leases, never_ran, of_order
from distributed_grid.agent.supervisor.journal import JournaledJobs
from distributed_grid.agent.supervisor.limits import Limits, Outputs
from distributed_grid.agent.supervisor.recovery import Adopted, Survivors
from distributed_grid.agent.supervisor.sockets import AgentSocket, FilesSocket, Warnings
from distributed_grid.agent.supervisor.spawners import Launches, Spawners, Spawning, never_began
from distributed_grid.agent.supervisor.tree import Stopper, Tree
from distributed_grid.agent.walls import syscalls
from distributed_grid.agent.walls.enclosure import NAMESPACE
from distributed_grid.agent.walls.forkserver import ForkServer, ForkServerGone
from distributed_grid.agent.walls.pipes import Pipes
from distributed_grid.agent.walls.spawner import CannotStart

BATCH = 32
"""Maximum number of launches per turn, so that ends are reported meanwhile."""
COLD = 0.02
"""Seconds without a start after which the next one is prepared by its spawner while its intent is synced. Where one
follows the other that would be a message more for a core that has enough to do."""
LINGER = 10.0
"""Seconds that a supervisor stays without jobs and agent."""
LONGEST_WAIT = 86400.0  # seconds: epoll takes at most 2^31 milliseconds
_DOZE = 1.0  # seconds that we sleep at most while something runs: `select` does not count those that the machine slept
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)
Begun = tuple[Job, dict[str, Any], Spawning]
"""A launch whose intent is written, with its order and its spawner."""


def log(text: str) -> None:
    """Write a line to supervisor.log; lost if the disk is full."""
    text = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode(errors="replace"))


class Supervisor:
    """All jobs of one agent's state directory."""

    def __init__(
        self,
        state_dir: str,
        forks: ForkServer,
        output_limit: int = OUTPUT_LIMIT,
        cgroup: str = "none",
        software: str = "",
        walls: str = "none",
    ) -> None:
        self.software = software  # the release that we are of
        self.allocs = os.path.join(state_dir, "allocs")
        self.leave = self._told_nameless = False
        self._batch = ReportBatch()
        self.idle_since = procs.now()
        self._started = 0.0  # when something was started last
        self._soonest = 0.0  # when `_fire` has something to do, or earlier
        self._children_ended = True
        self.spawners: dict[str, Spawning] = {}
        self.selector = selectors.DefaultSelector()
        jobs_score, _ = procs.protect_from_oom()
        self.warnings = Warnings(log, self._tell_warning, procs.now)
        warn = self.warnings.warn
        self._agent_socket: AgentSocket | None = None
        found = survey(cgroup)
        groups = Cgroups(found.places, log, found.home)
        self.groups = SlotGroups(groups, state_dir, log)
        said = self._spawner_message, self._came, warn
        self.slots = Spawners(state_dir, walls, forks, self.selector, *said, self.groups, jobs_score)
        self.pipes = Pipes(self.allocs, self._end_input)
        self.launches = Launches(self.slots, self.allocs, self._cannot_start, self.pipes)
        self.tree = Tree(warn, forks.act, self.slots.helpers, self._sweep, self.groups)
        self.leases = Leases()
        self.journaled: JournaledJobs[Begun] = JournaledJobs(os.path.join(state_dir, "journal"), self.leases, log)
        self.jobs = self.journaled.jobs
        self.syncs = self.journaled.syncs
        self._sync_ended = False
        self.selector.register(self.journaled.journal.synced, selectors.EVENT_READ, self._synced)
        stopper = Stopper(self.tree, log, freezer(cgroup))
        self.freezer = Freezer(stopper, self.journaled.journal, self._tell, log, procs.now)
        self.endings = Endings(self.tree, self.journaled.journal, self.freezer, self._unended, procs.now)
        self.outputs = Outputs(self.allocs, output_limit, warn, self._await_reader, self._read_on)
        decides = self.leases, self.endings, self._tell, self._release, log, procs.now
        self.allocations = Allocations(self.journaled, self.launches, *decides)
        self.kept_by = described(found)
        self.limits = Limits(self.tree, groups, self.groups, self.endings.ask, self._strayed, int(jobs_score))
        places = [*found.places.values(), freezer(cgroup)]
        self.survivors = Survivors(self.journaled, self.tree, self.slots, places, warn)
        self.adopted = Adopted(self.slots, self.selector, self.tree.main_ended)
        self._take_signals()
        self._restore()
        self.files = FilesSocket(state_dir, walls, jobs_score, forks, self.selector, warn, self.tree.is_job)
        who = self.tree.is_job, self.launches.unreserve
        self.agent = AgentSocket(state_dir, self.selector, self._welcome, self._agent_message, warn, *who)
        self._agent_socket = self.agent

    def _take_signals(self) -> None:
        syscalls.become_subreaper()
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        # SIGTERM comes from a machine that shuts down, and jobs get it too: leave as soon as nothing runs.
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "leave", True))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        woken, self._wake = socket.socketpair()
        woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: self._signalled(woken))

    def _signalled(self, woken: socket.socket) -> None:
        woken.recv(4096)
        self._children_ended = True

    # --- what was before -----------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Adopt what an earlier supervisor left running."""
        boot, before = procs.boot_id(), self.journaled.read()
        if before != boot:  # that one was started may not have reached the disk
            self.jobs.update((key, Job(key, 0.0, *intent)) for key, intent in self.journaled.ahead.items())
        self.journaled.ahead.clear()
        self.survivors.end_unknown()
        self.limits.clear([*self.journaled.forgotten, *(job.id for job in self.jobs.values() if job.over)])
        for job in self.jobs.values():
            if job.over:
                continue
            self.limits.restore(job)
            job.adopted = True
            if before != boot:
                job.main_ended(-1)
                job.end({"cause": "rebooted", "text": "the node was restarted while it ran"})
                continue
            self.allocations.restore(job)
            ended = job.status is not None  # what is left of it is to end
            if not ended and not job.pid:
                self._find_begun(job)
            runs = not ended and self.adopted.watch(job)
            (self.tree.ending if ended else self.tree.watched).add(job)
            self.freezer.restore(job)  # what is left of it, too, where its main process is gone
            if runs:
                self._adopt(job)
        self.adopted.poll(procs.now())
        self.journaled.write()  # a new journal, by which all is durable; an agent that comes is told of it
        self.endings.act()
        self.syncs.take_released()

    def _find_begun(self, job: Job) -> None:
        """Find the main process of a job that may have begun just before its supervisor was killed. One that has not
        does not begin any more."""
        spawner = self.tree.stop_spawner(job)  # it may just be about to start it
        self.adopted.find(job)
        if not job.pid and (made := self.tree.made_by_spawner(job)):
            job.spawned = made.start, made.start
            job.runs(made.pid)
        if job.pid:
            if spawner:
                self.limits.admitted(job, spawner)
                self.tree.continue_spawner(job)
        elif not self.tree.members(job):
            job.unsent = self.launches.unsent(job, self.tree.is_still(job))
            self.tree.kill(job)  # the spawner alone

    def _adopt(self, job: Job) -> None:
        """A job whose main process runs."""
        if job.cause:
            self.endings.end(job, job.grace)
        self.endings.arm(job)
        self.pipes.adopt(job.id)
        self._watch(job)
        log(f"{job.id} of an earlier supervisor still runs (pid {job.pid}) and is watched")

    def _watch(self, job: Job) -> None:
        now = procs.now()
        self.outputs.watch(job, now)
        self.limits.watch(job, now)

    # --- what the agent says -------------------------------------------------------------------------------------

    def _welcome(self) -> dict[str, Any]:
        """A new agent is connected. Launches without an intent are dropped: the agent knows of none that it is not told
        of, and launches them again."""
        self.journaled.end_sync()  # what it is told of is durable
        self.allocations.drop_unstarted()
        return self._hello()

    def _hello(self) -> dict[str, Any]:
        """Return the first message to an agent: about this supervisor, and all allocations."""
        about_us = {"version": VERSION, "software": self.software, "pid": os.getpid(), "limits": self.kept_by}
        lost = self.journaled.loss.as_message() if self.journaled.loss is not None else None
        about_us |= {"walls": self.slots.walls, "loss": lost, "nameless": self.slots.nameless}
        about_us |= {"warnings": self.warnings.take_unsent(), "grouped": self.groups.there, "successors": True}
        return {"op": "hello", **about_us, "known": self.allocations.known()}

    def _tell_warning(self, line: str) -> bool:
        if self._agent_socket is None or not self._agent_socket.connected:
            return False
        self._agent_socket.tell({"op": "warning", "id": "", "why": line})
        return True

    def _agent_message(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "launch":
                self.allocations.launch(message)
            case "reserve":
                self._reserve(message)
            case "unreserve":
                self.launches.unreserve(message["id"])
            case "stop":
                self.slots.hear(self.spawners.get(message["id"]))  # what has ended by itself is not ended by this
                how = message["cause"], message["text"], message["grace"], message.get("unless_started", False)
                self.allocations.stop(message["id"], *how)
            case "signal":
                job = self.jobs.get(message["id"])
                if job is not None and not job.over and 0 < message["signal"] <= signal.NSIG:
                    self.tree.signal_group(job, message["signal"])
            case "limit":
                if (job := self.jobs.get(message["id"])) is not None and not job.over:
                    self.endings.limit(job, message["limit"])
            case "renice":
                if (job := self.jobs.get(message["id"])) is not None and not job.over:
                    self.endings.renice(job)
            case "freeze":
                if (job := self.jobs.get(message["id"])) is not None:
                    self.freezer.ask(job, message["why"], message["for"])
            case "thaw":
                if (job := self.jobs.get(message["id"])) is not None:
                    self.endings.thaw(job)
            case "end-input":
                self.pipes.end(message["id"])
            case "read":
                where = message["stream"], message["offset"]
                self.outputs.read(message["id"], message["reader"], *where, procs.now())
            case "keep-output":
                self.outputs.limit = message["bytes"]
            case "renew":
                self.allocations.renew(message["at"])
            case "forget":
                self.allocations.forget(message["ids"])
            case "leave":
                self.leave = True
            case "proven":
                self._proven()
            case other:
                log(f"the agent says {other!r}, which is not known here")

    def _reserve(self, order: dict[str, Any]) -> None:
        """Reply with the slot of a launch, whose working directory is to be filled before."""
        key = order["id"]
        if key in self.jobs or "/" in key or key.startswith("."):
            self.agent.tell({"op": "reserved", "id": key, "slot": ""})
        elif (found := self.launches.reserve(key, order)) is None:
            self.agent.tell({"op": "reserved", "id": key, "slot": "", "why": "no spawner can be made"})
        elif found.ready:
            self._came(found, "")

    def _came(self, spawning: Spawning, why: str) -> None:
        """A spawner is ready, or failed."""
        self.launches.came(spawning, why)
        if spawning.taken and self.launches.is_reserved(spawning):
            slot = "" if why else spawning.slot.name
            self.agent.tell({"op": "reserved", "id": spawning.taken, "slot": slot, "why": why})

    def _proven(self) -> None:
        """Handle the proof that nothing is alive of what a damaged journal did not name."""
        self.journaled.proven()
        self.slots.know_all()
        self.journaled.end_sync()
        if self.journaled.write():
            self.journaled.begin_sync([])
            self.journaled.end_sync()
        if self.journaled.loss is not None:
            self.agent.tell({"op": "proven", "id": self.journaled.loss.id})

    def _release(self, job: Job) -> None:
        """Free its resources, as nothing of it is alive."""
        self.tree.over(job)
        if (job.orphaned or job.adopted) and job.place is not None and job.place.own:
            self.slots.forks.act(job.place.uid, job.place.gid, [["clear"]])  # else its spawner does
        if (spawning := self.spawners.pop(job.id, None)) is not None:
            if job.reniced and not spawning.dead:
                self.slots.retire(spawning, "its session has given way with its job")
            elif job.slot_ended and not spawning.dead:  # the next job of the slot would be ended, too
                self.slots.retire(spawning, "all of its slot is being ended")
            self.slots.release(spawning)
        if job.pidfd >= 0 and not job.adopted:
            os.close(job.pidfd)
            job.pidfd = -1
        self.pipes.drop(job.id)
        self.outputs.leave(job.id)
        self.limits.leave(job)
        self.freezer.forget(job)

    def _await_reader(self, job: Job, why: str) -> None:
        self.freezer.ask(job, why, NEVER, READER)

    def _read_on(self, job: Job) -> None:
        self.endings.thaw(job, READER)

    def _unended(self, job: Job) -> None:
        log(f"{job.id} cannot be ended: {job.unended}; it is killed again until nothing of it lives")
        self.agent.tell({"op": "unended", "id": job.id, "text": job.unended})

    def _strayed(self, job: Job, text: str) -> None:
        log(f"{job.id}: {text}")
        self.agent.tell({"op": "noted", "id": job.id, "text": text})

    def _tell(self, message: dict[str, Any], patient: bool = False) -> None:
        self.agent.tell(message, patient=patient)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until nothing runs and no agent is connected."""
        try:
            while not self._may_leave():
                for key, _ in self.selector.select(self._timeout()):
                    key.data()
                if self._children_ended or self.tree.unsettled():
                    self._children_ended = False
                    self.tree.reap(self._spawner_ended)
                if (now := procs.now()) >= self._soonest:
                    self._fire(now)
                self._settle()
                self._act()
                self._tell_nameless()
                self.freezer.act()
                self.endings.act()
                self.agent.flush()
        except ForkServerGone:
            # Jobs run on with their spawners, which write down their exits, as where we are killed.
            log("the fork server was killed, and another one cannot be had here: the next supervisor takes over")
        self.slots.close()

    def _may_leave(self) -> bool:
        busy = self.tree.busy() or self.launches or self.syncs.over or self.syncs.under_way
        if busy or (self.agent.connected and not self.leave):
            self.idle_since = procs.now()
            return False
        return self.leave or procs.now() - self.idle_since >= LINGER

    def _timeout(self) -> float | None:
        now = procs.now()
        soonest = min(
            self.endings.due, self.limits.due, self.freezer.due, self.slots.due, self.pipes.due, self.leases.next,
            self.survivors.due, self.adopted.due,
        )  # fmt: skip
        if self.tree.running or self.tree.watched:
            soonest = min(soonest, self.outputs.due, now + _DOZE)
        self._soonest = soonest
        if 0.0 < self.agent.due < soonest:
            soonest = self.agent.due
        if not self.journaled.journal.sound or self.launches.any_ready(self._may_begin):
            soonest = min(soonest, self.journaled.retry_at)
        if self.syncs.uncovered and not self.syncs.under_way:
            soonest = min(soonest, max(self._ends_due(now), self.journaled.retry_at))
        if not self.agent.connected:
            soonest = min(soonest, self.idle_since + LINGER)
        return max(0.0, min(soonest - now, LONGEST_WAIT)) if soonest < NEVER else None

    def _fire(self, now: float) -> None:
        """Handle what is due: time limits, leases, grace, and checks of outputs and limits."""
        self.allocations.end_unleased(now)
        self.adopted.poll(now)
        if self.survivors.poll(now):
            self._proven()
        self.endings.fire(now)
        self.outputs.poll(now)
        self.limits.poll(now)
        self.slots.poll(now)
        self.pipes.poll(now)

    def _settle(self) -> None:
        """A job is over when nothing of it is alive. Leftovers of its main process are ended first."""
        for job in [*self.tree.ending]:
            if job.adopted and not job.to_check:
                continue  # looking through all processes is dear: only when it is due
            job.to_check = False
            if not self.tree.alive(job):
                self.adopted.account(job)
                self.limits.judge(job)
                self.allocations.is_over(job, job.ended(procs.now()))
            elif job.kill_at == NEVER:
                self.endings.end(job, job.grace)
            else:
                self.endings.arm(job)
            if job.unrecorded:
                self.journaled.journal.append(*job.completing())

    def _ends_due(self, now: float) -> float:
        """Return when the ends that are not durable yet are to be made so."""
        running = self.tree.running
        youngest = next(reversed(running.values())).began if running else -NEVER
        ends = self.syncs.uncovered
        if self.syncs.starts_wait or any(job.followed == 1 for job in ends):
            return now  # the last one of its chain has been started: the coordinator is to know
        return self._batch.due(bool(ends), youngest, now)

    def _act(self) -> None:
        """Release what is durable now. Then one write for all intents and ends of this turn, and one sync for what is
        not durable yet, unless one is under way: what needs another one waits for its end. A start whose intent is
        durable waits for none; what ended before it is synced a moment later, with others."""
        if self._sync_ended:
            self._sync_ended = False
            self.journaled.end_sync()
        self._release_durable()
        now = procs.now()
        if now < self.journaled.retry_at:
            return
        begun: list[Begun] = []
        for key, order, spawning in itertools.islice(self.launches.ready(self._may_begin), BATCH):
            job = self.jobs[key] = of_order(order, now)
            job.place, job.left = spawning.place, True
            self.allocations.begin(job)
            begun.append((job, order, spawning))
        fresh = [one for one in begun if not one[0].intent_durable]
        due = not self.syncs.under_way and bool(self.syncs.uncovered) and now >= self._ends_due(now)
        if begun:
            if len(fresh) == len(begun) == 1 and now >= self._started + COLD:
                self.launches.prepare(fresh[0][0].id, *fresh[0][1:])
            self._started = now
        patient = not (fresh or due) and bool(self.allocations.waiting)
        if not self.journaled.write(ends=bool(begun) or due, patient=patient):
            self._refuse(begun)
        elif begun or due:
            self._start_all([one for one in begun if one[0].intent_durable])
            if fresh or (due and self.syncs.uncovered):  # and no new journal was written
                self._batch.done()
                self.journaled.begin_sync(fresh)
        self._release_durable()

    def _synced(self) -> None:
        self._sync_ended = self.syncs.under_way

    def _may_begin(self, key: str) -> bool:
        """Whether a launch may begin now: also what its intent waits for is one sync."""
        return not self.syncs.under_way or self.allocations.is_durable(key)

    def _release_durable(self) -> None:
        """Report the ends and starts that waited for the disk, and start the launches."""
        if not self.syncs.some_released:
            return
        released = self.allocations.tell_durable()
        if released.ends:
            self.agent.send_waiting()  # they have waited for each other
        if released.launches:
            self.agent.flush()
            self._start_all(released.launches)
        self._refuse(released.refused)

    def _refuse(self, begun: list[Begun]) -> None:
        """End these launches: their intents could not be written; another node may have a disk that accepts one."""
        for job, _, spawning in begun:
            del self.jobs[job.id]
            self.spawners[job.id] = spawning
            self._release(job)
            job.intent_durable = True
            job.end(never_ran("disk-failed", "the journal on the node cannot be written (is the disk full?)"))
            self.allocations.tell(job)
            self.allocations.launch_successor(job.id)

    def _tell_nameless(self) -> None:
        if self.slots.nameless and not self._told_nameless:
            self._told_nameless = True
            self.agent.tell({"op": "nameless", "id": ""})

    # --- starts and ends, by spawners -------------------------------------------------------------------------------

    def _start_all(self, begun: list[Begun]) -> None:
        for job, order, spawning in begun:
            job.intent_durable = True
            if job.cause:  # it was to end before it was started
                self.spawners[job.id] = spawning
                self.allocations.is_over(job, never_ran(job.cause, job.text or "ended before it was started"))
                continue
            if spawning.dead:
                self._again(job, order)
                continue
            # Reading its exact start time costs half a millisecond; between these two only one can have the pid.
            job.spawned = procs.ticks(), 0
            self.tree.running[job.id] = job
            self.spawners[job.id] = spawning
            self.limits.admit(job, spawning.pid)
            try:
                if not self.launches.send(job.id, order, spawning):
                    self._again(job, order)
            except CannotStart as why:
                self.limits.admitted(job, spawning.pid)
                self.allocations.is_over(job, never_ran(why.cause, why.text))

    def _again(self, job: Job, order: dict[str, Any]) -> None:
        """Launch a job again with another spawner: the first one died before it had the order."""
        self.tree.over(job)
        self.limits.leave(job)
        del self.jobs[job.id]
        self.spawners.pop(job.id, None)
        self.launches.add(job.id, order)

    def _cannot_start(self, key: str, why: CannotStart) -> None:
        self.allocations.refuse(key, why.cause, why.text)

    def _spawner_message(self, spawning: Spawning, message: dict[str, Any], fds: list[int]) -> None:
        """Handle a spawner's report about its job."""
        job = self.jobs.get(message.get("id", ""))
        try:
            if job is None or self.spawners.get(job.id) is not spawning:
                self.slots.give_up(spawning, f"it says {message.get('op')!r} of a job that it does not have")
            elif ("pid" in message or message["op"] == "failed") and (job.pid or job.status is not None):
                self.slots.give_up(spawning, f"it says {message['op']!r} of a job that runs")
            elif message["op"] == "spawned":
                self._spawned(job, int(message["pid"]), fds)
            elif message["op"] == "failed":
                self.limits.admitted(job, spawning.pid)
                self.allocations.is_over(job, never_ran(str(message["cause"]), str(message["text"])))
            elif message["op"] == "ended":
                if "pid" in message:
                    self._ran(job, int(message["pid"]), bool(message["left"]))
                job.cpu, job.peak = float(message["cpu"]), max(job.peak, int(message["peak"]))
                job.left = bool(message["left"])
                if "status" in message and job.status is None:
                    self.tree.main_ended(job, int(message["status"]))
                if "spoiled" in message:
                    self.slots.retire(spawning, str(message["spoiled"]))
        except (KeyError, ValueError, TypeError) as error:
            self.slots.give_up(spawning, f"it cannot be understood: {error!r}")
        finally:
            for fd in fds:
                os.close(fd)

    def _ran(self, job: Job, pid: int, left: bool) -> None:
        """Handle a start that is reported with its end: it needs no watch, and the agent hears of its end alone."""
        if left or self.limits.confines(job) or self.outputs.may_exceed(procs.now() - job.began):
            self._spawned(job, pid, [])
            return
        job.spawned = job.spawned[0], procs.ticks()
        job.runs(pid)
        self.limits.admitted(job, job.place.pid if job.place is not None else 0)

    def _spawned(self, job: Job, pid: int, fds: list[int]) -> None:
        if fds:  # in a pid namespace of its own: what it is called there says nothing here
            job.pidfd = fds.pop()
            pid = procs.pid_of(job.pidfd)
        job.spawned = job.spawned[0], procs.ticks()
        job.runs(pid)
        self.limits.admitted(job, job.place.pid if job.place is not None else 0)
        self.journaled.journal.append(*job.begin())  # not synced: where the power is cut the process is gone as well
        self._watch(job)
        if not self.syncs.hold_start(job):  # an end is reported before the start of what follows it
            self.allocations.tell(job)
        self.endings.arm(job)
        if job.cause:  # it was to end before it was there
            self.tree.terminate(job)

    def _spawner_ended(self, pid: int) -> Job | None:
        """Return the job whose processes have lost their spawner by the end of this child; None: there is none. Raises
        ForkServerGone if it was the only fork server."""
        if pid == self.slots.forks.pid and self.slots.forks.only:
            raise ForkServerGone
        spawning = self.slots.ended(pid)
        if spawning is None or self.spawners.get(spawning.taken) is not spawning:
            return None
        text = f"{spawning.taken}: its spawner was killed; what it left is watched by the supervisor"
        job, noted = self.jobs[spawning.taken], spawning.noted.get(spawning.taken)
        job.unsent = not job.pid and never_began(spawning.noted, job.id)
        if noted is not None and noted.pid and not job.pid and job.status is None:  # it was killed before it could tell
            self._spawned(job, noted.pid, [])
        if noted is not None and noted.status is not None and job.status is None:
            self.tree.main_ended(job, noted.status)
        (log if job.cause else self.warnings.warn)(text)  # who is ended by us, may be with its spawner
        return job

    def _end_input(self, key: str) -> None:
        if (spawning := self.spawners.get(key)) is not None and not spawning.dead:
            self.slots.order(spawning, {"op": "end-input", "id": key})

    def _sweep(self, job: Job) -> bool:
        """Have its spawner kill all processes of a job with a user id or pid namespace of its own."""
        spawning = self.spawners.get(job.id)
        if spawning is None or spawning.dead or not (spawning.slot.own or spawning.slot.walls == NAMESPACE):
            return False
        return self.slots.order(spawning, {"op": "kill"})
