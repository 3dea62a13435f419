"""The node's owner: when he is back, and what becomes of the jobs that are in his way. Samples come in, orders to
freeze, to let go on and to recall go out, each with its reason. All times are seconds of the samples' own clock.

He is back for a job where others use the node, or the cores that are lent, above `cpu_percent_max`. That others are
there is seen by what they use, and beside a job they get only a part of a core: so what they use of all lent cores is
added up and held against one core. Our own use is in none of these figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from distributed_grid.agent.core.spare_judge import OFF, cpu_trouble, percent
from distributed_grid.agent.core.spare_limits import Holding, Limits
from distributed_grid.protocol.messages import Suspended
from distributed_grid.protocol.nodes import OwnerPolicy, Sample

NOISE = 10
"""Percent of one core that anything may use now and then without being an owner at work."""


class Running(msgspec.Struct, frozen=True):
    """A job that runs on the node: what it holds, and since when it runs."""

    holding: Holding
    began: float


class Freeze(msgspec.Struct, frozen=True):
    """Nothing of it is to run for now. Said again with every sample, as it holds only for a while."""

    allocation: str
    why: str


class Thaw(msgspec.Struct, frozen=True):
    """It may go on."""

    allocation: str


class Recall(msgspec.Struct, frozen=True):
    """It is to end: the owner wants back what it holds."""

    allocation: str
    why: str


Order = Freeze | Thaw | Recall


class Sign(msgspec.Struct, frozen=True):
    """Something by which the owner is seen to be back: for one job or for `all` of them."""

    why: str
    all: bool = False


@dataclass(slots=True)
class Case:
    """One job and the owner. `since` is when he came back to it (None: he is not there), `seen` when he was seen last;
    `frozen` since when it is, by the supervisor's word, and `in_all` for how long before that."""

    since: float | None = None
    seen: float = 0.0
    sign: Sign = Sign("")
    frozen: float | None = None
    in_all: float = 0.0


class Owner:
    """What becomes of the jobs of a node whose owner comes and goes. `cases` are those of the jobs that run. Whoever
    has to make room is frozen, at once; he is recalled only if the policy says so, or after `owner_most`."""

    def __init__(self, limits: Limits, cores: int) -> None:
        self.limits = limits
        self.cases: dict[str, Case] = {}
        self._cores = cores
        self._recall = ""
        """Why the newest recall was, until the owner was gone for a while."""
        self._recall_seen = 0.0

    def observe(self, sample: Sample, jobs: Sequence[Running], now: float) -> list[Order]:
        """Take in a sample, with all jobs that run and were not told to end; what is to be done about them."""
        names = {one.holding.allocation for one in jobs}
        self.cases = {key: case for key, case in self.cases.items() if key in names}
        signs = _signs(self.limits, sample, self._cores, [one.holding for one in jobs])
        if signs or _busy_node(self.limits, sample, self._cores):
            self._recall_seen = now
        elif now - self._recall_seen >= self.limits.owner_quiet:
            self._recall = ""
        orders = []
        for job in jobs:
            key = job.holding.allocation
            case = self.cases.setdefault(key, Case())
            self._see(case, signs.get(key), now)
            order = self._decide(key, case, now - job.began, now)
            if order is not None:
                orders.append(order)
        return orders

    def took(self, allocation: str, why: str, lasted: float, in_all: float, now: float) -> None:
        """The supervisor says that it is frozen for that reason since `lasted` seconds, or (no reason) that it goes on.
        `in_all`: seconds that it was frozen altogether."""
        case = self.cases.setdefault(allocation, Case())
        if not why:
            case.frozen, case.in_all = None, in_all
            return
        case.frozen, case.in_all = now - lasted, in_all - lasted
        if case.since is None:  # by an agent before this one: he is taken to be there until he is not
            case.since, case.seen, case.sign = now - lasted, now, Sign(why)

    def suspended(self, now: float) -> list[Suspended]:
        """All that is frozen, or was and runs on."""
        told = []
        for key, case in self.cases.items():
            if case.frozen is not None:
                lasted = now - case.frozen
                told.append(Suspended(allocation=key, why=case.sign.why, lasted=lasted, in_all=case.in_all + lasted))
            elif case.in_all:
                told.append(Suspended(allocation=key, in_all=case.in_all))
        return told

    def presence(self) -> str:
        """Why nothing more is to be lent while the owner is there; empty: nothing speaks against it. What only one job
        is in the way of is withheld by itself; but where one was recalled, none is started to be recalled again."""
        if self._recall:
            return f"the owner is back ({self._recall})"
        for case in self.cases.values():
            if case.frozen is not None and case.sign.all:
                return f"the owner is back ({case.sign.why})"
        return ""

    def _see(self, case: Case, sign: Sign | None, now: float) -> None:
        if sign is not None:
            case.since = now if case.since is None else case.since
            case.seen, case.sign = now, sign
        elif case.since is not None and (case.frozen is None or now - case.seen >= self.limits.owner_quiet):
            case.since = None

    def _decide(self, key: str, case: Case, age: float, now: float) -> Order | None:
        limits = self.limits
        if case.since is None or limits.owner_policy is OwnerPolicy.CONTINUE:
            return Thaw(key) if case.frozen is not None else None
        if now - case.since < limits.owner_after and case.frozen is None:
            return None
        long = bool(limits.owner_most) and case.frozen is not None and now - case.frozen >= limits.owner_most
        if (long or limits.owner_policy is OwnerPolicy.RECALL) and age >= limits.owner_hold:
            self._recall, self._recall_seen = case.sign.why, now
            return Recall(key, case.sign.why)
        return Freeze(key, case.sign.why)


def _signs(limits: Limits, sample: Sample, cores: int, held: Sequence[Holding]) -> dict[str, Sign]:
    """For each job that is in the owner's way by this sample: why."""
    if why := _busy_node(limits, sample, cores):
        return {one.allocation: Sign(why, all=True) for one in held}
    return _busy_cores(limits, sample, held)


def _busy_node(limits: Limits, sample: Sample, cores: int) -> str:
    if not cpu_trouble(limits, sample, cores):
        return ""
    used = 100 * sample.foreign_cpu / cores
    return f"foreign CPU {percent(used)} > {limits.cpu_percent_max:g} %"


def _busy_cores(limits: Limits, sample: Sample, held: Sequence[Holding]) -> dict[str, Sign]:
    """Those on whose cores others are at work, if what these use of all lent cores is more than the limit of one."""
    if limits.cpu_percent_max >= OFF:
        return {}
    busy = {core: used for one in held for core in _cores_of(one) if (used := sample.cores.get(core, 0)) >= NOISE}
    total = sum(busy.values())
    if total <= limits.cpu_percent_max:
        return {}
    signs = {}
    for one in held:
        if mine := [core for core in _cores_of(one) if core in busy]:
            named = ", ".join(map(str, sorted(mine)[:4])) + ("…" if len(mine) > 4 else "")
            used = sum(busy[core] for core in mine)
            which = f"core {named}" if len(mine) == 1 else f"cores {named}"
            signs[one.allocation] = Sign(f"foreign CPU {percent(used)} on {which}")
    return signs


def _cores_of(one: Holding) -> Iterable[int]:
    grant = one.grant
    return (*grant.cores, grant.shared_core) if grant.shared_core >= 0 else grant.cores
