"""The spawners of a node, each behind the walls of its slot, for one submitter and one job at a time; and the launches
that wait for one. Stdlib only.
"""

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Container, Iterable, Iterator
from random import SystemRandom
from typing import Any, NamedTuple

from distributed_grid.agent.cgroups.groups import SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, SLOT_LOST, Job, Place
from distributed_grid.agent.supervisor.slots import Kind, Machine, SlotTable, Use, UserIds, kind_of, name_of, who
from distributed_grid.agent.walls import accounts, pipes, wire
from distributed_grid.agent.walls.enclosure import USER, Slot
from distributed_grid.agent.walls.forkserver import ForkServer
from distributed_grid.agent.walls.spawner import CannotStart, cause_of
from distributed_grid.runtime.faults import fault

_UNREAD = 16  # maximum number of messages of a spawner about one job
_STOPPED_EVERY = 1.0  # interval of checks whether a spawner was stopped by SIGSTOP (s)
_CLOSING = 0.5  # timeout for removing the groups of spawners (s); the next supervisor removes the rest
_SWEEP = 0.2  # interval of attempts to remove the group of an ended spawner (s)


BEGINS = ""
"""In place of an allocation in a note: its spawner notes each job before it makes a process of it."""
_LOST = ".lost"  # a file beside the notes: a live spawner of this boot may have no note


def lost_notes(state_dir: str) -> None:
    """Record that notes of an earlier supervisor's spawners may be lost: until the next boot they prove nothing."""
    with open(os.path.join(state_dir, "spawners", _LOST), "w") as file:
        file.write(procs.boot_id())


class Noted(NamedTuple):
    """A job's main process, as its spawner noted it: its wait status (None: it had not ended), its pid (0: it was about
    to be made), and the times just before and after the fork (clock ticks since boot); and the CPU seconds and peak
    memory (bytes) of what of the job was reaped, complete once its spawner has exited."""

    status: int | None
    pid: int
    before: int
    after: int
    cpu: float = 0.0
    peak: int = 0


class Spawning(Use):
    """A spawner, as its supervisor sees it. `place` is None until it is ready, `pid` 0 until it is forked. `noted`:
    once it has ended, the main processes in its note, by allocation. `killed`: it was gone before it was ready, and did
    not say why; `second`: it was made in place of such a one. `cause`: of the launch that waits for it, if it fails."""

    def __init__(self, kind: Kind, slot: Slot, channel: socket.socket) -> None:
        super().__init__(kind, slot.name, procs.now())
        self.slot = slot
        self.channel = channel
        self.place: Place | None = None
        self.pid = 0
        self.noted: dict[str, Noted] = {}
        self.killed = self.second = False
        self.cause = "spawn-failed"

    @property
    def ready(self) -> bool:
        """Whether it takes orders."""
        return self.place is not None and not self.dead


