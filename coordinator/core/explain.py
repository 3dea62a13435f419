"""Why a job is where it is, or where a request would go: with the functions that decide it, so that what is said is
what is done. Nothing is changed here.
"""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import reasons, views
from distributed_grid.coordinator.core.matching import (
    Placement,
    amount,
    blocker,
    confidence,
    could_ever,
    place,
    scores,
    usable,
)
from distributed_grid.coordinator.core.model import Job, Node
from distributed_grid.protocol.jobs import Reason, Request, State
from distributed_grid.protocol.messages import FunnelStep, NodeVerdict, Why
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import MILLI, Resources

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

VERDICTS = 200
"""So many nodes are judged in words; the funnel counts them all."""


def why(ledger: "Ledger", job_id: str | None, request: Request | None, now: float) -> Why:
    """The explanation for a live job, or for a request that nobody has made yet; its `id` is the caller's to set."""
    if job_id is None:
        assert request is not None, "neither a job nor a request is asked about"
        return _wanted(ledger, request, None)
    job = ledger.jobs.get(job_id)
    if job is None:
        return Why(id=0, reason=Reason("Ended", f"{job_id} has ended; see its outcome and story"))
    if job.state is State.WAITING:
        return _wanted(ledger, job.request, job)
    return _placed(ledger, job)


def _placed(ledger: "Ledger", job: Job) -> Why:
    said = ledger.placements.get(job.allocation)
    verdict = NodeVerdict(job.node, True, "it was granted before the coordinator started")
    if said is not None:
        verdict = NodeVerdict(said.node, True, "the best of the nodes that had room", said.confidence, said.scores)
    return Why(
        id=0,
        reason=Reason("Placed", f"it is {job.state.value} on {job.node}"),
        verdicts=(verdict,),
        chosen=job.node,
        grant=job.grant,
        job=views.job_view(job, None),
    )


def _wanted(ledger: "Ledger", request: Request, job: Job | None) -> Why:
    found = place(ledger.nodes, ledger.index, request, ledger.policy)
    chosen = found if isinstance(found, Placement) else None
    ahead = ledger.queue.ahead(job.id) if job is not None else _ahead(ledger, request)
    if job is not None:
        reason = reasons.now_for(ledger, job) or Reason("Resources")
    elif chosen is not None:
        reason = Reason("Fits", f"it would start now on {chosen.node}")
    else:
        reason = reasons.find(ledger, request)
    return Why(
        id=0,
        reason=reason,
        funnel=_funnel(ledger, request),
        verdicts=_verdicts(ledger, request),
        chosen=chosen.node if chosen is not None else "",
        grant=chosen.grant if chosen is not None else None,
        ahead=ahead,
        hint="" if chosen is not None else _hint(ledger, request),
        job=views.job_view(job, reason) if job is not None else None,
    )


def _ahead(ledger: "Ledger", request: Request) -> int:
    """How many waiting jobs would be served before a new one."""
    return sum(line.count for line in ledger.queue.lines.values() if line.request.priority >= request.priority)


def _funnel(ledger: "Ledger", request: Request) -> tuple[FunnelStep, ...]:
    """From all nodes to those that fit, one condition after the other."""
    wanted = request.resources
    nodes = list(ledger.nodes.values())
    steps = [FunnelStep("known", len(nodes))]
    nodes = _step(steps, "large enough", nodes, [node for node in nodes if could_ever(node.facts, wanted)])
    up = [node for node in nodes if node.state is NodeState.UP]
    away: dict[str, int] = {}
    for node in nodes:
        if node.state is not NodeState.UP:
            away[node.state.value] = away.get(node.state.value, 0) + 1
    steps.append(FunnelStep("up", len(up), ", ".join(f"{count} {state}" for state, count in away.items())))
    left = _step(steps, "offering", up, [node for node in up if usable(node)])
    for kind in ("gpu", "cpu", "memory"):
        if getattr(wanted, kind):
            single = Resources(**{kind: getattr(wanted, kind)})
            what = f"with {amount(kind, wanted)} free"
            left = _step(steps, what, left, [n for n in left if n.room is not None and n.room.fits(single)])
    return tuple(steps)


def _step(steps: list[FunnelStep], what: str, before: list[Node], after: list[Node]) -> list[Node]:
    lost = ""
    if len(after) < len(before):
        kept = {node.facts.name for node in after}
        names = [node.facts.name for node in before if node.facts.name not in kept]
        lost = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    steps.append(FunnelStep(what, len(after), lost))
    return after


def _verdicts(ledger: "Ledger", request: Request) -> tuple[NodeVerdict, ...]:
    """What is said of each node: those that fit first, the surest foremost."""
    good: list[NodeVerdict] = []
    bad: list[NodeVerdict] = []
    for name in ledger.index.candidates(request.resources, VERDICTS)[:VERDICTS]:
        parts = scores(ledger.nodes[name], request)
        good.append(NodeVerdict(name, True, "", confidence(parts, ledger.policy.weights), parts))
    for name, node in ledger.nodes.items():
        if len(good) + len(bad) >= VERDICTS:
            break
        code, text = blocker(node, request.resources)
        if code:
            bad.append(NodeVerdict(name, False, text))
    good.sort(key=lambda verdict: (-verdict.confidence, verdict.node))
    return tuple(good + bad)


def _hint(ledger: "Ledger", request: Request) -> str:
    """The smallest plain thing that would help: less of one kind, tried before it is said."""
    wanted = request.resources
    best: tuple[float, str] | None = None
    for kind in ("memory", "cpu", "gpu"):
        asked = getattr(wanted, kind)
        most = _most_beside(ledger, wanted, kind) if asked else 0
        if 0 < most < asked and (best is None or most / asked > best[0]):
            less = _with(wanted, kind, most)
            names = ledger.index.candidates(less, 1)
            if names:
                best = (most / asked, f"with {amount(kind, less)} it would start now on {names[0]}")
    if best is not None:
        return best[1]
    if not ledger.nodes:
        return "start an agent on a machine that may lend: grid agent run"
    away = [node for node in ledger.nodes.values() if node.state is not NodeState.UP]
    able = next((node.facts.name for node in away if could_ever(node.facts, wanted)), "")
    return f"bring back {able}: it could lend this" if able else ""


def _with(wanted: Resources, kind: str, value: int) -> Resources:
    parts = {"cpu": wanted.cpu, "memory": wanted.memory, "gpu": wanted.gpu}
    return Resources(**(parts | {kind: value}))


def _most_beside(ledger: "Ledger", wanted: Resources, kind: str) -> int:
    """The most of one kind that a node has now which has enough of all the others."""
    others = _with(wanted, kind, 0)
    most = 0
    for node in ledger.nodes.values():
        if not usable(node) or node.room is None or not node.room.fits(others):
            continue
        if kind == "memory":
            value = node.room.free_memory
        elif kind == "cpu":
            value = node.room.whole * MILLI or max(node.room.parts.values(), default=0)
        else:
            value = node.room.whole_gpus * MILLI or max(node.room.gpu_parts.values(), default=0)
        most = max(most, min(value, getattr(wanted, kind)))
    return most
