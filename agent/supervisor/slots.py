"""Decides which slot a launch gets, the slot's user id, and when the slot is given up. The processes, channels and
files of slots are in spawners.py.

A slot is made when none of its kind is idle, is reused for jobs of the same submitter, and is given up when it is idle
for a while. Stdlib only.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.walls.enclosure import NAMESPACE, USER

IDLE = 30.0
"""Seconds that an idle slot stays."""
MAKING = 15.0
"""Timeout for making its spawner (s)."""


class Account(NamedTuple):
    """The machine's user that a job is to run as (agent.run_as)."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Kind(NamedTuple):
    """The data of a launch that decides which slots it can use: its user and walls. `trusted`: the submitter is an
    owner of the node; `idle`: its jobs run on slack."""

    submitter: str
    account: Account | None
    processes: int
    nice: int
    trusted: bool
    gpus: bool
    idle: bool = False


def kind_of(order: dict[str, Any]) -> Kind:
    """The kind of slot that a launch order needs."""
    user, limits = order.get("user"), order.get("limits") or {}
    account = None if user is None else Account(user["uid"], user["gid"], tuple(user["groups"]))
    how = limits.get("pids", 0), limits.get("nice", 0), order.get("trusted", False), order.get("gpus", False)
    return Kind(order.get("submitter", ""), account, *how, order.get("idle", False))


_OWNERS = "o"


def name_of(kind: Kind, number: str) -> str:
    """The name of a new slot with this hexadecimal number. It says whether the submitter is an owner of the node, also
    when only the slot's directory is left."""
    return _OWNERS + number if kind.trusted else number


def is_private(name: str, walls: str) -> bool:
    """Whether what belongs to the agent's user is hidden in the slot of this name (`private` in Slot)."""
    return walls == NAMESPACE and not name.startswith(_OWNERS)


class Who(NamedTuple):
    """The user of a slot's processes, as in Slot (walls/enclosure.py)."""

    walls: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    own: bool = False
    login: str = ""
    private: bool = False


class UserIds:
    """Allocates user ids of slots from a range in turn, starting after `begin`: leftovers of an earlier slot get no new
    owner until the range is used up."""

    def __init__(self, first: int, last: int, begin: int) -> None:
        self._first, self._last, self._newest = first, last, begin

    def pick(self, taken: Container[int]) -> int:
        """The next user id that is not taken. It does not detect that another agent of the machine picks the same one
        at the same moment. Raises OSError if none is left."""
        for _ in range(self._first, self._last + 1):
            self._newest = self._newest + 1 if self._newest < self._last else self._first
            if self._newest not in taken:
                return self._newest
        raise OSError("no user id of the node's range is free")


class Machine(NamedTuple):
    """Functions that depend on the machine: an unused user id, the local name of a submitter, and the groups that open
    GPUs."""

    free_uid: Callable[[], int]
    login: Callable[[str], str]
    gpu_groups: Callable[[], tuple[int, ...]]


def who(kind: Kind, walls: str, us: tuple[int, int], machine: Machine) -> Who:
    """Return the user that a new slot of this kind runs as, on a node with these walls. `us`: user and group of this
    process. Raises OSError if no user id is left."""
    if kind.account is not None:
        return Who(USER, *kind.account)
    if walls == USER:
        uid = machine.free_uid()
        groups = machine.gpu_groups() if kind.gpus else ()
        return Who(USER, uid, uid, groups, own=True, login=machine.login(kind.submitter))
    if walls == NAMESPACE and not kind.trusted:
        return Who(walls, *us, login=machine.login(kind.submitter), private=True)
    return Who(walls, *us)


class Use:
    """The use of one slot. `taken` is the allocation that it serves or is to serve, empty while it is idle, `since`
    when that began (seconds since boot). `made`: its spawner can be given orders; `dead`: it is given up."""

    def __init__(self, kind: Kind, name: str, now: float) -> None:
        self.kind = kind
        self.name = name
        self.taken = ""
        self.since = now
        self.made = self.dead = False


U = TypeVar("U", bound=Use)


class SlotTable(Generic[U]):
    """The slots of a node that are not given up, by name, and when (`due`, or earlier) one of them is to be."""

    def __init__(self) -> None:
        self.all: dict[str, U] = {}
        self.due = NEVER
        self._idle: dict[Kind, list[U]] = {}

    def take(self, kind: Kind, allocation: str, now: float) -> U | None:
        """The most recently used idle slot of this kind, now of this allocation. None: make one."""
        if not (idle := self._idle.get(kind)):
            return None
        found = idle.pop()
        found.taken, found.since = allocation, now
        return found

    def add(self, slot: U, allocation: str) -> None:
        """Add a slot that is being made for this allocation."""
        self.all[slot.name] = slot
        slot.taken = allocation
        self.due = min(self.due, slot.since + MAKING)

    def release(self, slot: U, now: float) -> None:
        """Return a slot, whose job has ended or was never started, to the idle ones."""
        slot.taken, slot.since = "", now
        if not slot.dead:
            self._idle.setdefault(slot.kind, []).append(slot)
            self.due = min(self.due, now + IDLE)

    def drop(self, slot: U) -> None:
        """Remove it; repeated calls have no effect."""
        self.all.pop(slot.name, None)
        if slot in (idle := self._idle.get(slot.kind, [])):
            idle.remove(slot)
        if not idle:
            self._idle.pop(slot.kind, None)
        slot.dead = True

    def overdue(self, now: float) -> Iterator[tuple[U, str]]:
        """Slots to give up, with the reason: never made, or (empty) idle for too long."""
        self.due = NEVER
        for slot in [*self.all.values()]:
            until = slot.since + (IDLE if slot.made else MAKING)
            if slot.made and slot.taken:
                continue
            if now < until:
                self.due = min(self.due, until)
            else:
                yield slot, "" if slot.made else f"it was not made within {MAKING:g} s"
