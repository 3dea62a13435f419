"""A node whose supervisor's journal was damaged does not know what ran. What was granted there before is held, and is
neither started nor run again, until the node has shown that nothing of it lives: then it is over, and may have run.

Such a node has an `instance` with a suffix of its loss (protocol/nodes.py), and `unknown` in its facts until then.
"""

from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.protocol.nodes import NodeFacts, lost_records


def lost(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether the allocation was granted, in this boot, before the node lost its records."""
    return allocation.boot in ("", facts.boot_id) and lost_records(facts.instance, allocation.instance)


def held(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether it may live there, and the node does not know."""
    return bool(facts.unknown) and lost(facts, allocation)
