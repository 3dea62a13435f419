"""The ledger: the one door to the state of the grid.

Events go in with the time, commands come out for the shell to perform. Nothing here waits, reads a clock, draws a
number or talks to anybody; the same events give the same commands. Who deals with each kind of event is in `events.py`;
whatever they do to the state, they do through its verbs.
"""

from collections.abc import Container, Iterable, Mapping

from distributed_grid.coordinator.core import checks, events
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lifecycle import transitions
from distributed_grid.coordinator.core.model import Allocation, Command, Event, Group, Heard, Job, Send
from distributed_grid.coordinator.core.nodes import restore as restoring
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.preemption import execute
from distributed_grid.coordinator.core.queue import scheduler
from distributed_grid.coordinator.core.state import EVERYTHING, GridState
from distributed_grid.protocol.messages import Renewed
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders, NodeState


class Ledger:
    """Who has the state changed, asks here; who only reads, takes it as it is between two events."""

    def __init__(self, epoch: int = 0, watched: Container[str] = EVERYTHING, policy: Policy = DEFAULT) -> None:
        self.state = GridState(epoch, watched, policy)

    def restore(
        self,
        jobs: Iterable[Job],
        allocations: Iterable[Allocation],
        nodes: Iterable[NodeFacts],
        now: float,
        unknown_before: float = 0.0,
        ordered: Mapping[str, NodeOrders] = {},
        many: Iterable[Group] = (),
        past: Mapping[str, tuple[float, float]] = {},
        loss: tuple[str, ...] = (),
    ) -> list[Command]:
        """Take up what was on disk."""
        state = self.state
        state.now, state.unknown_before, state.loss = now, unknown_before, loss
        restoring.take_up(state, jobs, allocations, nodes, ordered, many, past)
        return state.take_out()

    def handle(self, event: Event, now: float) -> list[Command]:
        """One thing happened."""
        state = self.state
        state.now = now
        if type(event) is Heard:  # by far the most frequent, and nearly always without consequence
            if (node := state.nodes.get(event.node)) is None:
                return []
            node.heard, node.sample = now, event.sample
            if event.at and not node.strays:  # what was given up there is to end
                state.out.append(Send(event.node, Renewed(event.at)))
            if node.state is NodeState.UP:
                return state.take_out() if event.at else []
        events.ON[type(event)](state, event)
        transitions.follow(state)
        return state.take_out()

    def settle(self, now: float) -> list[Command]:
        """Let expire what is due, then give room to those who wait: once after a batch of events."""
        state = self.state
        state.now = now
        state.snapshot += 1
        stirred = False
        for kind, name in state.deadlines.due(now):
            if kind == "reasons":
                stirred = True  # said after the matching, which may make them untrue
            else:
                events.DUE[kind](state, name)
        transitions.follow(state)
        execute.serve(state)
        while (state.fresh or state.grown) and not state.halted:  # again where a node is not kept any more
            scheduler.match(state)
            transitions.follow(state)
        execute.look(state)
        if stirred:
            reasons.refresh(state)
        return state.take_out()

    def next_deadline(self) -> float | None:
        """When to settle next even if nothing happens; None: never."""
        return self.state.deadlines.next()

    def check(self) -> None:
        """Raise AssertionError, in words, where what is held contradicts itself."""
        checks.check(self.state)
