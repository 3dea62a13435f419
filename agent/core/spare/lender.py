"""What a node lends: samples and limits in, offers out. Only foreign use decides; the grid's own jobs reduce an offer
only by what they hold. All times are of the samples' clock."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from distributed_grid.agent.core.spare import claim, thresholds
from distributed_grid.agent.core.spare import plan as spare_plan
from distributed_grid.agent.core.spare.holdings import Holdings, Others
from distributed_grid.agent.core.spare.plan import Idle, Plan, Supply
from distributed_grid.agent.core.spare.returning import Node, mask
from distributed_grid.agent.core.spare.thresholds import Held, Holding, Limits, tally
from distributed_grid.protocol.messages import Stale
from distributed_grid.protocol.nodes import NodeFacts, Offer, Sample, Withheld
from distributed_grid.protocol.resources import Grant

SETTLE = 3.0
"""Seconds for which a GPU's utilisation is put down to the job that left it: drivers average over a second or so."""


class Latch:
    """Hysteresis: closed at once by any trouble, open after `after` seconds without."""

    def __init__(self) -> None:
        self.idle_since: float | None = None
        self.why = "not measured yet"

    def see(self, trouble: str, now: float, after: float) -> None:
        """Update with the present trouble, if any."""
        if trouble:
            self.idle_since = None
            self.why = trouble
            return
        self.idle_since = now if self.idle_since is None else self.idle_since
        idle = now - self.idle_since
        self.why = "" if idle >= after else f"idle for {math.floor(idle)} s of {after:g} s (offer_after)"


