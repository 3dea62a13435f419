"""Why jobs wait: a code and a sentence with numbers, for the first job of each line; the jobs behind it wait for their
turn. For jobs that are watched the sentences are made every second, otherwise on request: to make 64 of them takes 80
ms of CPU on 150 nodes. Reasons decide nothing."""

import math
from collections.abc import Collection, Sequence

from distributed_grid.coordinator.core.explain.feasible import can_fit, never_fits
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.lifecycle.attempts import time_suspended
from distributed_grid.coordinator.core.model import AwaitsHold, Earmarked, HeldBack, Job, Node, Placement
from distributed_grid.coordinator.core.placement.blockers import blocker, blocker_words
from distributed_grid.coordinator.core.placement.constraints import amount
from distributed_grid.coordinator.core.placement.matching import gang_candidates, has_room
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.coordinator.core.queue import dependencies, reservations, rights
from distributed_grid.coordinator.core.queue.queue import Line, Members
from distributed_grid.coordinator.core.state import REASONS_EVERY, GridState
from distributed_grid.protocol.groups import member_id
from distributed_grid.protocol.jobs import Reason, Request, State
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.placement import called
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import clock, counted, listed

LINES = 64
"""Maximum number of watched lines, and of watched new jobs, with reasons after a pass."""
NODES = 200
"""Maximum number of nodes that are checked one by one; of more, only those with the most room."""
LAST = (1, math.inf, 0)
"""Last in the order of service."""
NAMED = 3
"""Maximum number of nodes named in a sentence."""
UNJOINED = 5
"""And of those that failed to join the Ray cluster of a boost."""
Blocked = tuple[Node, str]
"""A node, and the code of why a request cannot start there (`blocker`)."""


def find(state: GridState, request: Request, job: str = "", away: int = -1) -> Reason:
    """Why this request cannot start now. `job`: whose it is, if it waits already; `away`: how many nodes cannot be
    reached, where that was counted before."""
    wanted = request.resources
    if state.loss:
        return Reason("Store", "the coordinator's store has lost something, and an operator chooses; see `grid status`")
    if state.store_failing:
        return Reason("Store", "the coordinator cannot store what it would start; see `grid status`")
    if not state.nodes:
        return Reason("NoOffers", "no node is known yet; start an agent with `grid agent run`")
    could = can_fit(state, request)
    if could < max(1, request.gang) and state.policy.scaling.pools:
        from distributed_grid.coordinator.core.scaling.packing import pool_for  # only where there are pools

        if name := pool_for(state, request):
            if could:
                text = f"needs {wanted} on each of {request.gang} nodes; {could} could, and machines of pool {name}"
                return Reason("Machine", text)
            return Reason("Machine", f"no node is large enough or as asked for; a machine of pool {name} would be")
    if not could:
        what, why, hint = never_fits(state, request)
        if state.index.whose(request.user) is not None:
            return Reason("NeverFits", "; ".join(filter(None, (what, why, hint))))
        return Reason("NeverFits", what if request.constraints is None else f"{what}; {why}")
    if could < request.gang:
        return Reason("NeverFits", f"needs {wanted} on each of {request.gang} nodes; {could} could")
    if job in state.queue and (quota := rights.of(state, state.jobs[job])) is not None:
        return rights.reason(state, quota)
    bounds = state.index.affinity.bounds(request.constraints)
    if bounds.missing:
        return Reason("Affinity", f"waits for {called(bounds.missing)} to have a place, to be near to it")
    away = away if away >= 0 else _away(state)
    if away == len(state.nodes):
        return Reason("NoOffers", f"{f'all {away} nodes' if away > 1 else 'the only node'} cannot be reached")
    asked = _in_question(state, request)
    few = len(asked) <= NODES
    looked = [state.nodes[name] for name in (asked if few else state.index.most())]
    said: dict[str, list[Blocked]] = {}
    for node in looked:
        code = blocker(node, request, bounds)
        said.setdefault(code, []).append((node, code))
    gone = f"; {counted(away, 'node')} cannot be reached" if away else ""
    by_ray = _by_ray(state, request, said.get("ray", ()))
    unjoined = _unjoined(request, said.get("unjoined", ()))
    if request.gang and len(state.index):
        return _for_a_gang(state, request, job, f"{by_ray and f'; {by_ray}'}{gone}")
    if "" in said:
        return _kept(state, request, job) or _ends_before(
            state, request, job, [node.facts.name for node, _ in said[""]]
        )
    if busy := said.get("busy"):
        own = reservations.kept_for(state, job) if job else None
        kept = f"; {reservations.words(state, own)}" if own is not None else ""
        unmoved = state.preempting.refusals.get(request, "")
        more = "".join(f"; {one}" for one in (unmoved, by_ray, unjoined) if one)
        return Reason("Resources", f"needs {wanted}; {_capacities(busy, wanted)}{kept}{gone}{more}")
    if by_ray:
        return Reason("Ray", f"{by_ray}{gone}")
    if unjoined:
        return Reason("Unjoined", f"{unjoined}{gone}")
    for code in ("withheld", "declined"):
        if found := said.get(code):
            texts = [f"{node.facts.name}: {blocker_words(node, request, code)}" for node, code in found[:NAMED]]
            names = listed(texts, NAMED, len(found), "; ")
            return Reason("Thresholds", f"{names}{gone}")
    if beside := [*said.get("not-near", ()), *said.get("not-apart", ())]:
        return Reason("Affinity", f"{_names(request, beside)}{gone}")
    for code, name in (("set-aside", "SetAside"), ("drained", "Drained")):
        if closed := said.get(code):
            return Reason(name, f"{_names(request, closed)}{gone}")
    if not len(state.index):
        reached = counted(len(state.nodes) - away, "node")
        return Reason("NoOffers", f"{reached} can be reached, and nothing is offered now{gone}")
    if not few:
        offering = counted(len(state.index), "node")
        return Reason("Resources", f"needs {wanted}; none of {offering} that offer has it free{gone}")
    able = counted(sum(len(found) for code, found in said.items() if code not in ("too-small", "not-asked")), "node")
    return Reason("NoOffers", f"needs {wanted}; {able} could ever lend it, and none offers it now{gone}")


