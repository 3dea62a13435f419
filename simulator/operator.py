"""The operator: drains a node, and undrains it later; each order said again until it is heard. One with a deadline is
not taken back before the node is empty, as by who waits to open the machine.
"""

from collections.abc import Callable
from typing import Any

from distributed_grid.coordinator.core.model import DrainAsked, Granted, UndrainAsked
from distributed_grid.simulator.coordinator import Coordinator
from distributed_grid.simulator.engine import Engine, Violation
from distributed_grid.simulator.judge.always import Judge
from distributed_grid.simulator.plan import FaultPlan

PATIENCE = 2.0
"""Seconds after which an order is said again."""
LATE = 1.0
"""Seconds of work within which a coordinator has to see that a deadline is over."""
SLACK = 120.0
"""Seconds of peace after the deadline within which a drained node has to be empty: jobs have up to 5 s of grace, nodes
up to 70 s to be given up."""


class Operator:
    """Who drains the node of this plan. `at` gives the coordinator that can be reached now, if one can."""

    def __init__(
        self, engine: Engine, judge: Judge, plan: FaultPlan, node: str, at: Callable[[], Coordinator | None]
    ) -> None:
        self.engine, self.judge, self.plan, self.node = engine, judge, plan, node
        self.done = False
        self._at = at
        self._drained = self._over = False
        self._seconds = -1.0 if plan.how < 0.3 else 0.0 if plan.how < 0.6 else 10 * plan.how
        self._due = 0.0
        self._drain()

    def _drain(self) -> None:
        if self._drained or self._over:
            return
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{self.node} is to be drained, deadline {self._seconds:.1f} s")
            coordinator.order(
                lambda token: DrainAsked(token, (self.node,), "op", deadline=self._seconds), self._heard_drained
            )
        self.engine.later(PATIENCE, None, self._drain)

    def _heard_drained(self, answer: Any) -> None:
        if isinstance(answer, Granted) and not self._over:
            self.judge.drain_acknowledged(self.node)
            if not self._drained:
                self._look()
            self._drained, self._due = True, self.engine.now + max(0.0, self._seconds)

    def _look(self) -> None:
        """Look now and then whether the coordinator, if it is at work, does what it has said."""
        if self._over:
            return
        if (coordinator := self._at()) is not None:
            self.engine.later(LATE / 2, coordinator, self._awake, coordinator)
        self.engine.later(2 * LATE, None, self._look)

    def _awake(self, coordinator: Coordinator) -> None:
        self.engine.later(LATE / 2, coordinator, self._hold_it_to_its_word, coordinator)

    def _hold_it_to_its_word(self, coordinator: Coordinator) -> None:
        """It was at work for a while: whatever is over by its own clock has been dealt with."""
        if self._over:
            return
        node = coordinator.ledger.state.nodes[self.node]
        if (drain := node.orders.drain) is None:
            raise Violation(self.node, "it was acknowledged to be drained, and is not any more")
        if drain.deadline and coordinator.clock() > drain.deadline + LATE:
            for allocation in node.allocations.values():
                if allocation.stop is None:
                    raise Violation(allocation.job, f"{allocation.id} is not told to end, {self.node} was to be empty")

    def end(self, peace: bool = False) -> None:
        """The node has served; it is given jobs again as soon as it may be."""
        if self._over:
            return
        if self._seconds >= 0 and self._drained and self.judge.living.get(self.node):
            if peace and self.engine.now > self._due + SLACK:
                who = ", ".join(self.judge.living[self.node])
                raise Violation(self.node, f"it was drained with a deadline, and {who} runs there for ever")
            return
        self._over = True
        self._undrain()

    def _undrain(self) -> None:
        if self.done:
            return
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{self.node} is to be undrained")
            coordinator.order(lambda token: UndrainAsked(token, (self.node,), "op"), self._heard_undrained)
        self.engine.later(PATIENCE, None, self._undrain)

    def _heard_undrained(self, answer: Any) -> None:
        self.done = self.done or isinstance(answer, Granted)
