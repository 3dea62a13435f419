"""What the bridge and who asks it have agreed on. It is apart from the bridge, which imports ray."""

from distributed_grid.protocol.boosts import GROUP

NAMESPACE = "grid"
"""Where all groups of ours are in Ray."""
OURS = "grid-"
JOBS, BOOSTS = "grid-job-", GROUP
"""How the names of groups begin: of all that the grid makes; of those for jobs, before the allocation's id; of those
for exclusive boosts, before the boost's."""
BEGUN = 0
"""The number under which a bridge says why it could not begin."""