def _for_a_gang(state: GridState, request: Request, job: str, gone: str) -> Reason:
    """Why a gang waits: the nodes that have room, of those it needs."""
    fitting = gang_candidates(state.nodes, state.index, request, state.policy)
    if len(fitting) >= request.gang:
        return _kept(state, request, job) or _ends_before(state, request, job, fitting)
    names = listed(fitting, NAMED) or "no node"
    has = "have" if len(fitting) > 1 else "has"
    unmoved = state.preempting.refusals.get(request, "")
    wanted = f"{request.resources} on each of {request.gang} nodes at once"
    return Reason("Resources", f"needs {wanted}; {names} {has} it free{gone}{unmoved and f'; {unmoved}'}")


def _ends_before(state: GridState, request: Request, job: str, names: Sequence[str]) -> Reason:
    """Which of these nodes with room are machines that end before it may be over, or that it is about to start."""
    if job in state.queue and state.scaling.joined:
        from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

        needs = lives.needs(state, state.queue.line(job))
        late = lives.ending(state, request, needs, state.now)
        if said := [
            f"{name} has room, but {lives.words(state, name, needs, state.now)}" for name in names if name in late
        ]:
            return Reason("Machine", listed(said[:NAMED], NAMED, len(said), "; "))
    return Reason("Resources", "its turn comes with the next pass")


def _kept(state: GridState, request: Request, job: str) -> Reason | None:
    """Return the reservation that keeps this request from a node with room, as a reason; None: there is none."""
    for kept in state.reservations.by_job.values():
        node = state.nodes[kept.node]
        if node.capacity is None or not has_room(node, request, state.index):
            continue
        placement = Placement(kept.node, node.capacity.choose(request.resources, request.constraints), 0.0, {})
        ask = reservations.asked(state, job) if job else reservations.Ask(request, 0.0, LAST)
        if reservations.in_the_way(state, state.reservations, ask, placement, state.now) is not None:
            first = state.jobs[kept.job]
            what = f"{kept.node} is kept for {kept.job}, which needs {first.request.resources}"
            if kept.at == math.inf:
                return Reason("Reserved", what)
            until = clock(kept.at, state.now)
            return Reason("Reserved", f"{what} and starts there by {until}; a time limit that ends before would do")
    return None


