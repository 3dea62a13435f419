"""Holds: capacity of one node that is kept for jobs of one user, until it expires or is released. Nothing runs in a
hold, and its node is not told of it: a hold is an allocation of the ledger alone. Jobs inside (`Request.within`) take
their cores, memory and GPUs out of its grant and hold nothing themselves, so neither share nor quota counts them again.
When the hold ends, each of them holds its own grant and goes on, and those that wait for room in it end.
"""

from heapq import heapify, heappop, heapreplace
from itertools import chain

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Rejected
from distributed_grid.coordinator.core.data import Inside
from distributed_grid.coordinator.core.lifecycle import attempts, outcomes
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Placement, Refusal
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.constraints import amount, unmet
from distributed_grid.coordinator.core.placement.matching import (
    Context,
    confidence,
    drained_words,
    has_room,
    labels,
    scores,
)
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Reason, Request, State
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import MILLI, Grant, Resources
from distributed_grid.protocol.text import clock, counted, format_duration, listed

NAMED = 5
"""Maximum number of cores and GPUs named in a sentence."""
TOLD = 64
"""Maximum number of watched new jobs, and of watched first ones of equal requests, that are told why they wait after a
change."""


def restore(state: GridState) -> None:
    """Assign restored allocations to the holds they are in, and arm the ends of holds."""
    for allocation in [*state.allocations.values()]:
        if allocation.within in state.allocations:
            node = state.nodes[allocation.node]
            node.inside[allocation.id] = node.allocations.pop(allocation.id)
        if allocation.hold:
            state.deadlines.arm("hold", allocation.id, expires(state.jobs[allocation.job]))
            state.holds.changed[allocation.job] = None


def expires(hold: Job) -> float:
    """Return when a hold that has begun expires."""
    return hold.started + hold.spec.time_limit


def spec(lasts: float, name: str = "") -> JobSpec:
    """Return the spec of a hold that lasts `lasts` seconds."""
    return JobSpec(("hold",), name=name, time_limit=lasts, grace=0.0, hold=True)


# --- submission -------------------------------------------------------------------------------------------------------


def refusal(state: GridState, token: int, job: Job) -> Rejected | None:
    """The rejection of a hold where there can be none, or of a job that could never run in the hold that it names;
    None: it may be submitted."""
    if job.spec.hold and state.policy.by_ray:
        what, why = "nothing can be held in this grid", "its jobs are placed by Ray (placement: ray)"
        return Rejected(token, "not-allowed", what, why, "submit the job itself: it waits for its place")
    return refusal_inside(state, token, job.request, job.user)


def refusal_inside(state: GridState, token: int, request: Request, user: str) -> Rejected | None:
    """The rejection of a request of this user that could never be met in the hold that it names; None: it can, or names
    none."""
    name = request.within
    if not name:
        return None
    hold = state.jobs.get(name)
    if hold is None:
        return Rejected(token, "not-allowed", f"{name} has ended", "what it held was given back", "grid hold list")
    if not hold.spec.hold:
        what, why = f"{name} is no hold", "it runs a command"
        return Rejected(token, "bad-value", what, why, "grid hold request makes a hold; grid hold list shows yours")
    if hold.user != user:
        what, why = f"{name} is a hold of {hold.user}", "only jobs of its own user run in it"
        return Rejected(token, "not-allowed", what, why, "grid hold request makes one of yours")
    there = state.nodes.get(hold.node)
    if there is not None and there.facts.declared is not None:
        what, why = f"nothing can be started in {name}", f"it is a hold on {hold.node}, which has no agent"
        return Rejected(token, "not-allowed", what, why, "a hold on a node with an agent takes jobs")
    missed = unmet(there.facts, labels(there), request) if there is not None else None
    if missed is not None:
        what, why = f"the node of the hold {name} does not meet the constraints", f"{hold.node}: {missed.why}"
        return Rejected(token, "never-fits", what, why, "leave out what it does not meet, or request another hold")
    wanted, whole = request.resources, outcomes.has_in_all(hold)
    if not wanted.fits(whole):
        what, why = f"asks {wanted} of the hold {name}, which has {whole}", "it could never start there"
        return Rejected(token, "never-fits", what, why, "ask for less, or for a larger hold")
    return None


# --- jobs inside ------------------------------------------------------------------------------------------------------


