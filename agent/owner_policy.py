"""Carries out the decisions of `core/owner.py` and `core/slack.py`: sends orders to the supervisor, and its reports to
the coordinator."""

from collections.abc import Callable
from typing import Any

import msgspec

from distributed_grid.agent.core.owner import Freeze, Owner, Recall, Thaw
from distributed_grid.agent.core.slack import SlackWatch
from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.sampling.trees import Demand
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Recalled, Stop, Suspended
from distributed_grid.protocol.nodes import NodeFacts, Sample
from distributed_grid.protocol.resources import Grant
from distributed_grid.runtime.unix import boot_clock

HOLDS, SAMPLES = 30.0, 3
"""How long a job stays frozen without a repeated order: seconds, or sampling intervals if that is longer. If the agent
dies or hangs, jobs continue."""


class OwnerControl:
    """The owner of this node and its jobs. `stop` ends a job, `say` sends the coordinator a message, and `changed` is
    called when `closed` has changed."""

    def __init__(
        self,
        interval: float,
        limits: Limits,
        facts: NodeFacts,
        launcher: Launcher,
        table: Table,
        stop: Callable[[Stop], None],
        say: Callable[[Any], None],
        changed: Callable[[], None],
    ) -> None:
        self._owner = Owner(limits, len(facts.cores))
        self.follow(limits, interval)
        self._launcher, self._table, self._stop = launcher, table, stop
        self._say, self._changed = say, changed
        self.closed = ""
        """Why nothing more is lent while the owner is active; empty: it is."""
        self._slack = SlackWatch()
        self._demands: dict[str, Demand] = {}
        self._given_way: dict[str, Suspended] = {}
        """Jobs on slack that are frozen for their holders."""
        self._recalled: dict[str, Recalled] = {}
        self._withdrawn: set[str] = set()
        launcher.suspended = self._took

    def follow(self, limits: Limits, interval: float) -> None:
        """Decide by these limits from now on, from samples at this interval."""
        self._owner.limits = limits
        self._holds = max(HOLDS, SAMPLES * interval)

    def measured(self, sample: Sample) -> None:
        """Act on a new sample."""
        self._recalled = {key: told for key, told in self._recalled.items() if self._table.runs(key)}
        self._given_way = {key: told for key, told in self._given_way.items() if self._table.runs(key)}
        for order in self._owner.observe(sample, self._table.running(), boot_clock()):
            if not isinstance(order, Thaw):
                self._withdraw(f"the owner is back ({order.why})", order.allocation)
            if isinstance(order, Freeze):
                self._launcher.freeze(order.allocation, order.why, self._holds)
            elif isinstance(order, Recall):
                self._recall(order, f"the owner is back ({order.why})")
            elif not self._slack.wants(order.allocation):
                self._launcher.thaw(order.allocation)
        self._update()

    def look_at_holders(self) -> None:
        """Measure those on whose cores others run, and act on it."""
        if not (users := self._table.on_slack()):
            return
        holders = {one.holder: one.pid for one in users if one.pid}
        self._demands = {key: self._demands.get(key) or Demand() for key in holders}
        began = boot_clock()
        spent = {key: self._demands[key].seconds(pid) for key, pid in holders.items()}
        now = boot_clock()
        for order in self._slack.observe(now, users, spent, now - began):
            if isinstance(order, Freeze):
                self._launcher.freeze(order.allocation, order.why, self._holds)
            elif isinstance(order, Recall):
                self._recall(order, order.why, by_holder=True)
            elif not self._owner.active_for(order.allocation):
                self._launcher.thaw(order.allocation)
        self._launcher.flush()

    def introduction(self) -> list[Suspended | Recalled]:
        """Messages for a new connection: jobs that are or were frozen, and recalled ones."""
        frozen = [*self._owner.suspended(boot_clock()), *self._given_way.values()]
        messages: list[Suspended | Recalled] = [*frozen, *self._recalled.values()]
        return [one for one in messages if self._table.runs(one.allocation)]

    def take_back(self, why: str) -> None:
        """End all jobs not told to end yet, as the node is no longer lent, for the reason `why`."""
        for key in self._table.live():
            if key not in self._recalled:
                self._end(key, why, Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=why), closing=True)

    def withdraw(self, why_not: Callable[[str, Grant, str], str]) -> None:
        """Withdraw the successors that wait for resources that the node does not lend now. `why_not` returns the reason
        for one, its grant and the holder of that. One that has started meanwhile runs on."""
        for key, first in self._table.waiting().items():
            if why := why_not(key, self._table.entries[key].kept.grant, first):
                self._withdraw(why, key)

    def _withdraw(self, why: str, whose: str) -> None:
        """Withdraw this successor, or those that wait for what it holds."""
        waiting = self._table.waiting()
        self._withdrawn &= waiting.keys()
        for key, first in waiting.items():
            if whose in (key, first) and key not in self._withdrawn:
                self._withdrawn.add(key)
                self._stop(Stop(allocation=key, cause=Cause.RECALLED, text=why, unless_started=True))

    def _recall(self, order: Recall, text: str, by_holder: bool = False) -> None:
        key, why = order.allocation, order.why
        stop = Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=text)
        self._end(key, why, stop, by_holder=by_holder)

    def _end(self, key: str, why: str, stop: Stop, closing: bool = False, by_holder: bool = False) -> None:
        grace = self._table.grace(stop)
        message = Recalled(allocation=key, why=why, grace=grace, closing=closing, by_holder=by_holder)
        self._recalled[key] = message
        self._stop(stop)
        self._say(message)

    def _took(self, message: Suspended) -> None:
        key, mine = message.allocation, self._slack.wants(message.allocation)
        if message.why and not mine and self._table.is_on_slack(key) and not self._owner.active_for(key):
            self._slack.adopt(key, boot_clock() - message.lasted)
            mine = True
        if message.why and mine:
            self._given_way[key] = message = msgspec.structs.replace(message, by_holder=True)
            self._say(message)
            return
        self._given_way.pop(key, None)
        self._owner.took(message.allocation, message.why, message.lasted, message.in_all, boot_clock())
        self._say(message)
        self._update()

    def _update(self) -> None:
        closed = self._owner.presence()
        if closed != self.closed:
            self.closed = closed
            self._changed()