def _away(state: GridState) -> int:
    """Return the number of nodes that cannot be reached."""
    return sum(node.state is not NodeState.UP for node in state.nodes.values())


def _in_question(state: GridState, request: Request) -> Collection[str]:
    """The nodes that may meet the constraints, as far as the index tells."""
    if request.constraints is not None and request.constraints.only:
        return [name for name in request.constraints.only if name in state.nodes]
    trait = state.index.trait(request)
    if trait is None:
        return state.nodes
    having = state.index.having(trait)
    return sorted(having) if len(having) <= NODES else having


def _by_ray(state: GridState, request: Request, found: Sequence[Blocked]) -> str:
    """Describe why Ray refuses reservations on these nodes; empty: there are none."""
    if found and state.ray_trouble:
        return f"Ray is to reserve it, and cannot be asked: {state.ray_trouble}"
    return _names(request, found) if found else ""


def _unjoined(request: Request, found: Sequence[Blocked]) -> str:
    """Describe why boosts failed on these nodes; empty: there are none."""
    if not found:
        return ""
    return f"{_names(request, found, UNJOINED)}; left alone for a while (--only-source NODE tries one at once)"


def _names(request: Request, found: Sequence[Blocked], most: int = NAMED) -> str:
    """List the first of these nodes, with why the request cannot start there."""
    texts = [f"{node.facts.name} {blocker_words(node, request, code)}" for node, code in found[:most]]
    return listed(texts, most, len(found), "; ")


def _capacities(busy: Sequence[Blocked], wanted: Resources) -> str:
    """Describe the free capacity of the nodes with the most room."""
    kinds = [kind for kind in ("gpu", "cpu", "memory") if getattr(wanted, kind)]
    capacities = []
    for node, _ in busy:
        assert node.capacity is not None
        left = node.capacity.left
        capacities.append((tuple(-getattr(left, kind) for kind in kinds), node.facts.name, left))
    capacities.sort(key=lambda capacity: capacity[:2])
    free = [
        f"{name} has {' and '.join(amount(kind, left) for kind in kinds)} free" for _, name, left in capacities[:NAMED]
    ]
    return listed(free, NAMED, len(capacities))


def now_for(state: GridState, job: Job) -> Reason | None:
    """Why this job waits now; None: it does not."""
    if job.state is not State.WAITING:
        return None
    if state.is_held_back(job):
        leader = state.jobs.get(member_id(job.group, 0)) if job.request.gang else None
        if leader is not None and leader.id in state.queue and isinstance(job.phase, HeldBack):
            return of_line(state, state.queue.line(leader.id))
        return dependencies.reason(state, job)
    if isinstance(job.phase, Earmarked):
        return earmarks.reason(job, state.now)
    if isinstance(job.phase, AwaitsHold):
        return holds.reason(state, job.request)
    line = state.queue.line(job.id)
    if line.excluded or state.queue.head(line)[1] == job.id:
        return _taken(state, job, of_line(state, line))
    return _taken(state, job, _ahead(state, job))


def of_line(state: GridState, line: Line) -> Reason:
    """Why the first of a line waits."""
    return line.reason or find(state, line.request, state.queue.head(line)[1])


def _taken(state: GridState, job: Job, why: Reason) -> Reason:
    """The reason, with the job that preempted this one, if that has not ended."""
    taker = state.jobs.get(job.preempted_by)
    if taker is None:
        return why
    until = "it ends"
    if taker.started and taker.spec.time_limit:
        ends = taker.started + taker.spec.time_limit + time_suspended(taker, state.now)
        until = f"{clock(ends, state.now)} at the latest"
    who = f"{taker.id} ({taker.request.priority.word}, {taker.user})"
    return Reason(why.code, f"{who} has its place until {until}; {why.text}")