def free(state: GridState, hold: Allocation) -> Capacity | None:
    """Return the free capacity of a hold by device: what neither its jobs nor the node's owner use; None: its node has
    no offer."""
    node = state.nodes[hold.node]
    if node.capacity is None:
        return None
    room, grant = node.capacity.copy(), hold.grant
    room.give(grant)
    inside = [one.grant for one in node.inside.values() if one.within == hold.id]
    for one in inside:
        room.take(one)
    shared = grant.shared_milli - sum(one.shared_milli for one in inside if one.shared_core == grant.shared_core)
    most = dict.fromkeys(grant.cores, MILLI) | ({grant.shared_core: shared} if grant.shared_core >= 0 else {})
    room.cores = {core: min(milli, most[core]) for core, milli in room.cores.items() if core in most}
    gpus = {gpu.uuid: gpu.milli for gpu in grant.gpus}
    memory = {gpu.uuid: gpu.reserved(room.memory_of(gpu.uuid)) for gpu in grant.gpus}
    for one in inside:
        for gpu in one.gpus:
            gpus[gpu.uuid] -= gpu.milli
            memory[gpu.uuid] -= gpu.reserved(room.memory_of(gpu.uuid))
    room.gpus = {uuid: min(milli, gpus[uuid]) for uuid, milli in room.gpus.items() if uuid in gpus}
    room.gpu_memory = {uuid: min(free, memory[uuid]) for uuid, free in room.gpu_memory.items() if uuid in gpus}
    room.memory = min(room.memory, grant.memory - sum(one.memory for one in inside))
    room.count()
    return room


def find(state: GridState, request: Request) -> Placement | Refusal:
    """The place of this request in the hold that it names, if that has room now."""
    hold = _running(state, request.within)
    return _place(state, request, hold, _room(state, hold))


def _room(state: GridState, hold: Allocation | None) -> Capacity | None:
    """Return the capacity in which jobs can be started now; None: no job can be."""
    return free(state, hold) if hold is not None and state.nodes[hold.node].usable else None


def _place(state: GridState, request: Request, hold: Allocation | None, room: Capacity | None) -> Placement | Refusal:
    if hold is None or room is None:
        return Refusal(0)
    node = state.nodes[hold.node]
    if not has_room(node, request, state.index, room):
        return Refusal(1)
    weights = state.policy.weights_of(request)
    said = scores(node, room, request, weights, Context(state.index.mix))
    grant = room.choose(request.resources, request.constraints)
    return Placement(node.facts.name, grant, confidence(said, weights), said)


def _running(state: GridState, name: str) -> Allocation | None:
    hold = state.jobs.get(name)
    found = state.allocations.get(hold.allocation) if hold is not None else None
    return found if found is not None and found.hold and found.state is State.RUNNING else None


def serve(state: GridState) -> None:
    """Start the jobs that have room in their holds now, the most urgent first, then the oldest; those behind one that
    does not fit may start before it, since all are of one user. End those whose hold has ended."""
    changed, state.holds.changed = state.holds.changed, {}
    for name in changed:
        if (inside := state.holds.waiting.get(name)) is None:
            continue
        if name in state.jobs:
            _tell(state, inside, _serve(state, name, inside))
            continue
        for job in sorted((state.jobs[one] for one in inside.jobs), key=lambda job: state.turns[job.id]):
            text = f"its hold {name} has ended before it could start there"
            outcomes.finish(state, job, Outcome(cause=Cause.NOT_PLACED, text=text, started=job.has_begun))


def _serve(state: GridState, name: str, inside: Inside) -> list[Request]:
    """Start all that have room. Returns the requests that have none."""
    refused: list[Request] = []
    hold = _running(state, name)
    room = _room(state, hold)
    heads = [(-request.priority, head, request) for request in [*inside.lines] if (head := inside.first(request))]
    heapify(heads)
    while heads:
        priority, (_, first), request = heads[0]
        found = _place(state, request, hold, room)
        if not isinstance(found, Placement):
            refused.append(request)
            heappop(heads)
            continue
        attempts.start(state, state.jobs[first], found)
        room = _room(state, hold)
        if (head := inside.first(request)) is not None:
            heapreplace(heads, (priority, head, request))
        else:
            heappop(heads)
    return refused


def _tell(state: GridState, inside: Inside, refused: list[Request]) -> None:
    """End refused jobs that must not wait. Publish the reasons of new jobs and of the first one with each request, for
    those that are watched."""
    why: dict[Request, Reason] = {}

    def words(request: Request) -> Reason:
        if request not in why:
            why[request] = reason(state, request)
        return why[request]

    for request in [one for one in refused if one.immediate]:
        for job in [state.jobs[name] for name, (one, _) in inside.jobs.items() if one == request]:
            if not (job.retried or job.evicted):
                text = words(request).text
                outcomes.finish(state, job, Outcome(cause=Cause.NOT_PLACED, text=text, started=False))
    firsts = (head[1] for request in refused if (head := inside.first(request)) is not None)
    watched = ([name for name in names if name in state.watched] for names in (inside.new, firsts))
    for name in chain.from_iterable(names[:TOLD] for names in watched):
        job = state.jobs[name]
        if job.reason != (now := words(job.request)):
            state.waits_for(job, now)
            state.publish(job)
    inside.new.clear()


# --- ends -------------------------------------------------------------------------------------------------------------


def due(state: GridState, name: str) -> None:
    """End a hold that has expired, or was told to end."""
    allocation = state.allocations.get(name)
    if allocation is None:
        return
    job, stop = state.jobs[allocation.job], allocation.stop
    if stop is None and state.now < expires(job):
        state.deadlines.arm("hold", name, expires(job))
        return
    if stop is not None:
        cause, text = Cause(stop.cause), stop.text
    else:
        cause, text = Cause.TIME_LIMIT, f"it was held for {format_duration(job.spec.time_limit)}"
    outcome = Outcome(cause=cause, text=text, seconds=max(0.0, state.now - allocation.started))
    outcomes.over(state, job, outcome, allocation, text or cause.value)


