"""Slack: the cores that an allocation holds and does not use.

    slack = cores - the 99th percentile of its use in ten minutes - one core

It is lent to revocable jobs (revocable.py), each core to one job. They run on the holder's own cores, which the holder
keeps. If several cores are hardware threads of one, physical cores are counted (protocol/sharing/slack.py).
"""

import math

from distributed_grid.coordinator.core.data import GridData, Usual
from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.protocol.jobs import State, Use
from distributed_grid.protocol.resources import MILLI
from distributed_grid.protocol.sharing.slack import left_to, lendable

MARGIN = MILLI
"""Milli-cores beyond the holder's use that are not lent."""
LONGEST = 590.0
"""Longest time over which an allocation has to be measured (s): ten minutes less one interval of samples."""
AGAIN = 600.0
"""How long a holder that wanted its cores back lends none, whatever its node reports (s)."""
FRESH = 60.0
"""How long the report of a node is valid (s)."""


def join(state: GridData, allocation: Allocation) -> None:
    """Note a new or restored allocation, which may be on the slack of another one."""
    if allocation.grant.slack:
        state.on_slack.setdefault(allocation.grant.holder, {})[allocation.id] = None


def leave(state: GridData, allocation: Allocation) -> None:
    """Note that an allocation holds nothing any more: nothing of it is alive, or a successor has taken over."""
    name, holder = allocation.id, allocation.grant.holder
    state.usual.pop(name, None)
    state.kept_back.pop(name, None)
    state.recalls.pop(name, None)
    if allocation.grant.slack and (users := state.on_slack.get(holder)) is not None:
        users.pop(name, None)
        if not users:
            del state.on_slack[holder]
    for user in state.on_slack.get(name, ()):
        state.recalls[user] = f"{allocation.job}, whose cores it ran on, has ended"


def record_use(state: GridData, allocation: Allocation, use: Use) -> None:
    """Take in a node's report of what an allocation uses. It counts once the allocation was measured for long
    enough."""
    cores = max(0.0, use.usual)
    state.usual.pop(allocation.id, None)
    if use.usual_for >= min(state.policy.unused.window, LONGEST) and allocation.grant.cores:
        state.usual[allocation.id] = Usual(cores, state.now)


def wanted_back(state: GridData, user: Allocation) -> None:
    """Note that a job was recalled because its holder wants its cores: the holder lends none for a while."""
    if user.grant.holder in state.allocations:
        state.kept_back[user.grant.holder] = state.now + AGAIN


def left(state: GridData, holder: Allocation, now: float) -> tuple[int, tuple[int, ...]]:
    """Return how much of an allocation's cores can be lent now (milli-cores), and which cores, in the order in which
    they are lent."""
    known, job = state.usual.get(holder.id), state.jobs[holder.job]
    if known is None or now - known.at > FRESH or holder.state is not State.RUNNING or holder.stop is not None:
        return 0, ()
    if job.spec.keep_all or job.spec.boost is not None or job.request.gang or job.active.frozen or holder.within:
        return 0, ()
    if now < state.kept_back.get(holder.id, 0.0):
        return 0, ()
    users = [state.allocations[user].grant for user in state.on_slack.get(holder.id, ())]
    node = state.nodes[holder.node]
    wants, smt = math.ceil(known.cores * MILLI) + MARGIN, node.facts.smt
    if wants >= holder.grant.resources.cpu:
        return 0, ()
    refused = {int(device) for device in node.closed if device.isdigit()}
    return lendable(holder.grant, users, smt, left_to(holder.grant, users, smt) - wants, refused)
