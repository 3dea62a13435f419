"""What must be true of preemptions: each is followed by the start of the one it was for (of a gang, of all members,
each on the place that was kept for it), or by a roll-back; and nobody gives way to somebody of his own class or the
next one."""

from collections.abc import Callable

from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.coordinator.core.preemption.plan import may
from distributed_grid.protocol.groups import member_id, split_member
from distributed_grid.protocol.preemption import Place, Receipt
from distributed_grid.simulator.engine import Violation


class Preemptions:
    """All receipts that the coordinator has made durable."""

    def __init__(self) -> None:
        self.known: dict[str, Receipt] = {}

    def stored(self, receipt: Receipt, last_of: Callable[[str], Allocation | None]) -> None:
        """The disk took this receipt, and knows what the ones it is for were granted last."""
        before = self.known.get(receipt.id)
        self.known[receipt.id] = receipt
        if before is not None and before.result and before != receipt:
            raise Violation(receipt.job, f"{receipt.id} was {before.result} and becomes {receipt.result or 'open'}")
        for victim in receipt.victims:
            if not may(receipt.priority, victim.priority):
                raise Violation(victim.job, f"it is {victim.priority.word} and gives way to {receipt.priority.word}")
        if not receipt.result:
            others = [one.id for one in self.known.values() if one.job == receipt.job and not one.result]
            if len(others) > 1:
                raise Violation(receipt.job, f"{' and '.join(others)} are open at once")
        elif receipt.result == "started":
            places = (Place(receipt.node, receipt.grant), *receipt.more)
            gang, _ = split_member(receipt.job) or ("", 0)
            for rank, place in enumerate(places):
                self._started(receipt, place, last_of(member_id(gang, rank) if receipt.more else receipt.job))
            if receipt.more and len({place.node for place in places}) < len(places):
                raise Violation(receipt.job, f"{receipt.id} has two places on one node")

    def _started(self, receipt: Receipt, place: Place, last: Allocation | None) -> None:
        if last is None or last.granted < receipt.closed:
            raise Violation(receipt.job, f"{receipt.id} says that it started on {place.node}, and it did not")
        # It may have been granted something else since, if the disk was slow.
        here = last.node == place.node and (last.grant == place.grant or bool(receipt.text))
        if last.granted == receipt.closed and not here:
            raise Violation(receipt.job, f"{receipt.id} freed a set on {place.node}, and it started on another")

    def unfinished(self) -> tuple[str, str] | None:
        """One that came to nothing, in the end."""
        for receipt in self.known.values():
            if not receipt.result:
                return receipt.job, f"{receipt.id} has neither led to its start nor been rolled back"
        return None
