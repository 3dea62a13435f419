"""Which slot a launch gets, whose user id that has, and when it is given up: the decisions alone. The processes,
channels and files of slots are in spawners.py.

A slot is made when a job finds none of its kind idle, is used again by the same submitter's next jobs, and is given up
after a while without work. Stdlib only.
"""

from collections.abc import Callable, Container, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.walls.enclosure import NAMESPACE, USER

IDLE = 30.0
"""Seconds that a slot without a job stays."""
MAKING = 15.0
"""Seconds that the making of its spawner may take."""


class Account(NamedTuple):
    """A user of the machine whom a job is to run as (agent.run_as)."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Kind(NamedTuple):
    """What has to be equal of two launches for the second one to get the slot of the first: whose they are, and what
    is built around all jobs of a slot. `trusted`: the submitter is among the node's owners."""

    submitter: str
    account: Account | None
    processes: int
    nice: int
    trusted: bool
    gpus: bool


def kind_of(order: dict[str, Any]) -> Kind:
    """The kind of slot that a launch needs, as the agent orders it."""
    user, limits = order.get("user"), order.get("limits") or {}
    account = None if user is None else Account(user["uid"], user["gid"], tuple(user["groups"]))
    how = limits.get("pids", 0), limits.get("nice", 0), order.get("trusted", False), order.get("gpus", False)
    return Kind(order.get("submitter", ""), account, *how)


class Who(NamedTuple):
    """Who the processes of a slot are, as Slot has it (walls/enclosure.py)."""

    walls: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    own: bool = False
    login: str = ""
    private: bool = False


class UserIds:
    """Gives out the user ids of slots, from a range, one after another from behind `begin` on: what an earlier slot
    left somewhere is nobody's until the range is through."""

    def __init__(self, first: int, last: int, begin: int) -> None:
        self._first, self._last, self._newest = first, last, begin

    def pick(self, taken: Container[int]) -> int:
        """The next one that is not taken. Another agent of the machine that gives out the same one at the same moment
        is not seen. Raises OSError where none is left."""
        for _ in range(self._first, self._last + 1):
            self._newest = self._newest + 1 if self._newest < self._last else self._first
            if self._newest not in taken:
                return self._newest
        raise OSError("no user id of the node's range is free")


class Machine(NamedTuple):
    """What is asked of the machine where it matters: a user id that nobody has, what a submitter is called here, and
    the groups that open GPUs."""

    free_uid: Callable[[], int]
    login: Callable[[str], str]
    gpu_groups: Callable[[], tuple[int, ...]]


def who(kind: Kind, walls: str, us: tuple[int, int], machine: Machine) -> Who:
    """Who runs in a new slot of this kind on a node with these walls, where we are this user of this group. Raises
    OSError where no user id is left."""
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
        """An idle slot of this kind, for this allocation from now on: the one that was used last. None: make one."""
        if not (idle := self._idle.get(kind)):
            return None
        found = idle.pop()
        found.taken, found.since = allocation, now
        return found

    def add(self, slot: U, allocation: str) -> None:
        """One more, which is being made for this allocation."""
        self.all[slot.name] = slot
        slot.taken = allocation
        self.due = min(self.due, slot.since + MAKING)

    def release(self, slot: U, now: float) -> None:
        """Its job is over, or was none."""
        slot.taken, slot.since = "", now
        if not slot.dead:
            self._idle.setdefault(slot.kind, []).append(slot)
            self.due = min(self.due, now + IDLE)

    def drop(self, slot: U) -> None:
        """It is given up; again without effect."""
        self.all.pop(slot.name, None)
        if slot in (idle := self._idle.get(slot.kind, [])):
            idle.remove(slot)
        if not idle:
            self._idle.pop(slot.kind, None)
        slot.dead = True

    def overdue(self, now: float) -> Iterator[tuple[U, str]]:
        """Which are to be given up, and why, in words: they were never made (empty: they were idle for long)."""
        self.due = NEVER
        for slot in [*self.all.values()]:
            until = slot.since + (IDLE if slot.made else MAKING)
            if slot.made and slot.taken:
                continue
            if now < until:
                self.due = min(self.due, until)
            else:
                yield slot, "" if slot.made else f"it was not made within {MAKING:g} s"
