"""Taking up what was on disk; and what can be said of the jobs of a backup, or of a store that has lost commits. What
that shows as waiting may have been started since and be over by now, so starting it could be the second time; what it
shows as started may be over, and its node will tell.
"""

from collections.abc import Iterable, Mapping

import msgspec

from distributed_grid.coordinator.core import boosts
from distributed_grid.coordinator.core.lifecycle import attempts, transitions
from distributed_grid.coordinator.core.model import Allocation, Command, Group, Job
from distributed_grid.coordinator.core.nodes import agents, operator
from distributed_grid.coordinator.core.placement import ray
from distributed_grid.coordinator.core.queue import accounts, groups
from distributed_grid.coordinator.core.state import Facts, GridState, Held
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders


def take_up(
    state: GridState,
    jobs: Iterable[Job],
    allocations: Iterable[Allocation],
    nodes: Iterable[NodeFacts],
    ordered: Mapping[str, NodeOrders],
    many: Iterable[Group],
    past: Mapping[str, tuple[float, float]],
) -> None:
    """Take up what lives, in the order it was submitted. All nodes are disconnected since now, so their agents have
    time to return before anything is taken for lost."""
    for facts in nodes:
        agents.know(state, facts)
    operator.restore(state, ordered)
    for allocation in allocations:
        if allocation.state is not State.ENDED:
            state.hold(allocation)
            if allocation.state is State.STARTING and allocation.started:
                boosts.arm(state, allocation)
    for group in many:
        state.begin_group(group)
        if group.after or group.begin > state.now:
            state.hold_back(group)
    for job in sorted(jobs, key=lambda job: job.submitted):
        if job.state is not State.ENDED:
            transitions.enter(state, job)
    accounts.restore(state, past)
    ray.restore(state)
    transitions.follow(state)
    groups.go_on(state)


def hold_back(state: GridState, text: str, why: str = "a backup was restored") -> list[Command]:
    """End what waits, saying so in `text`, and leave what holds resources to the word of its node; nothing of it is run
    again, whatever its owner allowed. What there is to record."""
    for job in list(state.jobs.values()):
        allocation = state.allocations.get(job.allocation)
        if job.id not in state.jobs:
            continue  # it ended with its gang
        if allocation is None:
            attempts.finish(state, job, Outcome(cause=Cause.RESTORED, text=text, started=False))
            continue
        allocation.started = job.started = allocation.started or allocation.granted
        job.request = msgspec.structs.replace(job.request, retry_on=(), retries=0)
        said = f"{why}: {job.node} will say what became of it"
        if allocation.state is State.STARTING:  # it may have started since
            state.move(allocation, State.RUNNING, said)
        else:
            state.tell(job, said)
        state.changed(job, allocation)
    state.facts, state.held = Facts(), Held()  # nothing follows from them: all that waits has ended
    return state.take_out()
