"""The state of the grid: its data (data.py), and the operations that keep it consistent. Only here does a job change
its phase, and an allocation or a node its state."""

import math

import msgspec

from distributed_grid.coordinator.core.commands import (
    Over,
    Publish,
    RecordAllocation,
    RecordGroup,
    RecordJob,
    RecordSpent,
    Unreserve,
)
from distributed_grid.coordinator.core.data import GridData
from distributed_grid.coordinator.core.lending import accounts, slack
from distributed_grid.coordinator.core.model import (
    MOVES,
    NODE_MOVES,
    PHASES,
    Active,
    Allocation,
    Attempt,
    AwaitsHold,
    Ended,
    Group,
    HeldBack,
    Job,
    MemberEnded,
    Node,
    Phase,
    Placement,
    Queued,
    Waiting,
)
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.queue.queue import Members, key_of
from distributed_grid.coordinator.core.scaling.events import RecordMachine
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.history.summary import core_seconds
from distributed_grid.protocol.jobs import After, Cause, Priority, Reason, State, Step, has_failed
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import Grant

STORY_MOST = 100
"""Maximum number of lines of a job's story; older lines are dropped first, except the beginning."""
TEXT_CHARS = 1000
"""Maximum length of a line, which may quote a node."""
KEYS_KEPT = 4096
"""Number of keys of ended jobs kept in memory; older ones are on disk for sure, where the shell finds them."""
SHARES_SAVED_EVERY = 60.0
"""Interval between saves of changed accounts (s): the past use that a crash may lose. Current use is on disk with the
allocations."""
REASONS_EVERY = 1.0
"""Interval between updates of the reasons why lines wait (s)."""


