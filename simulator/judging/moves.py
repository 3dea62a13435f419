"""What must be true of jobs that are moved before the owner of their node comes, worked out here from the receipts on
disk, from the plan of each job, and from what is forecast of the nodes, without the ledger's own reckoning.
"""

from collections.abc import Mapping, Sequence

from distributed_grid.protocol.groups import split_member
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.sharing.policies import Balancing
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.plan import JobPlan, NodePlan

HOUR = 3600.0
HOLD_MOST = 3600.0
CLOSE = 1e-6


class Moves:
    """The moves of one grid, in the order of their time. `budget`: core-seconds that may be lost in any hour."""

    def __init__(self, balancing: Balancing, budget: float) -> None:
        self._values, self._budget = balancing.values, budget

    def stored(self, receipt: Receipt, known: Sequence[Receipt], plan: JobPlan, nodes: Mapping[str, NodePlan]) -> None:
        """The disk took the receipt of a move; `known`: all receipts there are."""
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
        earlier = [one for one in known if one.job == job and one.result == "moved" and one.at < receipt.at]
        hold = min(HOLD_MOST, values.min_hold * 2.0 ** len(earlier))
        if earlier and receipt.at - max(one.at for one in earlier) < hold - CLOSE:
            raise Violation(job, f"it is moved for the {len(earlier) + 1}th time within its min-hold of {hold:g} s")
        lost = sum(one.lost for one in known if receipt.at - HOUR < one.at <= receipt.at)
        if lost > self._budget + CLOSE:
            raise Violation(job, f"{lost:.1f} core-seconds are lost in this hour, and {self._budget:g} may be")
