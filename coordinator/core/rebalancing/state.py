"""What rebalancing remembers between passes: demand that waited, when each node lent, and the last moves. It is lost
when the coordinator restarts, and then demand has to wait for the policy's time once more."""

import msgspec

from distributed_grid.coordinator.core.rebalancing.view import Moved, RayLook, Steady
from distributed_grid.protocol.sharing.moves import Move, MoveKind, Pass
from distributed_grid.protocol.sharing.policies import (
    LONGEST_BAR,
    LONGEST_SUSTAINED,
    NO_ORDER,
    Balancing,
    BalancingOrder,
)

RECENT = 50
"""Number of moves kept for display."""
INTERRUPTED = 3.0
"""A gap between passes longer than this multiple of their interval counts as an interruption of all demand."""


class Seen(msgspec.Struct, frozen=True):
    """The demand at one pass: counts by text."""

    at: float
    counts: dict[str, int]


class Lent(msgspec.Struct, frozen=True):
    """An automatic boost, as of the last pass: room for this many tasks that ask for this."""

    source: str
    target: str
    asks: str = ""
    tasks: int = 0


class Left(msgspec.Struct, frozen=True):
    """The node that a job has left before its owner came, and until when it does not go back (grid time)."""

    node: str
    until: float


class BalancingState(msgspec.Struct, omit_defaults=True):
    """`configured` and the operators' `order`, which together are in the ledger's policy; and the memory of passes.
    `moved`: by lender; `vain`: by the text of what waits, the boost that was lent for it and not used; `lent`: by
    boost; `left`: by job; `last`: the last pass, and what it looked at."""

    configured: Balancing = Balancing()
    order: BalancingOrder = NO_ORDER
    seen: list[Seen] = []
    moved: dict[str, Moved] = {}
    vain: dict[str, str] = {}
    lent: dict[str, Lent] = {}
    left: dict[str, Left] = {}
    recent: list[Move] = []
    last: Pass | None = None
    look: RayLook | None = None

    def copy(self) -> "BalancingState":
        """A copy that shares nothing mutable."""
        return msgspec.structs.replace(
            self,
            seen=list(self.seen),
            moved=dict(self.moved),
            vain=dict(self.vain),
            lent=dict(self.lent),
            left=dict(self.left),
            recent=list(self.recent),
        )

    def see(self, look: RayLook, now: float, interval: float) -> None:
        """Update with the demand of this pass. Demand that is gone is no longer marked as having an unused boost."""
        if self.seen and now - self.seen[-1].at > INTERRUPTED * interval:
            self.seen.clear()
        counts: dict[str, int] = {}
        for one in look.waiting:
            counts[one.text] = counts.get(one.text, 0) + one.count
        self.seen = [one for one in self.seen if one.at >= now - LONGEST_SUSTAINED - interval]
        self.seen.append(Seen(now, counts))
        self.vain = {text: boost for text, boost in self.vain.items() if text in counts}
        self.look = look

    def steady(self, sustained: float, now: float) -> dict[str, Steady]:
        """Return the steady demand in Ray: the minimum within the last `sustained` seconds, and for how long there was
        always some."""
        found: dict[str, Steady] = {}
        for text in self.seen[-1].counts if self.seen else ():
            least, since = self.seen[-1].counts[text], now
            for one in reversed(self.seen):
                if not (count := one.counts.get(text, 0)):
                    break
                since = one.at
                if one.at >= now - sustained:
                    least = min(least, count)
            found[text] = Steady(least, now - since)
        return found

    def note(self, move: Move) -> None:
        """Remember a move that was made."""
        self.moved[move.source] = Moved(move.at, move.kind, move.target)
        self.recent = [*self.recent[1 - RECENT :], move]

    def forget(self, live: dict[str, Lent], now: float) -> None:
        """Compare with the boosts that live now: one that has ended otherwise than by a move bars its lender as if it
        had been given back. Bars that are over are dropped."""
        for boost, one in self.lent.items():
            if boost not in live:
                self.moved[one.source] = Moved(now, MoveKind.GIVE_BACK, one.target)
        self.lent = live
        self.moved = {name: one for name, one in self.moved.items() if now < one.at + LONGEST_BAR}
        self.left = {job: one for job, one in self.left.items() if now < one.until}

    def left_by(self, job: str, now: float) -> str:
        """The node that a job does not go back to; empty: none."""
        left = self.left.get(job)
        return left.node if left is not None and now < left.until else ""
