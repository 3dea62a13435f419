"""Carries out the decisions of `core/owner.py`: orders go to the supervisor, and its reports to the coordinator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed_grid.agent.core.owner import Freeze, Owner, Recall, Thaw
from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.launcher import Launcher
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
        state_dir: Path,
        interval: float,
        limits: Limits,
        facts: NodeFacts,
        launcher: Launcher,
        table: Table,
        stop: Callable[[Stop], None],
        say: Callable[[Any], None],
        changed: Callable[[], None],
    ) -> None:
        self._dir = state_dir
        self._owner = Owner(limits, len(facts.cores))
        self.follow(limits, interval)
        self._launcher, self._table, self._stop = launcher, table, stop
        self._say, self._changed = say, changed
        self.closed = ""
        """Why nothing more is lent while the owner is active; empty: it is."""
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
        for order in self._owner.observe(sample, self._table.running(), boot_clock()):
            if not isinstance(order, Thaw):
                self._withdraw(f"the owner is back ({order.why})", order.allocation)
            if isinstance(order, Freeze):
                self._launcher.freeze(order.allocation, order.why, self._holds)
            elif isinstance(order, Thaw):
                self._launcher.thaw(order.allocation)
            else:
                self._recall(order)
        self._update()

    def introduction(self) -> list[Suspended | Recalled]:
        """Messages for a new connection: jobs that are or were frozen, and recalled ones."""
        messages: list[Suspended | Recalled] = [*self._owner.suspended(boot_clock()), *self._recalled.values()]
        return [one for one in messages if self._table.runs(one.allocation)]

    def take_back(self, why: str) -> None:
        """End all jobs not told to end yet, as the node is no longer lent, for the reason `why`."""
        for key in self._table.live():
            if key not in self._recalled:
                self._end(key, why, Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=why), closing=True)

    def withdraw(self, why_not: Callable[[str, Grant, str], str]) -> None:
        """Take back the successors that wait for what the node does not lend now: `why_not` says that of one, its grant
        and who holds that. One that has started meanwhile runs on."""
        for key, first in self._table.waiting().items():
            if why := why_not(key, self._table.entries[key].kept.grant, first):
                self._withdraw(why, key)

    def _withdraw(self, why: str, whose: str) -> None:
        """This one, or those that wait for what it holds."""
        waiting = self._table.waiting()
        self._withdrawn &= waiting.keys()
        for key, first in waiting.items():
            if whose in (key, first) and key not in self._withdrawn:
                self._withdrawn.add(key)
                self._stop(Stop(allocation=key, cause=Cause.RECALLED, text=why, unless_started=True))

    def _recall(self, order: Recall) -> None:
        key, why = order.allocation, order.why
        text = f"the owner is back ({why})"
        self._end(key, why, Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=text))

    def _end(self, key: str, why: str, stop: Stop, closing: bool = False) -> None:
        grace = self._table.grace(stop)
        message = self._recalled[key] = Recalled(allocation=key, why=why, grace=grace, closing=closing)
        self._stop(stop)
        self._say(message)

    def _took(self, message: Suspended) -> None:
        self._owner.took(message.allocation, message.why, message.lasted, message.in_all, boot_clock())
        self._say(message)
        self._update()

    def _update(self) -> None:
        closed = self._owner.presence()
        if closed != self.closed:
            self.closed = closed
            self._changed()
