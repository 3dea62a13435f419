"""The owner's return, carried out: what `core/owner.py` orders goes to the supervisor, what that has done is told
to the coordinator."""

from collections.abc import Callable
from typing import Any

from distributed_grid.agent.core.owner import Freeze, Owner, Thaw
from distributed_grid.agent.core.spare_limits import Limits
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launcher import Launcher
from distributed_grid.agent.probe import now as boot_clock
from distributed_grid.protocol.messages import Suspended
from distributed_grid.protocol.nodes import NodeFacts, Sample

HOLDS = 30.0
"""Seconds that a job stays frozen on our word. It is said again with every sample; where we are gone, or hang, the jobs
go on."""


class Owning:
    """The owner of this node and its jobs. `say` has a message for the coordinator, `stirred` is called when the node
    may be closed by it, or open again."""

    def __init__(
        self,
        limits: Limits,
        facts: NodeFacts,
        launcher: Launcher,
        table: Table,
        say: Callable[[Any], None],
        stirred: Callable[[], None],
    ) -> None:
        self._owner = Owner(limits, len(facts.cores))
        self._launcher, self._table, self._say, self._stirred = launcher, table, say, stirred
        self._closed = ""
        launcher.suspended = self._took

    @property
    def closed(self) -> str:
        """Why nothing more is lent now; empty: the owner does not stand against it."""
        return self._closed

    def measured(self, sample: Sample) -> None:
        """There is a new sample: do what is to be done about the owner."""
        for order in self._owner.observe(sample, self._table.running(), boot_clock()):
            if isinstance(order, Freeze):
                self._launcher.freeze(order.allocation, order.why, HOLDS)
            elif isinstance(order, Thaw):
                self._launcher.thaw(order.allocation)
        self._look()

    def introduction(self) -> list[Suspended]:
        """What a coordinator that has just come has to know of the jobs that are frozen, or were."""
        now, runs = boot_clock(), self._table.runs
        return [told for told in self._owner.suspended(now) if runs(told.allocation)]

    def _took(self, told: Suspended) -> None:
        self._owner.took(told.allocation, told.why, told.lasted, told.in_all, boot_clock())
        self._say(told)
        self._look()

    def _look(self) -> None:
        closed = self._owner.presence(boot_clock())
        if closed != self._closed:
            self._closed = closed
            self._stirred()