class Lender:
    """The node's policy with its state: what was busy when, and the last offer. While `closed` says why, nothing is
    offered."""

    def __init__(self, limits: Limits, facts: NodeFacts) -> None:
        self.limits = limits
        self.facts = facts
        self.closed = ""
        self._cpu, self._memory = Latch(), Latch()
        self._cores = {core: Latch() for core in facts.cores}
        self._gpus = {gpu.uuid: Latch() for gpu in facts.gpus}
        self._left: deque[tuple[float, int]] = deque()
        self._on_gpu: dict[str, float] = {}
        self._held = Held()
        self._sample: Sample | None = None
        self._idle = Idle(frozenset(), 0, frozenset())
        self._plan = Plan(withheld=(Withheld("node", "not measured yet"),))
        self._told: Supply | None = None
        self._told_at = 0.0
        self._number = 0
        self._managed = mask(facts.cores)
        self._node: Node | None = None
        """Of the last sample; None until it is asked for."""

    def observe(self, sample: Sample, holdings: Sequence[Holding], now: float) -> Offer | None:
        """Take in a sample; returns a new offer if it differs or the last one has to be renewed."""
        self._sample = sample
        self._held = tally(holdings)
        self._touch(self._held.gpus, now)
        self._judge(sample, now)
        self._idle = self._idle_resources(sample)
        self._plan = self._make(self._held)
        self._node = None
        supply = spare_plan.supply(self._plan, self._idle, self._held, sample, self.lends)
        again = min(self.limits.check_interval, self.limits.offer_expiry / 2)
        if self._told is not None and not supply.differs(self._told) and now - self._told_at < again:
            return None
        self._told = supply
        return self._offer(now)

    def current(self, now: float) -> Offer:
        """The whole offer as of the last sample, for a new connection."""
        if self._sample is not None:
            self._told = spare_plan.supply(self._plan, self._idle, self._held, self._sample, self.lends)
        return self._offer(now)

    def verify(self, grant: Grant, sample: Sample, holdings: Holdings, allocation: str) -> Stale | None:
        """Why a grant cannot be given now, by a new sample and the agent's holdings; None if it can. No hysteresis:
        what is idle now and not held is available."""
        held = holdings.without(allocation)
        self._touch(held.gpus, sample.at)
        stale = self._check(grant, sample, held, allocation)
        if stale is None:
            self._touch([share.uuid for share in grant.gpus], sample.at)
        return stale

    def verify_next(
        self, grant: Grant, sample: Sample, holdings: Holdings, allocation: str, first: str
    ) -> Stale | None:
        """Return why a successor cannot be given the resources of `first` after it; None if it can. The hysteresis of
        an offer counts here, too: while the node offers nothing of that kind, no successor is queued for it."""
        if why := self._withheld(grant):
            return Stale(allocation, why)
        self._touch(holdings.on_gpu, sample.at)
        return self._check(grant, sample, holdings.without(first), allocation)

    def _check(self, grant: Grant, sample: Sample, held: Others, allocation: str) -> Stale | None:
        about = self._cores, sample, held, grant, allocation
        return claim.check(self.limits, self.facts, *about, self._ours_at(sample.at))

    def _withheld(self, grant: Grant) -> str:
        if self.closed:
            return self.closed
        latches = [self._cpu] if grant.cores or grant.shared_milli else []
        latches += [self._memory] if grant.memory else []
        latches += [self._gpus[share.uuid] for share in grant.gpus if share.uuid in self._gpus]
        return next((latch.why for latch in latches if latch.why), "")

    def would_return(self, grant: Grant, holdings: Holdings) -> bool:
        """Whether all of this grant would be offered again now that its job is over, beside `holdings`. If so the
        coordinator may add it to the offer it has; else a new offer is needed."""
        if self._sample is None:
            return False
        if self._node is None:
            self._node = Node(self._managed, self.facts.gpus, self._sample, self._idle, self._plan.cores, self.lends)
        return self._node.offers(self.limits, grant, holdings)

    def _touch(self, uuids: Iterable[str], now: float) -> None:
        self._on_gpu.update(dict.fromkeys(uuids, now))

    def lends(self, uuid: str) -> bool:
        """Whether use of a GPU in the last sample is put down to the grid: a job holds it, or did a moment before."""
        return self._sample is not None and self._ours_at(self._sample.at)(uuid)

    def _ours_at(self, at: float) -> Callable[[str], bool]:
        """The same at this time, as a function of the GPU."""
        return lambda uuid: uuid in self._on_gpu and at - self._on_gpu[uuid] < SETTLE

    def _judge(self, sample: Sample, now: float) -> None:
        limits, after, count = self.limits, self.limits.offer_after, len(self.facts.cores)
        self._cpu.see(thresholds.cpu_trouble(limits, sample, count), now, after)
        self._memory.see(thresholds.memory_trouble(limits, sample), now, after)
        busy = thresholds.core_troubles(limits, sample, self._cores)
        crowded = self._crowded(sample, [core for core in self._cores if core not in busy])
        for core, latch in self._cores.items():
            latch.see(busy.get(core) or crowded.get(core, ""), now, after)
        seen = {gpu.uuid: gpu for gpu in sample.gpus}
        for uuid, latch in self._gpus.items():
            latch.see(thresholds.gpu_trouble(limits, seen.get(uuid), self.lends(uuid)), now, after)
        # Foreign use fluctuates around whole cores: the least of the last seconds keeps the offer stable.
        self._left.append((now, spare_plan.whole_cores(limits, sample, count)))
        while self._left[0][0] < now - after:
            self._left.popleft()

    def _crowded(self, sample: Sample, idle: Sequence[int]) -> dict[int, str]:
        """Which of these cores, idle each by itself, are too many together, and why: of the free ones those that were
        not lent before, and among equals the busiest."""
        if max(sample.cores.values(), default=0) < thresholds.NOISE:
            return {}
        held = sorted(self._held.cores | self._held.shared.keys())
        free = [core for core in idle if core not in self._held.cores and core not in self._held.shared]
        free.sort(key=lambda core: (bool(self._cores[core].why), sample.cores[core]))
        return thresholds.crowded(self.limits, sample, held, free)

    def _make(self, held: Held) -> Plan:
        if self._sample is None:
            return self._plan
        preferred = frozenset(self._plan.cores)
        return spare_plan.make(
            self.limits, self.facts.cores, self.facts.gpus, self._sample, self._idle, held, preferred, self.lends
        )

    def _idle_resources(self, sample: Sample) -> Idle:
        busy = [latch.why for latch in self._cores.values() if latch.why]
        return Idle(
            cores=frozenset(core for core, latch in self._cores.items() if not latch.why),
            most=min((most for _, most in self._left), default=0),
            gpus=frozenset(uuid for uuid, latch in self._gpus.items() if not latch.why),
            node=self.closed if self.limits.can_share else f"shares nothing ({self.limits.closed_by})",
            cpu=self._cpu.why,
            busy_cores="; ".join(busy[:4]) + (f" and {len(busy) - 4} more cores" if len(busy) > 4 else ""),
            memory=self._memory.why,
            gpu_whys=tuple((uuid, latch.why) for uuid, latch in self._gpus.items() if latch.why),
            gpu_error=sample.gpu_error,
        )

    def _offer(self, now: float) -> Offer:
        self._number += 1
        self._told_at = now
        return self.offered()

    def offered(self) -> Offer:
        """The present offer."""
        plan = self._plan
        return Offer(
            number=self._number,
            expires_in=self.limits.offer_expiry,
            cores=plan.cores,
            shares=dict(plan.shares),
            memory=plan.memory,
            gpus=plan.gpus,
            counting=self._held.ids,
            withheld=plan.withheld,
            idle_since=self._cpu.idle_since or 0.0,
        )


def describe(limits: Limits, facts: NodeFacts, sample: Sample, closed: str = "") -> Offer:
    """Return the offer of a node without jobs by this one sample, with the reasons in `withheld`, without hysteresis.
    `closed`: why it offers nothing. For `grid agent detect`."""
    at_once = msgspec.structs.replace(limits, offer_after=0.0)
    lender = Lender(at_once, facts)
    lender.closed = closed
    lender.observe(sample, (), sample.at)
    return lender.current(sample.at)
