"""The owner policy: when the owner of the node is active, and what that means for jobs. Input is samples; output is
orders to freeze, thaw and recall, each with its reason. All times are seconds of the samples' clock.

The owner is active for a job in three cases: foreign use of the node, or of the lent cores, is above `cpu_percent_max`;
foreign programs wait for a resource; or the keyboard or a lent GPU is in use. Beside a job, foreign programs get only a
part of each core, so their use of all lent cores is added up and compared with one core. The grid's own use never
counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from distributed_grid.agent.core.spare.thresholds import (
    NOISE,
    OFF,
    Holding,
    Limits,
    cpu_trouble,
    foreign_on,
    percent,
    use_by,
)
from distributed_grid.protocol.messages import Suspended
from distributed_grid.protocol.nodes import OwnerPolicy, Sample

HANDS = 10.0
"""Seconds after the last input in which the owner counts as active: the kernel notes input every 8 s."""
SETTLE = 20.0
"""Minimum interval between two recalls for memory (s): pressure is an average of the last ten."""


class RunningJob(msgspec.Struct, frozen=True):
    """A running job: what it holds, and since when. A `raylet` is never frozen: its cluster would declare it dead."""

    holding: Holding
    began: float
    raylet: bool = False


class Freeze(msgspec.Struct, frozen=True):
    """Freeze the job; repeated with every sample, as an order expires."""

    allocation: str
    why: str


class Thaw(msgspec.Struct, frozen=True):
    """Let the job continue."""

    allocation: str


class Recall(msgspec.Struct, frozen=True):
    """End the job: the owner needs what it holds."""

    allocation: str
    why: str


Order = Freeze | Thaw | Recall


class Sign(msgspec.Struct, frozen=True):
    """A sign that the owner is active: for one job or for `all`. `frees`: only the job's end helps, as a frozen one
    keeps memory and GPUs."""

    why: str
    all: bool = False
    frees: bool = False


@dataclass(slots=True)
class Case:
    """The owner's state for one job: active `since` (None: not), last `seen`; the job is `frozen` since then, as the
    supervisor says, and was for `in_all` seconds before."""

    since: float | None = None
    seen: float = 0.0
    sign: Sign = Sign("")
    frozen: float | None = None
    in_all: float = 0.0


class Owner:
    """Decides for the jobs of a node; `cases` has one for each running job. A job in the owner's way is frozen; it is
    recalled only by policy, after `owner_most`, or for resources that freezing does not release."""

    def __init__(self, limits: Limits, cores: int) -> None:
        self.limits = limits
        self.cases: dict[str, Case] = {}
        self._cores = cores
        self._there = ""
        """Why nothing more is lent until the owner has been away for a while."""
        self._there_at = 0.0
        self._victim = ""
        """The job that is to free memory: one at a time, as the effect shows only later."""
        self._next_victim = 0.0

    def observe(self, sample: Sample, jobs: Sequence[RunningJob], now: float) -> list[Order]:
        """Take in a sample with all running jobs that were not told to end; returns the orders."""
        names = {one.holding.allocation for one in jobs}
        self.cases = {key: case for key, case in self.cases.items() if key in names}
        signs = self._signs(sample, jobs, now)
        orders = []
        for job in jobs:
            key = job.holding.allocation
            case = self.cases.setdefault(key, Case())
            self._see(case, signs.get(key), now)
            order = self._decide(job, case, now)
            if order is not None:
                orders.append(order)
        return orders

    def took(self, allocation: str, why: str, lasted: float, in_all: float, now: float) -> None:
        """The supervisor reports the job frozen for that reason since `lasted` seconds, or (no reason) continued.
        `in_all`: seconds frozen in total."""
        case = self.cases.setdefault(allocation, Case())
        if not why:
            case.frozen, case.in_all = None, in_all
            return
        case.frozen, case.in_all = now - lasted, in_all - lasted
        if (
            case.since is None
        ):  # frozen under an earlier agent: the owner counts as active until a sample says otherwise
            case.since, case.seen, case.sign = now - lasted, now, Sign(why)

    def suspended(self, now: float) -> list[Suspended]:
        """Return all jobs that are or were frozen."""
        messages = []
        for key, case in self.cases.items():
            if case.frozen is not None:
                lasted = now - case.frozen
                messages.append(
                    Suspended(allocation=key, why=case.sign.why, lasted=lasted, in_all=case.in_all + lasted)
                )
            elif case.in_all:
                messages.append(Suspended(allocation=key, in_all=case.in_all))
        return messages

    def active_for(self, allocation: str) -> bool:
        """Whether the owner is active for this job, so that it is frozen or about to be."""
        case = self.cases.get(allocation)
        return case is not None and case.since is not None

    def presence(self) -> str:
        """Why nothing more is lent while the owner is active; empty: no reason. Resources in one job's way are withheld
        by themselves; but after a recall no job is started that would be recalled again."""
        if self._there:
            return f"the owner is back ({self._there})"
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

    def _decide(self, job: RunningJob, case: Case, now: float) -> Order | None:
        limits, key, age = self.limits, job.holding.allocation, now - job.began
        if case.since is None or limits.owner_policy is OwnerPolicy.CONTINUE:
            return Thaw(key) if case.frozen is not None else None
        if now - case.since < limits.owner_after and case.frozen is None:
            return None
        long = bool(limits.owner_most) and case.frozen is not None and now - case.frozen >= limits.owner_most
        wanted = long or case.sign.frees or limits.owner_policy is OwnerPolicy.RECALL
        if job.raylet or (wanted and age >= limits.owner_hold):
            if case.sign.all or not case.sign.frees:  # a GPU in foreign use is withheld by itself
                self._there, self._there_at = case.sign.why, now
            if key == self._victim:
                self._next_victim = now + SETTLE
            return Recall(key, case.sign.why)
        return Freeze(key, case.sign.why)

    def _signs(self, sample: Sample, jobs: Sequence[RunningJob], now: float) -> dict[str, Sign]:
        """The signs by job in this sample. Those that only an end can satisfy come first."""
        limits, held = self.limits, [one.holding for one in jobs]
        memory, other = _waits(limits, sample, "memory"), _at_work(limits, sample)
        if not memory:
            self._victim = ""
        use = _busy_node(limits, sample, self._cores)
        if limits.owner_policy is not OwnerPolicy.CONTINUE and (memory or other or (use and self._there)):
            self._there, self._there_at = memory or other or use, now
        elif now - self._there_at >= limits.owner_quiet or limits.owner_policy is OwnerPolicy.CONTINUE:
            self._there = ""
        if why := other or use:
            signs = {one.allocation: Sign(why, all=True) for one in held}
        else:
            signs = _busy_cores(limits, sample, held)
        if memory and (victim := self._make_room(jobs, now)):
            signs[victim] = Sign(memory, all=True, frees=True)
        return signs | _on_gpus(limits, sample, held)

    def _make_room(self, jobs: Sequence[RunningJob], now: float) -> str:
        """Which job to recall for memory: the one with most of it, and of equals the one that ran least."""
        if now < self._next_victim or not jobs:
            return ""
        if self._victim not in {one.holding.allocation for one in jobs}:
            self._victim = max(jobs, key=lambda one: (one.holding.rss, one.began)).holding.allocation
        return self._victim


def _at_work(limits: Limits, sample: Sample) -> str:
    """Signs of the owner's input, or of the owner's programs waiting for what a frozen job does not use."""
    if limits.owner_input and 0 <= sample.input_idle < HANDS:
        return "keyboard or terminal in use"
    return _waits(limits, sample, "cpu") or _waits(limits, sample, "io")


def _waits(limits: Limits, sample: Sample, what: str) -> str:
    waited = sample.pressure.get(what, 0.0)
    if limits.owner_pressure < OFF and waited > limits.owner_pressure:
        return f"{what} pressure on others {percent(waited)} > {limits.owner_pressure:g} %"
    return ""


def _on_gpus(limits: Limits, sample: Sample, held: Sequence[Holding]) -> dict[str, Sign]:
    """The jobs whose GPUs have a foreign process that is in the way."""
    foreign = {gpu.uuid: found[0] for gpu in sample.gpus if not gpu.error and (found := foreign_on(limits, gpu))}
    signs = {}
    for one in held:
        for share in one.grant.gpus:
            if (who := foreign.get(share.uuid)) is not None:
                signs[one.allocation] = Sign(f"{use_by(who)} of {share.uuid}", frees=True)
    return signs


def _busy_node(limits: Limits, sample: Sample, cores: int) -> str:
    if not cpu_trouble(limits, sample, cores):
        return ""
    used = 100 * sample.foreign_cpu / cores
    return f"foreign CPU {percent(used)} > {limits.cpu_percent_max:g} %"


def _busy_cores(limits: Limits, sample: Sample, held: Sequence[Holding]) -> dict[str, Sign]:
    """The jobs whose cores have foreign use, if foreign use of all lent cores exceeds the limit of one."""
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
    if grant.slack:
        return grant.slack
    return (*grant.cores, grant.shared_core) if grant.shared_core >= 0 else grant.cores
