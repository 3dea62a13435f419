"""What follows for the grid where the supervisor's journal was damaged: the node says that it does not know what ran.

To the coordinator its agent has another `instance` from then on, the old one with a suffix of this loss: what was
granted before is told apart from what is granted now, also after either end was restarted. As long as something of it
may live the facts say why in `unknown`, and nothing new is taken.

And where something of a job lives that was killed: the job is not over and holds what it has, and as long as that is so
the node's walls count as `none`, since it cannot promise that what it runs next is alone.
"""

import time
from collections.abc import Mapping

import msgspec

from distributed_grid.protocol.nodes import NodeFacts, loss_suffix
from distributed_grid.protocol.walls import Walls


class Loss(msgspec.Struct, frozen=True):
    """As the supervisor tells it: since when (wall clock), why, and whether something of it may live still."""

    id: str
    since: float
    why: str
    open: bool

    @property
    def words(self) -> str:
        """Why nothing is taken; empty: it is proven that nothing lives."""
        if not self.open:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"unknown what ran before {since}: {self.why} (if none of it lives: grid agent accept-loss, or a reboot)"


def facts_after(facts: NodeFacts, loss: Loss | None) -> NodeFacts:
    """The facts of a node that has suffered this loss, or none."""
    if loss is None:
        return facts
    return msgspec.structs.replace(facts, instance=loss_suffix(facts.instance, loss.id), unknown=loss.words)


def facts_while(facts: NodeFacts, unended: Mapping[str, str]) -> NodeFacts:
    """The facts of a node as long as these allocations, with why, cannot be ended."""
    if not unended:
        return facts
    key, why = next(iter(unended.items()))
    more = f", and {len(unended) - 1} more" if len(unended) > 1 else ""
    why = f"{key} cannot be ended: {why}{more}"
    return msgspec.structs.replace(facts, walls=Walls.NONE.value, walls_why=why)