class Spawners:
    """All spawners of one supervisor. `report` gets their messages about jobs, with descriptors that it must close;
    `came` is called when a spawner is ready (with an empty text) or has failed (with the reason)."""

    def __init__(
        self,
        state_dir: str,
        walls: str,
        forks: ForkServer,
        selector: selectors.BaseSelector,
        report: Callable[[Spawning, wire.Message, list[int]], None],
        came: Callable[[Spawning, str], None],
        log: Callable[[str], None],
        groups: SlotGroups,
        oom: str = "",
    ) -> None:
        self.walls = walls
        self.groups = groups
        self._poll_at = 0.0  # an earlier supervisor may have left groups
        self.forks = forks
        self._state = state_dir
        self._folder = os.path.join(state_dir, "jobs")
        self._notes = os.path.join(state_dir, "spawners")
        self._selector = selector
        self._report, self._came, self._log = report, came, log
        self._oom = oom
        self._table = SlotTable[Spawning]()
        ids = accounts.FIRST_UID, accounts.LAST_UID
        self._uids = UserIds(*ids, begin=SystemRandom().randint(*ids))
        self._living: set[int] = set()
        """The user ids that slots used when the last one was allocated."""
        self._by_pid: dict[int, Spawning] = {}
        self._left: dict[str, Noted] = {}
        self._copies = accounts.Copies.open() if walls == USER else None
        self.nameless = False
        """Whether our copies of the user database are unmounted: users of new slots have no name then."""

    @property
    def due(self) -> float:
        """When `poll` has something to do, or earlier (seconds since boot)."""
        return min(self._poll_at, self._table.due)

    def take(self, allocation: str, order: dict[str, Any]) -> Spawning:
        """A spawner for this order: an idle one, or a new one, which is not ready yet. Raises OSError if none can be
        made."""
        kind = kind_of(order)
        found = self._table.take(kind, allocation, procs.now()) or self._make(kind, allocation)
        self._poll_at = min(self._poll_at, found.since + _STOPPED_EVERY)
        return found

    def replace(self, spawning: Spawning) -> Spawning:
        """A new spawner in place of one that was killed before it was ready. Raises OSError if none can be made."""
        made = self._make(spawning.kind, spawning.taken)
        made.second = True
        return made

    def release(self, spawning: Spawning) -> None:
        """Make a spawner idle, whose job has ended or was never started."""
        self._table.release(spawning, procs.now())

    def order(self, spawning: Spawning, message: wire.Message, fds: tuple[int, ...] = ()) -> bool:
        """Send an order. If that fails, give the spawner up and return False."""
        try:
            wire.send(spawning.channel, message, fds)
            return True
        except wire.Closed as why:
            self.give_up(spawning, str(why))
            return False

    def give_up(self, spawning: Spawning, why: str) -> None:
        """Kill this spawner. Its processes become our children, or end with their pid namespace."""
        if spawning.dead:
            return
        if why:
            of = f" of {spawning.taken}" if spawning.taken else ""
            self._log(f"slot {spawning.slot.name}{of}: its spawner is given up ({why})")
        self._forget(spawning)
        if (place := spawning.place) is None:
            return
        if os.geteuid() in (0, place.uid):
            procs.send(place.pid, place.start, signal.SIGKILL)
        else:
            self.forks.act(place.uid, place.gid, [["signal", place.pid, place.start, int(signal.SIGKILL)]])

    def retire(self, spawning: Spawning, why: str) -> None:
        """Give it no more jobs; it exits by itself."""
        self._log(f"slot {spawning.slot.name} of {spawning.taken}: its spawner is replaced ({why})")
        self._forget(spawning)

    def hear(self, spawning: Spawning | None) -> None:
        """Read what this spawner, if there is one, has said until now, and the end of its channel."""
        for _ in range(_UNREAD):
            if spawning is not None and not spawning.dead:
                self._read(spawning)

    def ended(self, pid: int) -> Spawning | None:
        """Handle the end of a child process. Returns the spawner if it was one."""
        found = self._by_pid.get(pid)
        if found is not None:
            self.hear(found)
            self._by_pid.pop(pid, None)
            self._forget(found)
            self._leave_group(found.slot.name)
            note = os.path.join(self._notes, found.slot.name)
            found.noted = _noted(note)
            with contextlib.suppress(OSError):
                os.unlink(note)
        return found

    def left_over(self, needed: Container[str] = ()) -> list[Place]:
        """The live spawners of earlier supervisors, found by their notes: also where the journal is lost. Notes of dead
        ones are removed, but for those of slots that are `needed`: how a job ended is known from there alone until that
        is in the journal."""
        found = []
        for name in {*os.listdir(self._notes)} - {one.slot.name for one in self._by_pid.values()}:
            path = os.path.join(self._notes, name)
            try:
                with open(path) as file:
                    first, *rest = file.read().splitlines()
                boot, *fields = json.loads(first)
                place = Place(*fields)
                self._left |= _jobs(rest)
            except (OSError, ValueError, TypeError):
                continue  # incomplete: its writer was killed before the spawner had an order
            seen = procs.stat(place.pid)
            if boot == procs.boot_id() and seen is not None and seen.start == place.start:
                found.append(place)
            else:
                self._left |= _noted(path)  # once more: it may have noted an exit meanwhile
                if name not in needed:
                    os.unlink(path)
        return found

    def names(self) -> set[str]:
        """The names of our slots."""
        return {one.slot.name for one in (*self._table.all.values(), *self._by_pid.values())}

    def helpers(self) -> tuple[set[int], bool]:
        """The pids of our children that belong to no job (spawners, the fork server), and whether there is a new
        spawner whose pid is unknown yet."""
        every = self._table.all.values()
        return {one.pid for one in every} | self._by_pid.keys() | {self.forks.pid}, any(not one.pid for one in every)

    def poll(self, now: float) -> None:
        """Give up spawners that are idle for too long, are stopped, or did not become ready in time."""
        if now < self.due:
            return
        self._poll_at = NEVER if self.groups.sweep() else now + _SWEEP
        for spawning in [*self._by_pid.values()]:
            if spawning.taken and not spawning.dead:
                self._poll_at = min(self._poll_at, now + _STOPPED_EVERY)
                if (seen := procs.stat(spawning.pid)) is not None and seen.state in "Tt":
                    self.give_up(spawning, "it was stopped by a process of its own user")
        for spawning, why in self._table.overdue(now):
            if why:
                self._lost(spawning, why)
            else:
                self._forget(spawning)  # it exits when its channel is closed

    def close(self) -> None:
        """End all spawners and remove their groups."""
        for spawning in [*self._table.all.values()]:
            self._forget(spawning)
        self.forks.close()
        for name in self.names():
            self.groups.left(name)
        deadline = procs.now() + _CLOSING
        while not self.groups.sweep() and procs.now() < deadline:
            time.sleep(0.005)

    # --- one spawner --------------------------------------------------------------------------------------------------

    def _make(self, kind: Kind, allocation: str) -> Spawning:
        name = name_of(kind, os.urandom(8).hex())
        folder = os.path.join(self._folder, name)
        machine = Machine(self._free_uid, accounts.login_name, accounts.gpu_groups)
        whose = who(kind, self.walls, (os.geteuid(), os.getegid()), machine)
        if whose.own:
            self._enter(whose.login, whose.uid, folder)
        slot = Slot(
            name=name,
            folder=folder,
            state=self._state,
            processes=kind.processes,
            nice=kind.nice,
            idle=kind.idle,
            oom=self._oom,
            cgroup_procs=self.groups.make(name, kind.processes),
            **whose._asdict(),
        )
        note = self._open_note(name)
        try:
            channel = self.forks.make(slot, note)
        except wire.Closed as why:
            raise OSError(f"there is no fork server: {why}") from None
        finally:
            os.close(note)
        made = Spawning(kind, slot, channel)
        self._table.add(made, allocation)
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._read(made))
        return made

    def _free_uid(self) -> int:
        self._living = accounts.uids_of_slots() | {one.slot.uid for one in self._table.all.values()}
        folders = (os.path.join(self._folder, one) for one in os.listdir(self._folder))
        return self._uids.pick(self._living | {*map(accounts.owner, folders)})

    def _enter(self, login: str, uid: int, folder: str) -> None:
        """Add the user of a slot to our copies of the user database, if we have any."""
        if self._copies is None:
            return
        if not self._copies.in_place():
            if not self.nameless:
                self._log("the machine's accounts were changed, which took our copies away: new jobs have no name")
            self.nameless = True
            return
        try:
            self._copies.enter(login, uid, uid, folder, self._living)
        except (OSError, ValueError) as error:
            self._log(f"the jobs of {login} have no name: {error}")

    def _read(self, spawning: Spawning) -> None:
        try:
            message, fds = wire.receive(spawning.channel)
        except BlockingIOError:
            return
        except wire.Closed:
            if spawning.place is None:
                spawning.killed = True
                self._lost(spawning, "it ended before it was ready")
            else:
                self.give_up(spawning, "")  # its processes are found when it is reaped
            return
        if spawning.place is not None:
            self._report(spawning, message, fds)
            return
        for fd in fds:
            os.close(fd)
        op = message.get("op")
        if op == "made":
            spawning.pid = int(message["pid"])
        elif op == "ready" and (seen := procs.stat(spawning.pid)) is not None:
            slot = spawning.slot
            whose = slot.name, slot.walls, slot.uid, slot.gid, slot.own
            spawning.place = Place(*whose, spawning.pid, seen.start, seen.session)
            spawning.made = True
            self._by_pid[spawning.pid] = spawning
            self.groups.entered(slot.name, spawning.pid)
            self._note(spawning.place)
            self._came(spawning, "")
        elif op == "failed":
            spawning.cause = str(message["cause"])
            self._lost(spawning, str(message["text"]))
        else:  # it is ready and gone already, or who was to tell its pid was killed
            spawning.killed = True
            self._lost(spawning, "it ended before it was ready")

    def knows_all(self) -> bool:
        """Whether every spawner that may be alive has a note."""
        try:
            with open(os.path.join(self._notes, _LOST)) as file:
                return file.read() != procs.boot_id()
        except FileNotFoundError:
            return True

    def know_all(self) -> None:
        """Record that no spawner without a note is alive any more."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._notes, _LOST))

    def noted(self, place: Place, key: str) -> Noted | None:
        """A job's main process, from the note of its spawner; None: it has none."""
        self._left |= _noted(os.path.join(self._notes, place.name))
        found = self._left.get(key)
        return found if found is not None and found.pid else None

    def never_began(self, place: Place, key: str) -> bool:
        """Whether it is sure that a spawner which runs no more has made no process of this job."""
        return never_began(_noted(os.path.join(self._notes, place.name)), key)

    def _open_note(self, name: str) -> int:
        """Open the note of a new spawner, by which the next supervisor finds it. If the disk fails, it has none."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(os.path.join(self._notes, name), flags, 0o600)
        except OSError:
            return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def _note(self, place: Place) -> None:
        with contextlib.suppress(OSError), open(os.path.join(self._notes, place.name), "a") as file:
            file.write(json.dumps([procs.boot_id(), *place]) + "\n" + json.dumps([BEGINS, None, 0, 0, 0]) + "\n")

    def _leave_group(self, name: str) -> None:
        self.groups.left(name)
        self._poll_at = min(self._poll_at, procs.now())

    def _lost(self, spawning: Spawning, why: str) -> None:
        self._log(f"slot {spawning.slot.name}: no spawner could be made ({why})")
        self._leave_group(spawning.slot.name)
        self._forget(spawning)
        self._came(spawning, why)

    def _forget(self, spawning: Spawning) -> None:
        if not spawning.dead:
            self._selector.unregister(spawning.channel)
            spawning.channel.close()
        self._table.drop(spawning)


Order = dict[str, Any]
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def _noted(path: str) -> dict[str, Noted]:
    """The main processes in a spawner's note, by allocation; none if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, TypeError), open(path) as file:
        return _jobs(file.read().splitlines()[1:])
    return {}


