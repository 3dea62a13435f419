"""How long the machines of pools live: where the end of a machine would end a job early, and whether another machine
could be created for it instead. Read-only."""

import math

from distributed_grid.coordinator.core.lifecycle.attempts import is_restartable
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement.catalogue import Shown, Without
from distributed_grid.coordinator.core.placement.matching import gang_candidates
from distributed_grid.coordinator.core.queue.queue import Line
from distributed_grid.coordinator.core.scaling.packing import Ask, Seen, View
from distributed_grid.coordinator.core.scaling.plan import could_come, last
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.placement import NO_CONSTRAINTS
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import NAMED
from distributed_grid.protocol.scaling.pools import Scaling, ScalingMode
from distributed_grid.protocol.text import format_duration

JUST_JOINED = 60.0
"""For how long after a machine has joined it does not matter that it took longer to boot than usual (s)."""
OFFERS_WITHIN = 60.0
"""How long a machine counts as capacity without an offer, after its agent joined or the coordinator started (s)."""


def jobs_of(state: GridState, line: Line) -> tuple[str, ...]:
    """The first jobs of a line, the very first one in front."""
    head = state.queue.head(line)[1]
    others = [name for _, name in line.heap[: 4 * NAMED] if name != head and state.queue.turns.get(name) is not None]
    return (head, *others)


def needs(state: GridState, line: Line) -> float:
    """The longest duration of the first jobs of a line (s; 0: unlimited): the predicted one, if it is known for all of
    them and they may be run again should it be wrong, but at most their time limit; else the limit."""
    jobs = [state.jobs[name] for name in jobs_of(state, line)]
    if jobs[0].spec.boost is not None:
        return 0.0  # it is lent for so long at the most
    if not all(job.planned and is_restartable(job) for job in jobs):
        return line.lasts
    return min(line.lasts or math.inf, max(job.planned for job in jobs))


def left(state: GridState, node: str, now: float) -> float:
    """Return how long a node takes jobs: until those of its machine are told to leave (s; infinite: it is no
    machine)."""
    machine = state.scaling.machines.get(node)
    return _leaves(state, machine) - now if machine is not None else math.inf


def _leaves(state: GridState, machine: Machine) -> float:
    pool = state.policy.scaling.pool(machine.pool)
    return machine.ends_by - last(pool) if pool is not None and machine.ends_by else math.inf


def ending(state: GridState, request: Request, needs: float, now: float) -> frozenset[str]:
    """Return the machines that end within `needs` seconds, the longest run time of a job (0: unlimited, so that none
    does). Machines that the request names do not count, nor those that have just joined and whose life, counted from
    their creation, is long enough."""
    if not needs:
        return frozenset()
    named, found = request.nodes, list[str]()
    for name in state.scaling.joined:
        machine = state.scaling.machines[name]
        leaves = _leaves(state, machine)
        if now + needs <= leaves or name in named:
            continue
        if now >= machine.joined + JUST_JOINED or needs > leaves - machine.born:
            found.append(name)
    return frozenset(found)


def without(state: GridState, names: frozenset[str]) -> Shown:
    """The nodes that offer, but for these."""
    return Without(state.index, names) if names else state.index


def members(state: GridState, request: Request, needs: float, now: float) -> int:
    """Return how many members of a gang have room now, on nodes that exist for long enough; 0 for a job that is no
    gang."""
    if not request.gang:
        return 0
    index = without(state, ending(state, request, needs, now))
    return min(request.gang, len(gang_candidates(state.nodes, index, request, state.policy)))


def may_come(state: GridState, request: Request, needs: float, now: float) -> bool:
    """Whether the grid creates a machine for a job that may run this long (s), or one is on its way."""
    scaling, asked = state.policy.scaling, request.constraints or NO_CONSTRAINTS
    if scaling.mode is not ScalingMode.ACT or state.halted or request.immediate or asked.near:
        return False
    known = state.scaling
    view = View(
        seen={name: _seen(state, name, now) for name in (*known.joined, *known.draining)},
        boots=known.boot_times(),
        as_joined=known.as_joined_now(),
        backoffs=known.backoffs_now(),
        paused=pauses(state, scaling),
        unrecorded=unrecorded(state),
    )
    ask = Ask(request=request, count=1, lasts=needs, have=members(state, request, needs, now))
    return could_come(view, ask, known.machines.values(), scaling, now)


def offer_again(state: GridState) -> None:
    """Have the next pass reconsider the machines that end before a waiting job is over: there may be no other for it
    any more."""
    known, lines = state.scaling, state.queue.lines.values()
    if not known.joined or not (longest := max((needs(state, line) for line in lines if line.blocked), default=0.0)):
        return
    for name in known.joined:
        if name in state.index and left(state, name, state.now) < longest:
            state.freed_nodes[name] = None


# --- what may come ----------------------------------------------------------------------------------------------------


def offers(node: Node) -> bool:
    """Whether a node offers something now."""
    return node.state is NodeState.UP and node.synced and node.offer is not None


def is_coming(state: GridState, node: Node, now: float) -> bool:
    """Whether a machine's node offers something, or may do so in a moment."""
    return offers(node) or now < state.scaling.offerless.get(node.facts.name, now) + OFFERS_WITHIN


def _seen(state: GridState, name: str, now: float) -> Seen:
    node, cause = state.nodes.get(name), state.scaling.machines[name].cause
    if node is None:
        return Seen(joined=False, cause=cause)
    held = len(node.known) + len(node.earmarks)
    return Seen(usable=offers(node), coming=is_coming(state, node, now), allocations=held, cause=cause)


def pauses(state: GridState, scaling: Scaling) -> dict[str, str]:
    """Pools in which nothing is created now, and why."""
    found = {}
    for pool in scaling.pools:
        provider = state.scaling.providers.get(pool.provider)
        if (one := state.scaling.paused.get(pool.name)) is not None:
            found[pool.name] = f"by {one.by}{f': {one.why}' if one.why else ''}" if one.by else one.why
        elif provider is not None and provider.halted:
            found[pool.name] = f"provider {pool.provider}: {provider.trouble}"
        elif provider is None or not provider.answered:
            trouble = provider.trouble if provider is not None else ""
            found[pool.name] = f"provider {pool.provider} has not told its machines yet{trouble and ': '}{trouble}"
    return found


def unrecorded(state: GridState) -> dict[str, int]:
    """Return by pool the number of machines of this grid that no record knows."""
    found: dict[str, int] = {}
    for provider in state.scaling.providers.values():
        for one in provider.unknown:
            found[one.pool] = found.get(one.pool, 0) + 1
    return found


# --- for people -------------------------------------------------------------------------------------------------------


def words(state: GridState, node: str, needs: float, now: float) -> str:
    """Describe what keeps a job that may run this long (s) from a machine that ends before."""
    there = format_duration(max(1.0, round(left(state, node, now))))
    return f"its machine has {there} left for jobs, and this may take {format_duration(round(needs))}"