def rebooted(state: GridState, node: Node) -> None:
    """A node was booted again, and all that ran there is over: its holds go on with those of their cores and GPUs that
    are still there. One that has none of them any more ends, and so does what waits for more than is left."""
    for hold in [one for one in node.allocations.values() if one.hold and one.boot not in ("", node.facts.boot_id)]:
        job, name = state.jobs[hold.job], node.facts.name
        hold.boot = node.facts.boot_id
        grant = _still_there(hold.grant, node)
        if grant == hold.grant:
            state.changed(job, hold)
            continue
        cores = {*hold.grant.cores, hold.grant.shared_core} - {*grant.cores, grant.shared_core}
        gpus = {gpu.uuid for gpu in hold.grant.gpus} - {gpu.uuid for gpu in grant.gpus}
        gone = [f"core {core}" for core in sorted(cores)] + [f"GPU {uuid}" for uuid in sorted(gpus)]
        text = f"{name} was rebooted, and has no {listed(gone, NAMED)} any more"
        if not (grant.cores or grant.shared_milli or grant.gpus):
            outcome = Outcome(cause=Cause.REBOOTED, text=text, seconds=max(0.0, state.now - hold.started))
            outcomes.over(state, job, outcome, hold, text)
            continue
        state.reduce(hold, grant)
        state.tell(job, f"{text}: it holds {grant.resources} from now on")
        state.changed(job, hold)
        inside = state.holds.waiting.get(job.id)
        for one in [*inside.jobs] if inside is not None else []:
            waits = state.jobs[one]
            if not waits.request.resources.fits(grant.resources):
                why = f"its hold {job.id} has only {grant.resources} since {name} was rebooted"
                outcomes.finish(state, waits, Outcome(cause=Cause.NOT_PLACED, text=why, started=waits.has_begun))


def _still_there(grant: Grant, node: Node) -> Grant:
    """The part of a grant whose cores and GPUs its node has."""
    has, devices = {*node.facts.cores}, {gpu.uuid for gpu in node.facts.gpus}
    shared = grant.shared_core in has
    return replace(
        grant,
        cores=tuple(core for core in grant.cores if core in has),
        shared_core=grant.shared_core if shared else -1,
        shared_milli=grant.shared_milli if shared else 0,
        gpus=tuple(gpu for gpu in grant.gpus if gpu.uuid in devices),
    )


# --- explanations -----------------------------------------------------------------------------------------------------


def reason(state: GridState, request: Request) -> Reason:
    """Why a request waits for its hold."""
    name = request.within
    job, hold = state.jobs.get(name), _running(state, name)
    if job is None:
        return Reason("Hold", f"its hold {name} has ended")
    if hold is None:
        waits = job.reason
        more = f": {waits.text}" if waits is not None else ""
        return Reason("Hold", f"its hold {name} {'has not begun' if job.state is State.WAITING else 'ends'}{more}")
    node = state.nodes[hold.node]
    if (away := _away(node)) or (room := free(state, hold)) is None:
        return Reason("Hold", f"its hold {name} is on {hold.node}, which {away or 'offers nothing now'}")
    kind = room.lacks(request.resources, request.constraints)
    if not kind:
        return Reason("Hold", f"{hold.node}, where its hold {name} is, does not meet its constraints now")
    used = sum(getattr(one.grant.resources, kind) for one in node.inside.values() if one.within == hold.id)
    left = getattr(room.left, kind)
    owner = getattr(hold.grant.resources, kind) - used - left
    text = f"{amount(kind, request.resources)} needed, {amount(kind, room.left)} free in its hold {name}"
    more = f"; the owner of {hold.node} uses some of it" if owner > 0 and not _in_backoff(node) else ""
    return Reason("Hold", text + more)


def _away(node: Node) -> str:
    if node.state is not NodeState.UP:
        return f"is {node.state.value}"
    if node.facts.declared is not None:
        return "has no agent"
    if node.orders.drain is not None:
        return drained_words(node.orders.drain)
    return "" if node.usable else "takes no new jobs now"


def _in_backoff(node: Node) -> bool:
    return bool(node.closed)


def words(state: GridState, hold: Allocation) -> str:
    """Describe a running hold: its resources, when it expires, and what is free."""
    job, node = state.jobs[hold.job], state.nodes[hold.node]
    inside = sum(one.within == hold.id for one in node.inside.values())
    room = free(state, hold)
    left = room.left if room is not None else Resources()
    jobs = f", {counted(inside, 'job')} inside" if inside else ""
    ends = clock(expires(job), state.now)
    return f"it holds {hold.grant.resources} of {hold.node} until {ends}; {left or 'nothing'} of that is free{jobs}"