def _jobs(lines: Iterable[str]) -> dict[str, Noted]:
    most = len(Noted._fields)  # a later release may note more
    return {key: Noted(*rest[:most]) for key, *rest in map(json.loads, lines)}


def never_began(noted: Container[str], key: str) -> bool:
    """Whether the note of a spawner that runs no more proves that it made no process of this job."""
    return BEGINS in noted and key not in noted


class Launches:
    """Launches that were not started yet, the oldest first. `failed` is called for those that get no spawner; `inputs`
    has the pipes of those that read standard input."""

    def __init__(
        self, slots: Spawners, allocs: str, failed: Callable[[str, CannotStart], None], inputs: pipes.Pipes
    ) -> None:
        self._slots = slots
        self._allocs = allocs
        self._failed = failed
        self._inputs = inputs
        self._orders: dict[str, Order] = {}
        self._spawners: dict[str, Spawning] = {}
        self._reserved: dict[str, Spawning] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._orders

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._orders])

    def add(self, key: str, order: Order) -> None:
        """Add a launch, with the spawner that is reserved for it, or any other where nothing was made in its slot."""
        self._orders[key] = order
        reserved = self._reserved.pop(key, None)
        if reserved is not None and not reserved.dead:
            if order.get("slot", "") in ("", reserved.slot.name):
                self._spawners[key] = reserved
                return
            self._slots.release(reserved)
        self._find(key, order)

    def reserve(self, key: str, order: Order) -> Spawning | None:
        """Reserve a spawner for a later launch; repeated calls return the same one. None: none can be made."""
        found = self._reserved.get(key)
        if found is None or found.dead:
            try:
                found = self._reserved[key] = self._slots.take(key, order)
            except OSError:
                return None
        return found

    def unreserve(self, key: str = "") -> None:
        """Release the spawner that is reserved for this launch. Without a launch release all: the agent that announced
        them is gone."""
        for one in [key] if key else [*self._reserved]:
            if (found := self._reserved.pop(one, None)) is not None:
                self._slots.release(found)

    def is_reserved(self, spawning: Spawning) -> bool:
        """Whether this spawner is reserved for an announced launch."""
        return self._reserved.get(spawning.taken) is spawning

    def drop(self, key: str) -> None:
        """Remove a launch, so that it is not started. No effect if it is unknown."""
        self._orders.pop(key, None)
        for found in (self._spawners.pop(key, None), self._reserved.pop(key, None)):
            if found is not None:
                self._slots.release(found)

    def came(self, spawning: Spawning, why: str) -> None:
        """A spawner is ready, or has failed with this reason. One that was killed is replaced once."""
        key = spawning.taken
        if why and spawning.killed and not spawning.second:
            for use in (self._spawners, self._reserved):
                if use.get(key) is spawning:
                    with contextlib.suppress(OSError):
                        use[key] = self._slots.replace(spawning)
        if why and self._spawners.get(key) is spawning:
            del self._orders[key], self._spawners[key]
            self._failed(key, CannotStart(spawning.cause, f"its walls cannot be built on this node: {why}"))

    def ready(self, may: Callable[[str], bool]) -> Iterator[tuple[str, Order, Spawning]]:
        """Remove and return those launches that can and `may` begin now. One whose spawner has died gets another, and
        begins later."""
        for key, order in [*self._orders.items()]:
            spawning = self._spawners[key]
            if not may(key):
                continue
            if spawning.dead:
                self._find(key, order)
            elif spawning.ready:
                del self._orders[key], self._spawners[key]
                yield key, order, spawning

    def any_ready(self, may: Callable[[str], bool]) -> bool:
        """Whether `ready` has something to do."""
        return any((one.ready or one.dead) and may(key) for key, one in self._spawners.items())

    def send(self, key: str, order: Order, spawning: Spawning) -> bool:
        """Order the spawner to start this launch. False: the spawner is gone and did not get it. Raises CannotStart."""
        fds: list[int] = []
        folder = f"{self._allocs}/{key}"
        paths = [f"{folder}/stdout", f"{folder}/stderr"]
        try:
            for path in paths:
                fds.append(os.open(path, _CREATE, 0o600))
                if spawning.slot.uid != os.geteuid():
                    os.fchmod(fds[-1], 0o666)  # for /dev/stdout of the job; nobody else can reach the path
            if order.get("stdin"):
                paths.append(f"{folder}/{pipes.PIPE}")
                fds += pipes.make(paths[-1], shared=spawning.slot.uid != os.geteuid())
            if _order(self._slots, spawning, self._message(key, order, spawning, paths), fds):
                if order.get("stdin"):
                    self._inputs.hold(key, fds.pop())
                return True
            for path in paths:  # just created, and empty
                os.unlink(path)
            return False
        except OSError as error:
            if error.errno == errno.EEXIST:
                # There is output, and the journal does not name the allocation: its record was lost after its start.
                raise CannotStart("supervisor-lost", "it was started before, and the record of that is lost") from None
            why = f"no process could be made: {error.strerror}"
            raise CannotStart(cause_of(error, "spawn-failed"), why) from None
        finally:
            for fd in fds:
                os.close(fd)

    def unsent(self, job: Job, still: bool) -> bool:
        """Whether it is sure that no spawner was ever ordered to start this job, by an earlier supervisor of this boot
        either, as `send` makes the output before; or that its own, which stands `still` or is gone, had not begun."""
        if still and job.place is not None and self._slots.never_began(job.place, job.id):
            return True
        folder = f"{self._allocs}/{job.id}"
        return os.path.isdir(folder) and not os.path.lexists(f"{folder}/stdout")

    def _find(self, key: str, order: Order) -> None:
        """Find a spawner for a launch that has none, or whose spawner is dead."""
        if order.get("slot"):
            self._spawners.pop(key, None)
            del self._orders[key]
            self._failed(key, CannotStart("withdrawn", SLOT_LOST))
            return
        try:
            self._spawners[key] = self._slots.take(key, order)
        except OSError as error:
            self._spawners.pop(key, None)
            del self._orders[key]
            self._failed(key, CannotStart("spawn-failed", f"no process could be made: {error.strerror or error}"))

    def prepare(self, key: str, order: Order, spawning: Spawning) -> None:
        """Have the spawner enter the job's directory and find its program while the intent is synced to disk."""
        message = self._message(key, order, spawning, [])
        path = {name: text for name, text in message["env"].items() if name == "PATH"}
        self._slots.order(spawning, message | {"op": "prepare", "argv": order["argv"][:1], "env": path})

    def _message(self, key: str, order: Order, spawning: Spawning, outputs: list[str]) -> Order:
        folder, env, cwd = spawning.slot.folder, order["env"], order["cwd"]
        own = f"{folder}/{key}"
        if not cwd:
            env = {"GRID_WORKDIR": own, "PWD": own} | env
        if spawning.slot.own or spawning.slot.private:
            env = {"HOME": folder} | env
        if login := spawning.slot.login:
            env = {"USER": login, "LOGNAME": login, "SHELL": accounts.SHELL} | env
        start = {"op": "spawn", "id": key, "argv": order["argv"], "env": env, "cores": order["cores"]}
        short = bool((order.get("kept") or {}).get("chain"))  # only short jobs have successors
        return start | {"cwd": cwd or own, "make": not cwd, "folder": folder, "outputs": outputs, "short": short}


@fault("supervisor.spawn")
def _order(slots: Spawners, spawning: Spawning, message: Order, fds: list[int]) -> bool:
    return slots.order(spawning, message, tuple(fds))