class Wording:
    """Why jobs and groups wait, for one answer about many of them: at most LINES lines are worded, the first that are
    asked about, and each once."""

    def __init__(self, state: GridState) -> None:
        self._state = state
        self._known: dict[Line, Reason | None] = {}
        self._held: dict[Request, Reason] = {}
        """Of those that wait for room in a hold."""

    def of(self, job: Job) -> Reason | None:
        """Why this job waits; None: it does not, or there were LINES others."""
        state = self._state
        if isinstance(job.phase, AwaitsHold):
            return self._in_hold(job.request)
        if job.id not in state.queue:
            return now_for(state, job) if job.id in state.jobs else None
        line = state.queue.line(job.id)
        if not line.excluded and state.queue.head(line)[1] != job.id:
            return now_for(state, job)
        why = self._of_line(line)
        return _taken(state, job, why) if why is not None else None

    def of_group(self, members: Members) -> Reason | None:
        """Why members of a group wait: as the line does of the first of them in the queue."""
        state = self._state
        if not members.states.get(State.WAITING):
            return None
        last = None
        for name in members.live:
            last = state.jobs[name]
            if last.id in state.queue:
                return self._of_line(state.queue.line(last.id))
            if isinstance(last.phase, AwaitsHold):
                return self._in_hold(last.request)
        return dependencies.reason(state, last) if last is not None else None

    def _in_hold(self, request: Request) -> Reason:
        if request not in self._held:
            self._held[request] = holds.reason(self._state, request)
        return self._held[request]

    def _of_line(self, line: Line) -> Reason | None:
        if line not in self._known and len(self._known) < LINES:
            self._known[line] = of_line(self._state, line)
        return self._known.get(line)


def _ahead(state: GridState, job: Job) -> Reason:
    ahead = state.queue.ahead(job.id)
    return Reason("Priority", f"{counted(ahead, 'job')} {'is' if ahead == 1 else 'are'} ahead in the queue")


def announce(state: GridState, refused: list[Line], fresh: dict[str, None]) -> None:
    """After a pass, publish why refused lines and new jobs wait, for those that are watched."""
    published = 0
    away = -1
    for line in refused:
        if not _is_watched(state, line):
            continue
        if line.reason is None:
            away = _away(state) if away < 0 else away
            line.reason = find(state, line.request, state.queue.head(line)[1], away)
        _publish(state, line)
        published += 1
        if published == LINES:
            break
    published = 0
    for name in fresh:
        job = state.jobs.get(name) if name in state.watched else None
        if job is not None and job.state is State.WAITING and job.reason is None:
            state.waits_for(job, now_for(state, job))
            state.publish(job)
            published += 1
            if published == LINES:
                break
    if state.queue.lines:
        state.deadlines.arm("reasons", "", state.now + REASONS_EVERY)


def _is_watched(state: GridState, line: Line) -> bool:
    """Whether the first job of a line is watched."""
    return state.queue.head(line)[1] in state.watched


def _publish(state: GridState, line: Line) -> None:
    job = state.jobs[state.queue.head(line)[1]]
    why = _taken(state, job, line.reason) if line.reason is not None else None
    if job.reason != why:
        state.waits_for(job, why)
        state.publish(job)


def renew(state: GridState, line: Line) -> None:
    """Update the reason of a line if its first job is watched."""
    if _is_watched(state, line):
        line.reason = find(state, line.request, state.queue.head(line)[1])
        _publish(state, line)
    else:
        line.reason = None


def refresh(state: GridState) -> None:
    """Update the reasons of lines whose first job is watched, and drop those of the others."""
    away, count = _away(state), 0
    for line in state.queue.lines.values():
        if not line.blocked:
            continue
        if not _is_watched(state, line):
            line.reason = None
        elif count < LINES:
            line.reason = find(state, line.request, state.queue.head(line)[1], away)
            _publish(state, line)
            count += 1
