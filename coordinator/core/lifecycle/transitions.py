"""How jobs come into the grid, and what follows from what becomes of them: one table, of what has happened to whom it
concerns. It is followed after each event, one thing after the other and however long it goes on, so that a chain of any
length is followed without going deeper.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from distributed_grid.coordinator.core.model import Group, Job, RecordGroup, RecordJob
from distributed_grid.coordinator.core.placement.constraints import marked
from distributed_grid.coordinator.core.placement.ray_capacity import marked as marked_by_ray
from distributed_grid.coordinator.core.preemption import held_sets
from distributed_grid.coordinator.core.queue import dependencies, groups
from distributed_grid.coordinator.core.state import Facts, GridState
from distributed_grid.protocol.groups import indexes, member_id
from distributed_grid.protocol.jobs import State

# --- coming ---------------------------------------------------------------------------------------------------------


def enter(state: GridState, job: Job) -> None:
    """Take a job in, new or from the disk, with the next turn."""
    policy = state.policy
    job.request = marked_by_ray(policy, marked(policy, job.request, job.user), job.spec.boost is not None)
    state.add(job)
    if job.group:
        groups.enter(state, job)
        return
    state.keys[(job.user, job.key)] = job.id
    if job.state is State.WAITING and not job.tries and (job.after or job.begin > state.now):
        state.hold_back(job)
    elif job.state is State.WAITING:
        held_sets.wait(state, job)


def submitted(state: GridState, job: Job) -> None:
    """Take a new job in."""
    enter(state, job)
    state.tell(job, "submitted")
    state.out.append(RecordJob(job, new=True))


def submitted_group(state: GridState, group: Group, template: Job) -> None:
    """Take a new group in, with all of its members."""
    if group.after or group.begin > state.now:
        state.hold_back(group)
    members = state.begin_group(group)
    state.out.append(RecordGroup(group, soon=False))
    assert group.array is not None
    for index in indexes(group.array.parts):
        name = member_id(group.id, index)
        member = Job(
            id=name,
            key=name,  # it was given by nobody: the group's is asked for
            user=group.user,
            spec=template.spec,
            request=template.request,
            submitted=template.submitted,
            story=[],
            group=group.id,
            index=index,
        )
        submitted(state, member)
    groups.let_go(state, members)


# --- what follows ---------------------------------------------------------------------------------------------------


class Follows(NamedTuple):
    """From facts of one kind this follows. `at_once`: also from those that come of it; else from these the next time
    round, after all others."""

    of: Callable[[Facts], deque[Any]]
    then: tuple[Callable[[GridState, Any], None], ...]
    at_once: bool = True


FOLLOWS = (
    Follows(lambda facts: facts.held, (dependencies.look,)),
    Follows(lambda facts: facts.started, (dependencies.follow_start,)),
    Follows(lambda facts: facts.ended, (groups.follow_end, dependencies.follow_end)),
    Follows(lambda facts: facts.groups_ended, (dependencies.follow_group,), at_once=False),
)
"""In this order."""


def follow(state: GridState) -> None:
    """See to what follows from what was not seen to yet."""
    facts = state.facts
    while facts:
        for of, then, at_once in FOLLOWS:
            queue = of(facts)
            left = len(queue)
            while queue and (at_once or left):
                left -= 1
                fact = queue.popleft()
                for one in then:
                    one(state, fact)