class GridState(GridData):
    """The state of the grid, as it is decided about."""

    # --- the one mutator of states ----------------------------------------------------------------------------------

    def move(self, allocation: Allocation, to: State, text: str = "") -> None:
        """Change the state of an allocation, and with it that of its job. ENDED releases its resources; the caller then
        sets the next phase of the job by `become`."""
        was, job = allocation.state, self.jobs[allocation.job]
        assert to in MOVES[was], f"{allocation.id} cannot go from {was.value} to {to.value}"
        assert job.allocation == allocation.id, f"{allocation.id} is not the allocation of {job.id}: {job.allocation}"
        allocation.state = to
        if self.quotas.counted:
            self.quotas.forget_used()
        if to is State.ENDED:
            allocation.ended = self.now
            self._release(allocation)
            return
        phase = job.phase
        assert type(phase) is Active, f"{job.id} holds {allocation.id}, and is {type(phase).__name__}"
        phase.state = to
        if job.group:
            self.groups[job.group].moved(was, to)
        if to is State.RUNNING:
            self.has_started(job)
        self.tell(job, text)

    def become(self, job: Job, phase: Phase, text: str = "") -> None:
        """Put a job in another phase, with a `text` for its story."""
        was = job.phase
        allowed = type(phase) in PHASES[type(was)] and (type(phase) is Active or job.allocation not in self.allocations)
        assert allowed, f"{job.id} cannot go from {type(was).__name__} to {type(phase).__name__}"
        if job.group and phase.state is not was.state:
            self.groups[job.group].moved(was.state, phase.state)
        job.phase = phase
        if text:
            self.tell(job, text)

    def move_node(self, node: Node, to: NodeState) -> None:
        """Change the state of a node, possibly to the same one."""
        name, was = node.facts.name, node.state
        assert to is was or to in NODE_MOVES[was], f"{name} cannot go from {was.value} to {to.value}"
        node.state = to

    def has_started(self, job: Job) -> None:
        """Note that a job runs, or has run."""
        job.begun = True
        if self.dependencies.on[After.STARTED]:
            self.facts.started.append(job)

    # --- recording and publishing -----------------------------------------------------------------------------------

    def tell(self, job: Job, text: str) -> None:
        """Add a line to a job's story."""
        if len(job.story) >= STORY_MOST:
            del job.story[STORY_MOST // 5]
        job.story.append(Step(self.now, job.phase.state, text[:TEXT_CHARS]))

    def changed(self, job: Job, allocation: Allocation | None = None, soon: bool = False) -> None:
        """Record a job and its allocation, and publish the change."""
        if allocation is not None:
            self.out.append(RecordAllocation(allocation, soon))
        self.out.append(RecordJob(job, soon=soon))
        self.publish(job)

    def waits_for(self, job: Job, reason: Reason | None) -> None:
        """Set why a job waits; None: not known yet."""
        phase = job.phase
        assert isinstance(phase, Waiting), f"{job.id} is {phase.state.value}"
        phase.reason = reason

    def publish(self, job: Job) -> None:
        """Publish a job to its watchers. A view is costly, so unwatched jobs get none."""
        phase = job.phase
        if job.id in self.watched:
            self.out.append(Publish(job.view(phase.reason if isinstance(phase, Waiting) else None)))
        elif type(phase) is Ended:
            begun = phase.attempt.started if phase.attempt is not None else 0.0
            times = (begun - job.submitted, phase.at - begun) if begun else (-1.0, -1.0)
            amounts = core_seconds(job.request, job.grant, phase.outcome)
            self.out.append(Over(job.id, phase.outcome.cause, *times, *amounts, job.spec.hold))

    # --- jobs come and go -------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Add a job, with the next turn."""
        self.jobs[job.id] = job
        self.turns[job.id] = self.next_turn
        self.next_turn += 1
        self.quotas.add_job(job)
        self.index_job(job)

    def index_job(self, job: Job) -> None:
        """Index a job for affinity, by its names and its node."""
        affinity = self.index.affinity
        affinity.enter(job)
        if type(job.phase) is Active:
            affinity.place(job, job.phase.attempt.node)

    def remove(self, job: Job, active: bool) -> None:
        """Remove an ended job; `active`: it had been released to the queue. The consequences are handled after the
        event."""
        del self.jobs[job.id], self.turns[job.id]
        self.index.affinity.remove_waiting(job)
        self.index.affinity.leave(job)
        self.quotas.remove_job(job)
        if job.spec.hold:
            self.holds.changed[job.id] = None
        self._unblock_affine(job)
        if job.group:
            self._leave_group(job, active)
        else:
            self._retire_key(job.user, job.key)
        self.facts.ended.append(job)

    def _leave_group(self, job: Job, active: bool) -> None:
        members = self.groups[job.group]
        group, outcome = members.group, job.outcome
        assert outcome is not None
        members.active -= active and not job.request.gang
        del members.live[job.id]
        if has_failed(outcome) or outcome.cause is Cause.CANCELLED:
            if outcome.cause is Cause.CANCELLED:
                group.cancelled += 1
            else:
                group.failed += 1
            group.never += not outcome.started and not job.has_begun
            self.out.append(RecordGroup(group))
        if not members.live:
            group.ended = self.now
            del self.groups[group.id]
            self._retire_key(group.user, group.key)
            self.facts.groups_ended.append(group)
            self.out.append(RecordGroup(group))

    def _retire_key(self, user: str, key: str) -> None:
        """Move the key of an ended job or group to the past keys."""
        self.past_keys[(user, key)] = self.keys.pop((user, key))
        if len(self.past_keys) > KEYS_KEPT:
            del self.past_keys[next(iter(self.past_keys))]

    def begin_group(self, group: Group) -> Members:
        """Add a group; its members are added next."""
        members = self.groups[group.id] = Members(group)
        self.keys[(group.user, group.key)] = group.id
        return members

    # --- waiting ----------------------------------------------------------------------------------------------------

    def hold_back(self, waiter: Job | Group) -> None:
        """Hold back a job or group, new or restored; its conditions are evaluated after the event."""
        if isinstance(waiter, Job) and not isinstance(waiter.phase, HeldBack):
            self.become(waiter, HeldBack(reason=waiter.reason))
        self.dependencies.unmet[waiter.id] = {}
        self.facts.held_back.append(waiter.id)

    def is_held_back(self, job: Job) -> bool:
        """Whether a job waits neither in the queue nor for an earmark."""
        return isinstance(job.phase, (HeldBack, MemberEnded))

    def enqueue(self, job: Job) -> None:
        """Put a job in the queue, in the order of its turn; or among those that wait for room in its hold."""
        if job.request.within:
            if type(job.phase) is not AwaitsHold:
                self.become(job, AwaitsHold(reason=job.reason))
            self.holds.wait(job, self.turns[job.id])
            return
        if type(job.phase) is not Queued:
            self.become(job, Queued(reason=job.reason))
        self.queue.add(job.id, key_of(job), self.turns[job.id])
        self.shares.stale[job.user] = None
        self.fresh[job.id] = None
        self.index.affinity.want(job)
        if job.request.priority is Priority.URGENT:
            self.preempting.urgent[job.id] = 0.0

    def dequeue(self, job: Job) -> None:
        """Take a job out of the queue, with its reservation; or out of those that wait for room in its hold."""
        if type(job.phase) is AwaitsHold:
            self.holds.leave(job.request.within, job.id)
            return
        self.queue.remove(job.id)
        self.quotas.left_queue(job)
        self.unreserve(job.id)
        self.index.affinity.remove_waiting(job)
        self.fresh.pop(job.id, None)

    def unreserve(self, job: str) -> None:
        """Remove the reservations of a job."""
        if job in self.reservations.by_job:
            gone = [one for one in self.reservations.by_job.values() if one.job == job]
            rest = {name: one for name, one in self.reservations.by_job.items() if one.job != job}
            self.reservations = msgspec.structs.replace(self.reservations, by_job=rest)
            self.freed_nodes |= {one.node: None for one in gone if self.nodes[one.node].usable}

    def _unblock_affine(self, job: Job) -> None:
        """Unblock the lines with an affinity to this job, which may fit now."""
        affinity = self.index.affinity
        if not affinity.wanted or not (keys := affinity.waiting_for(job)):
            return
        lines = [line for key in keys if (line := self.queue.lines.get(key)) is not None and not line.excluded]
        for _, head, line in sorted((*self.queue.head(line), line) for line in lines):
            line.blocked = False
            self.fresh[head] = None

    # --- holding ----------------------------------------------------------------------------------------------------

    def grant(self, job: Job, placement: Placement, lease: float, gang: Gang | None = None) -> Allocation:
        """Allocate this placement to a waiting job; the caller records and launches it. `lease`, `gang`: as in
        Allocation."""
        node = self.nodes[placement.node]
        allocation = self._allocate(job, node, placement.grant)
        allocation.lease, allocation.gang = lease, gang
        self.hold(allocation)
        self.placements[allocation.id] = placement
        self._charge(job, allocation)
        assert node.capacity is not None
        node.capacity.take(placement.grant)
        self._placed(job, node)
        self.index.put(placement.node, node.facts.priority, node.capacity)
        return allocation

    def grant_inside(self, job: Job, placement: Placement, lease: float, hold: Allocation) -> Allocation:
        """Allocate this placement inside of a hold; the caller records and launches it."""
        node = self.nodes[hold.node]
        allocation = self._allocate(job, node, placement.grant)
        allocation.lease, allocation.within = lease, hold.id
        self.allocations[allocation.id] = node.inside[allocation.id] = allocation
        self.placements[allocation.id] = placement
        self.quotas.enter_hold(job)
        self._placed(job, node)
        return allocation

    def grant_next(self, job: Job, before: Allocation) -> Allocation:
        """Allocate what another allocation holds, for when that has ended; the caller records and launches it."""
        node = self.nodes[before.node]
        allocation = self._allocate(job, node, before.grant)
        allocation.predecessor = job.active.predecessor = before.id
        self.allocations[allocation.id] = node.not_holding[allocation.id] = allocation
        self.chains.join(before.id, allocation.id)
        self._placed(job, node)
        return allocation

    def _allocate(self, job: Job, node: Node, grant: Grant) -> Allocation:
        if job.id in self.queue.turns or type(job.phase) is AwaitsHold:
            self.dequeue(job)
        job.tries += 1
        allocation = Allocation(
            id=f"{job.id}.{job.tries}",
            job=job.id,
            node=node.facts.name,
            grant=grant,
            state=State.STARTING,
            hold=job.spec.hold,
            granted=self.now,
            boot=node.facts.boot_id,
            instance=node.facts.instance,
        )
        self.become(job, Active(state=State.STARTING, attempt=Attempt(allocation.node, grant)))
        job.allocation = allocation.id
        job.unused = job.walls = ""
        return allocation

    def _placed(self, job: Job, node: Node) -> None:
        """Update the indexes of jobs on nodes."""
        self.fresh.pop(job.id, None)  # it was unblocked earlier in the same pass
        self.index.affinity.remove_waiting(job)
        self.index.affinity.place(job, node.facts.name)
        if len(node.allocations) == 1:
            self.index.touch(node.facts.name)
        if job.spec.bundle:
            self.index.shipped(node, job.spec.bundle)
        self._unblock_affine(job)

    def _charge(self, job: Job, allocation: Allocation) -> None:
        """Charge the grant of an allocation to its user from now on."""
        self.shares.take(job.user, allocation.grant.charged, self.now, self.policy.sharing)
        self.quotas.add_allocation(job, allocation)
        accounts.begin(self, job.user, allocation)
        self._share_changed(job.user)

    def _credit(self, job: Job, allocation: Allocation) -> None:
        """Release the grant of an allocation."""
        ran = self.now - allocation.granted if allocation.started else math.inf
        self.shares.give(job.user, allocation.grant.charged, ran, self.now, self.policy.sharing)
        self._share_changed(job.user)
        accounts.end(self, allocation)
        self.out += (RecordSpent(*spent) for spent in self.quotas.remove_allocation(job, allocation, self.now))

    def reduce(self, allocation: Allocation, grant: Grant) -> None:
        """Reduce the grant of an allocation to this part: the rest does not exist any more, and its node has no offer
        yet."""
        job = self.jobs[allocation.job]
        assert self.nodes[allocation.node].capacity is None, f"{allocation.node} offers something"
        self._credit(job, allocation)
        allocation.grant = job.active.attempt.grant = grant
        allocation.granted = self.now
        self._charge(job, allocation)
        self.placements.pop(allocation.id, None)

    def take_over(self, allocation: Allocation) -> None:
        """Let a successor hold its resources from now on, since nothing of its predecessor is alive. They do not
        change."""
        node = self.nodes[allocation.node]
        before = self.chains.predecessors[allocation.id]
        ended = node.allocations.pop(before)
        self._credit(self.jobs[ended.job], ended)
        slack.leave(self, ended)
        node.not_holding[before], ended.handed_over = ended, True
        self.out += (RecordAllocation(ended), RecordJob(self.jobs[ended.job]))
        self._promote(node, ended, allocation)

    def _promote(self, node: Node, ended: Allocation, allocation: Allocation) -> None:
        del node.not_holding[allocation.id]
        self.deadlines.disarm("successor", allocation.id)
        node.allocations[allocation.id] = allocation
        if ended.id in node.counting:
            del node.counting[ended.id]
            node.counting[allocation.id] = None
        self.chains.take_over(ended.id, allocation.id)
        job, allocation.granted = self.jobs[allocation.job], self.now
        job.active.predecessor = ""
        self._charge(job, allocation)

    def holders(self) -> list[Allocation]:
        """The allocations that hold their grants: all but successors, what they have taken over from, and what is
        inside of holds."""
        nodes = self.nodes
        return [
            one for one in self.allocations.values() if not one.within and one.id not in nodes[one.node].not_holding
        ]

    def inside_holds(self) -> list[Allocation]:
        """The allocations that are inside of holds."""
        return [one for node in self.nodes.values() for one in node.inside.values()]

    def hold(self, allocation: Allocation) -> None:
        """Add an allocation, new or restored, with the rendezvous port of its gang."""
        if allocation.gang is not None and allocation.gang.rank == 0:
            self.rendezvous[(allocation.gang.addresses[0], allocation.gang.port)] = allocation.id
        self.allocations[allocation.id] = self.nodes[allocation.node].allocations[allocation.id] = allocation
        if allocation.node in self.scaling.machines and self.scaling.used_by(allocation.node):
            self.out.append(RecordMachine(allocation.node, self.scaling.machines[allocation.node]))
        slack.join(self, allocation)

    def _release(self, allocation: Allocation) -> None:
        """Release the resources of an ended allocation. The capacity grows unless the offer has taken it off already:
        then the next offer tells."""
        del self.allocations[allocation.id]
        if allocation.gang is not None and allocation.gang.rank == 0:
            self.rendezvous.pop((allocation.gang.addresses[0], allocation.gang.port), None)
        if allocation.ray is not None:
            self.deadlines.disarm("reserve", allocation.id)
            self.out.append(Unreserve(allocation.id))
        self.placements.pop(allocation.id, None)
        self.idle.pop(allocation.id, None)
        slack.leave(self, allocation)
        self.chains.overdue.pop(allocation.id, None)
        job, node = self.jobs[allocation.job], self.nodes[allocation.node]
        self.index.affinity.displace(job, allocation.node)
        if allocation.id in node.not_holding:
            self._leave_chains(node, allocation)
        elif allocation.id in node.inside:
            del node.inside[allocation.id]
            self.quotas.leave_hold(job)
            if allocation.id in node.counting:  # the next offer tells whether it is back
                del node.counting[allocation.id]
                assert node.capacity is not None
                node.capacity.take(allocation.grant)
                self.refresh(node, grown=False)
            self.holds.changed[job.request.within] = None
        else:
            self._credit(job, allocation)
            del node.allocations[allocation.id]
            if (name := self.chains.ended(allocation.id)) is not None:
                self._promote(node, allocation, node.not_holding[name])
            else:
                self.give_back(node, allocation.id, allocation.grant)
            if allocation.hold:
                self._let_out(node, allocation)
        if not node.allocations:
            self.index.touch(allocation.node)
        self._unblock_affine(job)

    def _let_out(self, node: Node, hold: Allocation) -> None:
        """A hold has ended: what runs inside holds its own grant from now on, as any other allocation."""
        for allocation in [one for one in node.inside.values() if one.within == hold.id]:
            del node.inside[allocation.id]
            allocation.within, allocation.granted = "", self.now
            job = self.jobs[allocation.job]
            self.quotas.leave_hold(job)
            job.request, job.amended = msgspec.structs.replace(job.request, within=""), True
            self.hold(allocation)
            self._charge(job, allocation)
            if node.capacity is not None:  # also where the offer counts it, which was made up for
                node.capacity.take(allocation.grant)
                self.refresh(node, grown=False)
            self.out += (RecordAllocation(allocation), RecordJob(job))

    def _leave_chains(self, node: Node, allocation: Allocation) -> None:
        """Handle the end of an allocation that holds nothing: its successor follows its predecessor."""
        del node.not_holding[allocation.id]
        self.deadlines.disarm("successor", allocation.id)
        before, successor = self.chains.leave(allocation.id)
        if before and successor:
            other = node.not_holding[successor]
            job = self.jobs[other.job]
            other.predecessor = job.active.predecessor = before
            self.out += (RecordAllocation(other), RecordJob(job))

    def give_back(self, node: Node, name: str, grant: Grant) -> None:
        """Return the grant of an allocation to the free capacity of its node."""
        if name in node.counting:
            del node.counting[name]
        elif node.capacity is not None:
            node.capacity.give(grant)
            self.refresh(node)

    def _share_changed(self, user: str) -> None:
        if not self.shares.unsaved:
            self.deadlines.arm("shares", "", self.now + SHARES_SAVED_EVERY)
        self.shares.unsaved[user] = None

    # --- capacity ----------------------------------------------------------------------------------------------------

    def rebuild(self, node: Node) -> None:
        """Compute the capacity of a node from its offer, allocations and earmarks."""
        offer = node.offer
        node.closed = frozenset(device for device, (until, _) in node.declined.items() if until > self.now)
        if offer is None:
            node.capacity = None
            node.counting = {}
        else:
            held = {one.id: one.grant for one in node.allocations.values()} | node.orphans
            within = {one.id: one.grant for one in node.inside.values()}
            node.counting = dict.fromkeys(name for name in offer.counting if name in held or name in within)
            capacity = Capacity.of(node.facts, offer, node.closed)
            if held:
                counted = (held[name] if name in held else within[name] for name in node.counting)
                capacity.cap(node.facts, counted)
                for name, grant in within.items():  # their holds are taken off in whole
                    if name in node.counting:
                        capacity.give(grant)
                for name, grant in held.items():
                    if name not in node.counting:
                        capacity.take(grant)
            for grant in node.earmarks.values():
                capacity.take(grant)
            node.capacity = capacity
        self.refresh(node)

    def refresh(self, node: Node, grown: bool = True) -> None:
        """Update the index after a change of a node's capacity or state."""
        name = node.facts.name
        if node.usable:
            assert node.capacity is not None
            self.index.put(name, node.facts.priority, node.capacity)
            if grown:
                self.freed_nodes[name] = None
        else:
            self.index.drop(name)
            self.freed_nodes.pop(name, None)
            if node.not_holding:
                self.chains.closed_nodes[name] = None
        if self.holds.waiting:
            self.holds.changed |= dict.fromkeys(one.job for one in node.allocations.values() if one.hold)
        if self.queue.lines:
            self.deadlines.arm("reasons", "", self.now + REASONS_EVERY)
