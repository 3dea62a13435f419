"""What is kept on a node for a job that waits (see preemption/held_sets.py), and the record of why."""

import msgspec

from distributed_grid.protocol.preemption import Place, Receipt
from distributed_grid.protocol.resources import Grant


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A set of one node that is kept for a job that waits, `until` it is given up. `receipt`: the preemption that frees
    it; without one, it is what the job itself gave to somebody who does not need it after all. The first member of a
    gang has this for all of them: `more` are the places of the others, by their rank."""

    node: str
    grant: Grant
    until: float
    receipt: Receipt | None = None
    ends: float = 0.0
    """By when all have ended that it waits for."""
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All that is kept; of a gang, by rank."""
        return (Place(self.node, self.grant), *self.more)


class RecordReceipt(msgspec.Struct, frozen=True, gc=False):
    """Make this receipt of a preemption durable, in the place of what was said of it before."""

    receipt: Receipt
