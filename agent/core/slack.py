"""The policy for jobs on slack, that is on cores that another allocation (the holder) holds and does not use. When the
holder wants more than is left to it, those jobs are frozen; when it still wants it later, or has ended, they are
recalled. Input is measurements of the holders; output is orders. All times are seconds since boot."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from distributed_grid.agent.core.owner import Freeze, Order, Recall, Thaw

EVERY = 0.25
"""Seconds between two measurements of a holder."""
WINDOW = 0.5
"""Window over which a holder's demand is averaged (s): the kernel counts CPU time in ticks of 10 ms."""
NOISE = 0.1
"""Tolerance (cores): jobs are frozen when a holder wants this much more than what is left to it."""
REST = 0.25
"""Cores of what is left to a holder that it has to leave unused before a frozen job resumes."""
QUIET = 5.0
"""For how long it has to leave them unused (s)."""
LONG = 30.0
"""How long a job is frozen before it is recalled (s)."""
AGAIN = 5.0
"""Interval at which an order to freeze is repeated (s), since it expires."""


class SlackUser(msgspec.Struct, frozen=True):
    """A job on cores of a `holder`. `left`: how many cores are left to the holder beside all such jobs (None: it holds
    nothing any more); `pid` is the holder's first process (0: unknown)."""

    allocation: str
    holder: str
    left: float | None
    pid: int


@dataclass(slots=True)
class _Holder:
    """The measurements of a holder (begin, end, CPU seconds wanted so far), and when it last wanted more than is left
    to it (`wanted`), or nearly all of that (`busy`)."""

    spent: deque[tuple[float, float, float]] = field(default_factory=deque)
    wanted: float = float("-inf")
    busy: float = float("-inf")
    why: str = ""

    def measured(self, began: float, now: float, cpu: float) -> float:
        """Take in a measurement; returns how many cores it wanted at least, over the window (0: not known yet)."""
        if self.spent and cpu < self.spent[-1][2]:
            self.spent.clear()  # the time of a child that was not waited for is lost
        self.spent.append((began, now, cpu))
        while len(self.spent) > 2 and self.spent[1][1] <= now - WINDOW:
            self.spent.popleft()
        first, _, before = self.spent[0]
        return (cpu - before) / (now - first) if len(self.spent) > 1 and now > first else 0.0


class SlackWatch:
    """Decides for the jobs on slack of a node."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._frozen: dict[str, tuple[float, float]] = {}
        """Since when a job is frozen, and when that was ordered last."""

    def observe(
        self, now: float, users: Sequence[SlackUser], spent: Mapping[str, float | None], took: float = 0.0
    ) -> list[Order]:
        """Take in all jobs on slack that run, and the CPU seconds that each holder has wanted so far (None: it has too
        many threads to be measured, and counts as wanting all its cores); returns the orders. `took`: how long
        measuring took (s), which no holder is blamed for on a busy machine."""
        names = {one.allocation for one in users}
        self._frozen = {key: times for key, times in self._frozen.items() if key in names}
        holders = {one.holder: one.left for one in users}
        self._holders = {key: one for key, one in self._holders.items() if key in holders}
        for name, left in holders.items():
            if left is not None and name in spent:
                self._see(name, left, now, spent[name], took)
        return [order for one in users if (order := self._decide(one, now)) is not None]

    def wants(self, allocation: str) -> bool:
        """Whether this job is to be frozen for its holder."""
        return allocation in self._frozen

    def adopt(self, allocation: str, since: float) -> None:
        """Note that an earlier agent froze this job at that time."""
        self._frozen[allocation] = since, since

    def _see(self, name: str, left: float, now: float, cpu: float | None, took: float) -> None:
        holder, job = self._holders.setdefault(name, _Holder(busy=now)), name.rpartition(".")[0]
        if cpu is None:
            holder.wanted = holder.busy = now
            holder.why = f"{job} has too many threads for its demand to be measured"
            return
        used = holder.measured(now - took, now, cpu)
        if used > left + NOISE:
            holder.wanted = now
            holder.why = f"{job} wants {used:.1f} cores, and {left:g} are left to it"
        if used > left - REST:
            holder.busy = now

    def _decide(self, user: SlackUser, now: float) -> Order | None:
        key, holder = user.allocation, self._holders.get(user.holder)
        if user.left is None:
            return Recall(key, f"{user.holder.rpartition('.')[0]}, whose cores it ran on, has ended")
        if holder is None:
            return None
        times = self._frozen.get(key)
        if times is None:
            if holder.wanted < now:
                return None
            self._frozen[key] = now, now
            return Freeze(key, holder.why)
        since, ordered = times
        if now - since >= LONG:
            return Recall(key, f"{holder.why}, for {now - since:.0f} s")
        if now - holder.busy >= QUIET:
            del self._frozen[key]
            return Thaw(key)
        if now - ordered < AGAIN:
            return None
        self._frozen[key] = since, now
        return Freeze(key, holder.why)
