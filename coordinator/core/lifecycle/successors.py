"""Successors (docs/successors.md): while short jobs with equal requests wait, running ones get successors, which start
on their nodes, without a message from the coordinator, when the running ones have ended. A successor is taken back as
soon as another job would be served first, its node gets no new jobs, or the job before it runs longer than such jobs
do."""

import math
from heapq import nsmallest

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Send
from distributed_grid.coordinator.core.lifecycle.attempts import is_plain, kind_of, launch, lease_of
from distributed_grid.coordinator.core.model import Active, Allocation, Job, Node
from distributed_grid.coordinator.core.placement.matching import able
from distributed_grid.coordinator.core.queue import ranking, rights
from distributed_grid.coordinator.core.queue.chains import MOST
from distributed_grid.coordinator.core.queue.order import CLASSES_IN_ORDER, Order, place_in_order
from distributed_grid.coordinator.core.queue.queue import Line, key_of
from distributed_grid.coordinator.core.queue.reservations import keep_for, needs_short
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.nodes import NodeState

REACH = 0.04
"""A chain of successors is to last so long (s), if nobody else waits: a few round trips to a node."""
OVERDUE = 1.0
"""Seconds after which a successor that still waits is taken back."""
PASSED = 8
"""Maximum number of lines that are passed over in the order of service, since they cannot start."""
TRIED = 16
"""Maximum number of allocations that are compared with what those lines need."""


def update(state: GridState, fresh: dict[str, None]) -> None:
    """Take back and give successors, after the waiting jobs were matched. `fresh`: the jobs that were new then."""
    closed, state.chains.closed_nodes = state.chains.closed_nodes, {}
    for name in closed:
        node = state.nodes.get(name)
        if node is not None and not node.usable and node.synced and node.state is NodeState.UP:
            _clear(state, node, f"{name} takes no new jobs")
    if fresh:
        _make_way(state, fresh)
    if state.chains.tails and state.chains.short and state.queue.lines:
        ranking.rank(state)
        if len(state.queue.standings) == 1 or any(tails[0] for tails in state.chains.tails.values()):
            _serve(state)  # with several standings only what has no successor gets one


def restore(state: GridState) -> None:
    """Find those that hold nothing among the restored allocations."""
    for allocation in [*state.allocations.values()]:
        before, node = state.allocations.get(allocation.predecessor), state.nodes[allocation.node]
        waits = before is not None and not before.handed_over
        if waits or allocation.handed_over:
            node.not_holding[allocation.id] = node.allocations.pop(allocation.id)
        if waits:
            state.chains.join(allocation.predecessor, allocation.id)
            state.deadlines.arm("successor", allocation.id, state.now + OVERDUE)
    for job in state.jobs.values():
        if type(job.phase) is Active and job.phase.predecessor and job.allocation not in state.chains.predecessors:
            job.phase.predecessor = ""  # it took over after its record was written


# --- giving -----------------------------------------------------------------------------------------------------------


def _serve(state: GridState) -> None:
    """Give successors to allocations as long as a line of short jobs could use what these hold, and no line before it
    in the order of service could. At most `PASSED` lines that have to wait are passed over."""
    order, passed, firsts = Order(state.queue, lambda need: True), list[Line](), list[Line]()
    try:
        for priority in CLASSES_IN_ORDER:
            while state.queue.order[priority] and (line := order.first(priority)) is not None:
                before = _for_next(state, line, passed, firsts)
                if before is not None:
                    _give(state, line, state.jobs[state.queue.head(line)[1]], before)
                    order.served(line)
                    continue
                if not line.blocked or len(passed) == PASSED:
                    return
                passed.append(line)
                if order.skip(line):
                    firsts.append(line)
    finally:
        order.end()


def _for_next(state: GridState, line: Line, passed: list[Line], firsts: list[Line]) -> Allocation | None:
    """Return the allocation that the first job of a line may succeed; None: it may not, or there is none. `passed`: the
    lines before it in the order of service; `firsts`: those of them that are the first of their standings."""
    queue, chains = state.queue, state.chains
    job = state.jobs[queue.head(line)[1]]
    tails = chains.tails.get(kind_of(job))
    if tails is None or not chains.is_short(line.standing.user, line.request):
        return None
    if line.count <= sum(map(len, tails)):
        return None  # the last ones go where room is first
    others = len(queue.standings) > 1 or line.standing.included > 1
    most = 1 if others else _length(chains.typical(line.standing.user, line.request))
    names = [name for part in tails[:most] for name in part]
    if not names:
        return None
    for one in firsts:  # as in a pass, where there is none unless something becomes free
        state.reservations = keep_for(state, state.reservations, one, queue.least, state.now)
    if passed:
        nodes = {allocation.node: allocation for name in names[:TRIED] if (allocation := state.allocations[name])}
        free = {name for name, one in nodes.items() if not _is_wanted(state, passed, one)}
        names = [name for name in names[:TRIED] if state.allocations[name].node in free]
    name = next((name for name in names if _may_follow(state, job, name)), "")
    if not name or not is_plain(job, lease_of(job, state.policy)):
        return None
    if any(pool.by_day for pool in state.quotas.pools(job)):  # the hours count from a start that is not known
        return None
    before = state.allocations[name]
    back = state.balancing.left_by(job.id, state.now) == before.node
    return before if not back and rights.admits(state, job) else None


def _length(typical: float) -> int:
    """Return the maximum number of successors in a chain of jobs with this typical run time (s)."""
    return min(MOST, math.ceil(REACH / max(typical, REACH / MOST)))


