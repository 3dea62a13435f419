"""The ledger: the only entry point to the state of the grid. Events go in with the time, commands come out for the
shell to perform. This module has the handlers by kind of event and of deadline, the consequences of state changes, and
the restoring of a store after a restart."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from distributed_grid.coordinator.core import checks, views
from distributed_grid.coordinator.core.commands import (
    BalancingConfigured,
    BalancingRequested,
    CancelRequested,
    Command,
    DemandReported,
    DrainRequested,
    Event,
    ExtensionRequested,
    ForecastsReported,
    HeartbeatReceived,
    JobsSubmitted,
    LabelsRequested,
    LossFound,
    MemoryAdvised,
    MessageReceived,
    NodeDeclared,
    NodeDoubted,
    NodeDown,
    NodeUp,
    RayAnswered,
    RayletJoined,
    RayletLeft,
    RayReported,
    RemovalRequested,
    Reserved,
    ReserveRefused,
    RightsSet,
    RunTimesPredicted,
    SettingsRequested,
    SignalRequested,
    StoreFailing,
    Tick,
    UndrainRequested,
)
from distributed_grid.coordinator.core.data import EVERYTHING, Facts
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lending import accounts, revocable
from distributed_grid.coordinator.core.lending.loans import Pair
from distributed_grid.coordinator.core.lifecycle import attempts, boosts, holds, outcomes, successors
from distributed_grid.coordinator.core.model import Allocation, Group, Job
from distributed_grid.coordinator.core.nodes import agents, declared, operator, quarantine
from distributed_grid.coordinator.core.placement import ray
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.preemption import execute
from distributed_grid.coordinator.core.queue import admission, dependencies, groups, reservations, rights, scheduler
from distributed_grid.coordinator.core.queue.queue import Waiters
from distributed_grid.coordinator.core.queue.quotas import Spent
from distributed_grid.coordinator.core.rebalancing import orders, passes
from distributed_grid.coordinator.core.scaling.events import (
    MachineAnswered,
    MachineMismatched,
    MachinesListed,
    ScalingConfigured,
    ScalingRequested,
)
from distributed_grid.coordinator.core.scaling.state import Paused
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.messages.rights import Rights
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.pools import ScalingMode
from distributed_grid.protocol.sharing.policies import NO_ORDER, BalancingOrder

CHAIN_SECONDS = successors.REACH / 2
"""Maximum delay of the commit of starts and ends in long chains of successors: more are coming (s)."""
START_SECONDS = 0.002
"""Maximum delay of the commit of another start (s)."""


def _store_failing(state: GridState, event: StoreFailing) -> None:
    """New jobs and freed capacity stay marked meanwhile, and are matched when it works again."""
    state.store_failing = event.on


def _node_up(state: GridState, event: NodeUp) -> None:
    agents.node_up(state, event)
    if event.facts.name in state.scaling.machines:
        from distributed_grid.coordinator.core.scaling import machines  # only where there are pools

        machines.joined(state, event.facts)


def _scaling(
    state: GridState,
    event: ScalingConfigured | ScalingRequested | MachineAnswered | MachinesListed | MachineMismatched,
) -> None:
    from distributed_grid.coordinator.core.scaling import passes as scaling_passes  # only where there are pools

    scaling_passes.handle(state, event)


def _scaling_due(state: GridState, kind: str, name: str) -> None:
    from distributed_grid.coordinator.core.scaling import passes as scaling_passes  # only where there are pools

    scaling_passes.on_time(state, kind, name)


def _tick(state: GridState, event: Tick) -> None:
    """Deadlines are handled by `settle`."""


ON: dict[type, Callable[[GridState, Any], None]] = {
    NodeUp: _node_up,
    NodeDown: agents.node_down,
    HeartbeatReceived: agents.heartbeat,
    MessageReceived: agents.message_received,
    JobsSubmitted: admission.submit,
    CancelRequested: admission.cancel,
    SignalRequested: admission.signal,
    StoreFailing: _store_failing,
    Tick: _tick,
    DrainRequested: operator.drain,
    UndrainRequested: operator.undrain,
    LabelsRequested: operator.label,
    SettingsRequested: operator.lend,
    NodeDeclared: declared.declare,
    RayletJoined: boosts.joined,
    RayletLeft: boosts.left,
    RayAnswered: boosts.answered,
    ExtensionRequested: boosts.extend,
    RemovalRequested: operator.forget,
    RayReported: ray.resources_reported,
    Reserved: ray.reserved,
    ReserveRefused: ray.refused,
    LossFound: agents.loss_found,
    NodeDoubted: operator.doubted,
    RightsSet: rights.set_rights,
    DemandReported: passes.run,
    ForecastsReported: agents.forecasts_reported,
    MemoryAdvised: attempts.advise_memory,
    RunTimesPredicted: reservations.take_predictions,
    BalancingRequested: orders.request,
    BalancingConfigured: orders.configure,
    ScalingConfigured: _scaling,
    ScalingRequested: _scaling,
    MachineAnswered: _scaling,
    MachinesListed: _scaling,
    MachineMismatched: _scaling,
}
DUE: dict[str, Callable[[GridState, str], None]] = {
    "silence": agents.silence,
    "begin": dependencies.begin_due,
    "join": boosts.due,
    "hold": holds.due,
    "successor": successors.due,
    "reserve": ray.due,
    "offer": agents.offer_due,
    "decline": quarantine.backoff_due,
    "drain": operator.drain_due,
    "set-aside": quarantine.due,
    "earmark": execute.earmark_due,
    "preempt": execute.due,
    "shares": views.shares_due,
    "loans": accounts.due,
    "quota": rights.turn_due,
    "machine": lambda state, name: _scaling_due(state, "machine", name),
    "look": lambda state, name: _scaling_due(state, "look", name),
    "scaling": lambda state, name: _scaling_due(state, "scaling", name),
    "slack": revocable.due,
}


class FactHandlers(NamedTuple):
    """The handlers of one kind of facts. `at_once`: new facts of this kind that the handlers cause are handled in the
    same round; else in the next one, after all other kinds."""

    of: Callable[[Facts], deque[Any]]
    then: tuple[Callable[[GridState, Any], None], ...]
    at_once: bool = True


FACT_HANDLERS = (
    FactHandlers(attrgetter("held_back"), (dependencies.evaluate,)),
    FactHandlers(attrgetter("started"), (dependencies.follow_start,)),
    FactHandlers(attrgetter("ended"), (groups.follow_end, dependencies.follow_end)),
    FactHandlers(attrgetter("groups_ended"), (dependencies.follow_group,), at_once=False),
)
"""In this order."""


def handle_facts(state: GridState) -> None:
    """Handle all facts, also those that the handlers cause."""
    facts = state.facts
    while facts.ended or facts.started or facts.held_back or facts.groups_ended:
        for of, then, at_once in FACT_HANDLERS:
            queue = of(facts)
            if not queue:
                continue
            left = len(queue)
            while queue and (at_once or left):
                left -= 1
                fact = queue.popleft()
                for one in then:
                    one(state, fact)


def load(
    state: GridState,
    jobs: Iterable[Job],
    allocations: Iterable[Allocation],
    nodes: Iterable[NodeFacts],
    ordered: Mapping[str, NodeOrders],
    many: Iterable[Group],
    past: Mapping[str, tuple[float, float]],
    lent: Mapping[Pair, tuple[float, float]],
) -> None:
    """Restore what has not ended, in the order of submission. All nodes count as disconnected from now on, so their
    agents have time to reconnect before anything is taken for lost."""
    for facts in nodes:
        agents.know(state, facts)
    operator.restore(state, ordered)
    for allocation in allocations:
        if allocation.state is not State.ENDED:
            state.hold(allocation)
    for group in many:
        state.begin_group(group)
        if group.after or group.begin > state.now:
            state.hold_back(group)
    for job in sorted(jobs, key=lambda job: job.submitted):
        if job.state is not State.ENDED:
            admission.enter(state, job)
    declared.restore(state)
    successors.restore(state)
    holds.restore(state)
    for allocation in state.allocations.values():
        if allocation.state is State.STARTING and allocation.started:
            boosts.arm(state, allocation)
    groups.release_all(state)
    state.quotas.rebuild(state.jobs, state.holders(), state.inside_holds())
    views.restore_shares(state, past)
    accounts.restore(state, lent)
    ray.restore(state)
    handle_facts(state)


def end_after_restore(state: GridState, text: str, why: str = "a backup was restored") -> list[Command]:
    """After a backup was restored: end the waiting jobs with this `text`, and let nodes report what became of the
    others; none is retried, whatever its owner allowed. Returns the commands."""
    for job in list(state.jobs.values()):
        allocation = state.allocations.get(job.allocation)
        if job.id not in state.jobs:
            continue  # it ended with its gang
        if allocation is None:
            outcomes.finish(state, job, Outcome(cause=Cause.RESTORED, text=text, started=False))
            continue
        allocation.started = allocation.started or allocation.granted
        job.active.attempt.started = job.started or allocation.started
        job.request, job.amended = msgspec.structs.replace(job.request, retry_on=(), retries=0), True
        said = f"{why}: {allocation.node} will say what became of it"
        if allocation.state is State.STARTING:  # it may have started since
            state.move(allocation, State.RUNNING, said)
        else:
            state.tell(job, said)
        state.changed(job, allocation)
    state.facts, state.dependencies = Facts(), Waiters()  # no consequences: all that waits has ended
    return state.take_out()


class Ledger:
    """Changes go through its methods; readers use `state` as it is between two events."""

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
        granted: Mapping[str, Rights] = {},
        spent: Mapping[str, Spent] = {},
        balancing: BalancingOrder = NO_ORDER,
        lent: Mapping[Pair, tuple[float, float]] = {},
        created: Sequence[Machine] = (),
        paused: Mapping[str, Paused] = {},
        returns: Mapping[str, tuple[int, int]] = {},
    ) -> list[Command]:
        """Load what was on disk."""
        state = self.state
        state.quotas.granted, state.quotas.spent = dict(granted), dict(spent)
        state.now, state.unknown_before, state.loss = now, unknown_before, loss
        load(state, jobs, allocations, nodes, ordered, many, past, lent)
        orders.restore(state, balancing)
        handle_facts(state)
        for name in returns.keys() & state.nodes.keys():
            state.nodes[name].thawed, state.nodes[name].recalled = returns[name]
        if state.policy.scaling.pools or created or paused:
            from distributed_grid.coordinator.core.scaling import machines  # only where there are pools

            machines.restore(state, created, paused)
        return state.take_out()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Apply one event."""
        state = self.state
        state.now = now
        if state.quotas.counted:
            state.quotas.forget_used()
        ON[type(event)](state, event)
        handle_facts(state)
        return state.take_out()

    def patience(self, event: Event) -> float:
        """Return how long (s) the commit of an event may be delayed so that others share it, since no client waits for
        the answer: the start or end of an allocation behind which several wait, or another start, as its end may be
        near."""
        if not isinstance(event, MessageReceived):
            return 0.0
        message, successors = event.message, self.state.chains.successors
        if not isinstance(message, Exited | Started):
            return 0.0
        if successors.get(message.allocation, "") in successors:
            return CHAIN_SECONDS
        return START_SECONDS if isinstance(message, Started) else 0.0

    def settle(self, now: float) -> list[Command]:
        """Handle due deadlines, then match waiting jobs: once after each batch of events."""
        state = self.state
        state.now = now
        state.snapshot += 1
        if state.quotas.counted:
            state.quotas.forget_used()
        stirred = planning = False
        if state.deadlines.some_due(now):
            for kind, name in state.deadlines.due(now):
                if kind == "reasons":
                    stirred = True  # said after the matching, which may make them untrue
                elif kind == "scaling":
                    planning = True  # after it, too: what starts now needs no machine
                else:
                    DUE[kind](state, name)
            handle_facts(state)
        if state.recalls or state.on_slack:
            revocable.recall(state)
        if state.freed_nodes:
            execute.serve(state)
        fresh = {**state.fresh} if state.chains.predecessors else {}
        while True:  # again where a node is not kept any more, a quota allows more, or a hold has begun
            if state.holds.changed and not state.halted:
                holds.serve(state)
                handle_facts(state)
            if state.reservations.by_job:
                rights.drop_reservations(state)
            if state.quotas.excluded and rights.has_changed(state):
                rights.review(state)
            if (state.fresh or state.freed_nodes) and not state.halted:
                scheduler.match(state)
            elif planning:
                planning = False
                DUE["scaling"](state, "")
            else:
                break
            handle_facts(state)
        if state.preempting.urgent or state.preempting.refusals:
            execute.plan_preemptions(state)
        if state.chains.kinds and not state.halted:
            successors.update(state, fresh)
        if state.quotas.excluded and rights.has_changed(state):
            state.deadlines.arm("quota", "", now)
        if state.scaling.draining:
            from distributed_grid.coordinator.core.scaling import machines  # only where there are pools

            machines.end_drained(state)
        if state.queue.lines and state.policy.scaling.pools and state.policy.scaling.mode is not ScalingMode.OFF:
            state.deadlines.arm("scaling", "", max(now, state.scaling.next_pass(len(state.queue.lines))))
        if stirred:
            reasons.refresh(state)
        state.index.mix.count()
        return state.take_out()

    def next_deadline(self) -> float | None:
        """When to settle next even if nothing happens; None: never."""
        return self.state.deadlines.next()

    def check(self) -> None:
        """Raise AssertionError where the state contradicts itself."""
        checks.check(self.state)
