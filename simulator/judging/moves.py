"""Checks moves. For jobs that are moved before the owner of their node comes: from the receipts on disk, the plan of
each job, and the forecasts of the nodes, independently of the ledger. For all moves: each has a reason, gains more than
it costs, and keeps to the policy's times; no lender borrows; and if nothing changes, none is made."""

from collections.abc import Collection, Container, Mapping, Sequence

from distributed_grid.coordinator.core.model import Job, Placement
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import split_member
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.resources import MILLI
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.protocol.sharing.policies import Balancing
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.plan import NodePlan
from distributed_grid.simulator.workload import JobPlan

HOUR = 3600.0
HOLD_MOST = 3600.0
CLOSE = 1e-6
MARGIN = 1.5
CONVERGES = 45.0
"""Seconds in which all moves are made that anything leads to, except of a job that is protected for longer."""
SLACK = 5.0
"""Seconds from the end of that protection to the next pass that makes moves."""


class Moves:
    """The moves of one grid, in the order of their time. `budget`: core-seconds that may be lost in any hour."""

    def __init__(self, balancing: Balancing, budget: float) -> None:
        self._values, self._budget = balancing.values, budget
        self._lent: dict[str, float] = {}
        self._last: dict[str, tuple[str, Move]] = {}
        self._lenders: set[str] = set()
        self._borrowers: set[str] = set()
        self._rests: object = None
        self._since = 0.0

    def restored(self, lent: Mapping[str, float]) -> None:
        """A new life of the coordinator has these boosts that the grid lends by itself, each with when that began: a
        coordinator can be killed between the commit of a move and what follows from it."""
        self._lent = {**lent, **self._lent}

    def made(self, moves: Sequence[Move], life: str, now: float, attempts: Collection[str] = ()) -> None:
        """A pass of this life of a coordinator has made these. `attempts`: all that ran: with each that had to leave,
        its job is protected for longer."""
        values = self._values
        if len(moves) > values.moves:
            raise Violation(moves[0].source, f"{len(moves)} moves are made in one pass, {values.moves} may be")
        for move in moves:
            what = f"{move.kind} of {move.boost or move.job} ({move.reason})"
            if not (any(map(str.isdigit, move.reason)) and move.undone_by and move.gain > 0.0):
                raise Violation(move.source, f"{what} is not explained")
            if move.kind is not MoveKind.GIVE_BACK and move.gain <= MARGIN * move.cost:
                raise Violation(move.source, f"{what} gains {move.gain:g} and costs {move.cost:g}")
            if move.kind is not MoveKind.LEAVE:
                self._circle(move, what)
            self._in_time(move, life, what)
            if self._rests is not None and now > self._since + self._converges(move, attempts):
                raise Violation(move.source, f"{what} is made, and nothing has changed for {now - self._since:.0f} s")

    def _converges(self, move: Move, attempts: Collection[str]) -> float:
        """Seconds without change after which this move is not made any more."""
        ran = sum(one.rpartition(".")[0] == move.job for one in attempts) if move.kind is MoveKind.LEAVE else 0
        return max(CONVERGES, self._hold(ran - 1) + SLACK) if ran else CONVERGES

    def _hold(self, left: int) -> float:
        """Seconds for which a job that had to leave this often is protected."""
        return min(HOLD_MOST, self._values.min_hold * 2.0**left)

    def _circle(self, move: Move, what: str) -> None:
        self._lenders.add(move.source)
        self._borrowers.add(move.target)
        if both := self._lenders & self._borrowers:
            raise Violation(move.source, f"{what}: {', '.join(sorted(both))} lends and borrows")

    def _in_time(self, move: Move, life: str, what: str) -> None:
        values, last = self._values, self._last.get(move.source)
        gives_way = move.kind is MoveKind.GIVE_BACK and "gives way" in move.reason
        if last is not None and last[0] == life and not gives_way:
            reversed_ = move.kind is MoveKind.LEND and last[1].kind is MoveKind.GIVE_BACK
            least = max(values.min_hold, values.cooldown) if reversed_ else values.cooldown
            if move.at - last[1].at < least - CLOSE:
                raise Violation(move.source, f"{what} comes {move.at - last[1].at:.2f} s after {last[1].kind}")
        if move.kind is MoveKind.LEND:
            self._lent[move.boost] = move.at
        elif move.kind is MoveKind.GIVE_BACK and move.at - self._lent[move.boost] < values.min_hold - CLOSE:
            raise Violation(move.source, f"{what} comes {move.at - self._lent[move.boost]:.2f} s after it was lent")
        self._last[move.source] = life, move

    @property
    def watching(self) -> bool:
        """Whether it is known what the grid's jobs do: since there are no faults any more."""
        return self._rests is not None

    def seen(self, what: object, now: float) -> None:
        """Without faults this is what the grid's jobs do, and what waits."""
        if what != self._rests:
            self._rests, self._since = what, now

    def stored(
        self,
        receipt: Receipt,
        known: Sequence[Receipt],
        plan: JobPlan,
        nodes: Mapping[str, NodePlan],
        stayed: Container[str] = (),
    ) -> None:
        """The disk took the receipt of a move; `known`: all receipts there are; `stayed`: the attempts that ended by
        themselves, also where they were to leave."""
        job, values = receipt.job, self._values
        if [one.job for one in receipt.victims] != [job] or not receipt.victims[0].allocation.startswith(f"{job}."):
            raise Violation(job, f"{receipt.id} moves {', '.join(one.job for one in receipt.victims)}")
        if split_member(job) is not None and plan.request.gang:
            raise Violation(job, "a member of a gang is moved by itself")
        if plan.request.immediate or not plan.request.requeue:
            raise Violation(job, "it is moved, and may not be run again at another's will")
        stays = nodes[receipt.node].stays
        if stays is None or stays >= values.confidence:
            raise Violation(job, f"it leaves {receipt.node}, which stays idle: {stays}")
        others = [one.stays for name, one in nodes.items() if name != receipt.node and one.stays is not None]
        if max(others, default=0.0) < values.confidence:
            raise Violation(job, f"it leaves {receipt.node}, and no other node stays idle for longer")
        moved = [one for one in known if one.job == job and one.result == "moved" and one.at < receipt.at]
        earlier = [one for one in moved if one.victims[0].allocation not in stayed]
        hold = self._hold(len(earlier))
        if earlier and receipt.at - max(one.at for one in earlier) < hold - CLOSE:
            raise Violation(job, f"it is moved for the {len(earlier) + 1}th time within its min-hold of {hold:g} s")
        lost = sum(one.lost for one in known if receipt.at - HOUR < one.at <= receipt.at)
        if lost > self._budget + CLOSE:
            raise Violation(job, f"{lost:.1f} core-seconds are lost in this hour, and {self._budget:g} may be")


def headroom_stays_free(state: GridState, job: Job, placement: Placement) -> None:
    """A boost that the grid lends by itself is about to be granted: with all such boosts there, the node keeps its
    headroom."""
    if job.spec.boost is None or not job.spec.boost.automatic:
        return
    node, lent = state.nodes[placement.node], placement.grant.resources.cpu
    for one in node.allocations.values():
        boost = state.jobs[one.job].spec.boost
        lent += one.grant.resources.cpu if boost is not None and boost.automatic else 0
    most = (1.0 - state.policy.balancing.values.headroom) * len(node.facts.cores)
    if lent / MILLI > most + CLOSE:
        raise Violation(job.id, f"{placement.node} lends {lent / MILLI:g} cores by itself, {most:g} at most")