def _is_wanted(state: GridState, passed: list[Line], allocation: Allocation) -> bool:
    """Whether one of these lines could start in what an allocation holds, or has a reservation that needs it."""
    node = state.nodes[allocation.node]
    if node.capacity is None:
        return True
    there = allocation.grant.resources + node.capacity.left
    if any(line.request.resources.fits(there) and able(node, line.request) for line in passed):
        return True
    return needs_short(state, node, [state.queue.head(line)[1] for line in passed])


def _may_follow(state: GridState, job: Job, name: str) -> bool:
    """Whether this allocation may get a successor now; if not, it never will."""
    allocation = state.allocations[name]
    node, other = state.nodes[allocation.node], state.jobs[allocation.job]
    goes_on = (
        allocation.stop is None and allocation.state in (State.STARTING, State.RUNNING) and not other.active.frozen
    )
    if not (
        goes_on and node.usable and state.now - allocation.granted < OVERDUE and name not in state.chains.successors
    ):
        state.chains.close(name)
        return False
    # What another user may hold by quotas is only known when that user's turn has come.
    return other.user == job.user or not (state.quotas.pools(job) or state.quotas.pools(other))


def _give(state: GridState, line: Line, job: Job, before: Allocation) -> None:
    kept = state.reservations.by_job.get(job.id)
    if kept is not None and line.count > 1:  # the next of its line needs the same
        rest = {name: one for name, one in state.reservations.by_job.items() if name != job.id}
        state.reservations = replace(state.reservations, by_job=rest)
    overdue = state.queue.turns[job.id] == line.standing.overdue
    allocation = state.grant_next(job, before)
    if overdue:
        state.chains.overdue[allocation.id] = (state.now, line.standing.served_at)
        line.standing.served_at = state.now
    if kept is not None and line.count:
        name = state.queue.head(line)[1]
        by_job = {**state.reservations.by_job, name: replace(kept, job=name)}
        state.reservations = replace(state.reservations, by_job=by_job)
    state.chains.allow(allocation.id, kind_of(job))
    state.tell(job, f"next on {allocation.node}, after {before.job}")
    state.changed(job, allocation)
    state.out.append(Send(allocation.node, launch(state, job, allocation)))
    state.deadlines.arm("successor", allocation.id, state.now + OVERDUE)


# --- taking back ------------------------------------------------------------------------------------------------------


def take_back(state: GridState, allocation: Allocation, why: str) -> None:
    """Withdraw a successor and all that wait behind it, unless they have started; their node reports which."""
    for name in (allocation.id, *state.chains.successors_of(allocation.id)):
        one = state.allocations[name]
        if one.stop is not None or one.started:
            continue
        one.stop = Stop(allocation=name, cause=Cause.WITHDRAWN.value, text=why, unless_started=True)
        one.stopped = state.now
        state.chains.close(name)
        job = state.jobs[one.job]
        state.tell(job, f"taken back unless it has started: {why}")
        state.changed(job, one)
        state.out.append(Send(one.node, one.stop))


def due(state: GridState, name: str) -> None:
    """A successor has waited for long."""
    if state.loss:
        return  # it may have run, and its node may have forgotten that: an operator chooses first
    allocation = state.allocations.get(name)
    if allocation is not None and name in state.nodes[allocation.node].not_holding and allocation.predecessor:
        before = state.chains.predecessors.get(name, "")
        take_back(state, allocation, f"{before.rpartition('.')[0]} runs longer than such jobs do")


def _clear(state: GridState, node: Node, why: str) -> None:
    """Take back all successors of a node."""
    for allocation in list(node.not_holding.values()):
        if allocation.id in state.chains.predecessors:
            take_back(state, allocation, why)


def _make_way(state: GridState, fresh: dict[str, None]) -> None:
    """Take back as many chains of successors as there are new jobs that would be served before them and fit there."""
    if not state.chains.predecessors:
        return
    queue = state.queue
    new = {queue.line(name): None for name in fresh if name in queue}
    lines = [line for line in new if not line.excluded and queue.head(line)[1] in fresh]
    for line in nsmallest(PASSED + 1, lines, key=lambda line: place_in_order(queue, line)):
        _make_way_for(state, line)


def _make_way_for(state: GridState, line: Line) -> None:
    wanted, first = line.count, state.queue.head(line)[1]
    for name in [*state.chains.predecessors]:
        allocation = state.allocations[name]
        node = state.nodes[allocation.node]
        before = state.chains.predecessors.get(name, "")
        if wanted <= 0:
            return
        if allocation.stop is not None or before in node.not_holding or node.capacity is None:
            continue
        reserved = needs_short(state, node, (first,))
        fits = line.request.resources.fits(allocation.grant.resources + node.capacity.left)
        if not (reserved or (fits and able(node, line.request))):
            continue
        if _comes_before(state, line, state.jobs[allocation.job]):
            take_back(state, allocation, f"{line.standing.user} comes first")
            wanted -= not reserved


def _comes_before(state: GridState, line: Line, job: Job) -> bool:
    """Whether a line would be served before a successor, if that waited in the queue."""
    standing = line.standing
    if standing.priority is not job.request.priority:
        return standing.priority > job.request.priority
    lasts = key_of(job)[2]
    there = state.queue.standings.get(state.queue.stand_of(job.user, job.request.priority, lasts))
    first = state.queue.head(line)[0]
    if there is standing:
        return first < state.turns[job.id]
    return state.queue.rank_at(standing, first) < ranking.rank_of_successor(state, job, lasts, there)
