"""Launches on their way to a spawner: which wait for one, which can be started, and the order that starts a job.
Stdlib only."""

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

from distributed_grid.agent.supervisor.slots import Slots, Spawning
from distributed_grid.agent.walls import accounts
from distributed_grid.agent.walls.spawner import CannotStart
from distributed_grid.runtime.faults import fault

Order = dict[str, Any]
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Starting:
    """Launches that were not started yet, oldest first. `failed` gets those for which no spawner can be had."""

    def __init__(self, slots: Slots, allocs: str, failed: Callable[[str, CannotStart], None]) -> None:
        self._slots = slots
        self._allocs = allocs
        self._failed = failed
        self._orders: dict[str, Order] = {}
        self._spawners: dict[str, Spawning] = {}
        self._reserved: dict[str, Spawning] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._orders

    def __len__(self) -> int:
        return len(self._orders)

    def add(self, key: str, order: Order) -> None:
        """Take a launch, and find it a spawner, if none is reserved for it."""
        self._orders[key] = order
        reserved = self._reserved.pop(key, None)
        if reserved is not None and not reserved.dead:
            self._spawners[key] = reserved
        else:
            self._find(key, order)

    def reserve(self, key: str, order: Order) -> Spawning | None:
        """A spawner for a launch that comes later; the same one when asked again. None where none can be had."""
        found = self._reserved.get(key)
        if found is None or found.dead:
            try:
                found = self._reserved[key] = self._slots.take(key, order)
            except OSError:
                return None
        return found

    def unreserve(self) -> None:
        """The agent that announced launches is gone: what it will not launch is not waited for."""
        for found in self._reserved.values():
            self._slots.release(found)
        self._reserved.clear()

    def is_reserved(self, spawning: Spawning) -> bool:
        """Whether this one waits for a launch that was announced."""
        return self._reserved.get(spawning.taken) is spawning

    def drop(self, key: str) -> None:
        """It is not to be started. Without effect on what is not here."""
        self._orders.pop(key, None)
        for found in (self._spawners.pop(key, None), self._reserved.pop(key, None)):
            if found is not None:
                self._slots.release(found)

    def came(self, spawning: Spawning, why: str) -> None:
        """A spawner is ready, or never will be for this reason."""
        key = spawning.taken
        if why and self._spawners.get(key) is spawning:
            del self._orders[key], self._spawners[key]
            self._failed(key, CannotStart("spawn-failed", f"its walls cannot be built on this node: {why}"))

    def ready(self) -> Iterator[tuple[str, Order, Spawning]]:
        """What can be started now, out of the queue. What lost its spawner gets another one, and comes later."""
        for key, order in [*self._orders.items()]:
            spawning = self._spawners[key]
            if spawning.dead:
                self._find(key, order)
            elif spawning.ready:
                del self._orders[key], self._spawners[key]
                yield key, order, spawning

    def any_ready(self) -> bool:
        """Whether `ready` has anything to do."""
        return any(one.ready or one.dead for one in self._spawners.values())

    def send(self, key: str, order: Order, spawning: Spawning) -> bool:
        """Have the spawner start it. False if that spawner is gone, and has not heard of it. Raises CannotStart."""
        fds: list[int] = []
        paths = [os.path.join(self._allocs, key, name) for name in ("stdout", "stderr")]
        try:
            for path in paths:
                fds.append(os.open(path, _CREATE, 0o600))
                if spawning.slot.uid != os.geteuid():
                    os.fchmod(fds[-1], 0o666)  # nobody else gets to it by its path; the job does by /dev/stdout
            if _order(self._slots, spawning, self._message(key, order, spawning, paths), fds):
                return True
            for path in paths:  # made by us a moment ago, and empty
                os.unlink(path)
            return False
        except OSError as error:
            if error.errno == errno.EEXIST:
                # Output is there of an allocation that the journal does not know: its record was lost, not its past.
                raise CannotStart("supervisor-lost", "it was started before, and the record of that is lost") from None
            raise CannotStart("spawn-failed", f"no process could be made: {error.strerror}") from None
        finally:
            for fd in fds:
                os.close(fd)

    def _find(self, key: str, order: Order) -> None:
        try:
            self._spawners[key] = self._slots.take(key, order)
        except OSError as error:
            self._spawners.pop(key, None)
            del self._orders[key]
            self._failed(key, CannotStart("spawn-failed", f"no process could be made: {error.strerror or error}"))

    def _message(self, key: str, order: Order, spawning: Spawning, outputs: list[str]) -> Order:
        folder, env, cwd = spawning.slot.folder, order["env"], order["cwd"]
        own = os.path.join(folder, key)
        if not cwd:
            env = {"GRID_WORKDIR": own, "PWD": own} | env
        if spawning.slot.own or spawning.slot.private:
            env = {"HOME": folder} | env
        if login := spawning.slot.login:
            env = {"USER": login, "LOGNAME": login, "SHELL": accounts.SHELL} | env
        start = {"op": "spawn", "id": key, "argv": order["argv"], "env": env, "cores": order["cores"]}
        return start | {"cwd": cwd or own, "make": not cwd, "folder": folder, "outputs": outputs}


@fault("supervisor.spawn")
def _order(slots: Slots, spawning: Spawning, message: Order, fds: list[int]) -> bool:
    return slots.order(spawning, message, (fds[0], fds[1]))
