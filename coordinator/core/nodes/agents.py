"""Agents: connections, heartbeats, messages and silence timeouts. Only a report of the agent, or the loss of its node,
ends an allocation: until then it is in use. If the store has lost commits, nothing is started, and what nodes report
of allocations is accepted.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    AckExits,
    Alarm,
    Audit,
    ForecastsReported,
    HeartbeatReceived,
    LossFound,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordAllocation,
    RecordJob,
    RecordLoss,
    RecordNode,
    Send,
)
from distributed_grid.coordinator.core.lifecycle import boosts, holds, outcomes
from distributed_grid.coordinator.core.lifecycle.attempts import (
    awaits_reader,
    launch,
    lease_expired,
    may_be_alive_unknown,
    recalled,
    record_lost,
    suspended,
)
from distributed_grid.coordinator.core.model import Allocation, Attempt, AwaitsHold, HeldBack, Job, Node, Queued
from distributed_grid.coordinator.core.nodes import idle, operator, quarantine
from distributed_grid.coordinator.core.placement import ray
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.coordinator.core.preemption import execute
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, State, bounded
from distributed_grid.protocol.messages import (
    AwaitsReader,
    Exited,
    InEffect,
    InUse,
    Inventory,
    Noted,
    Recalled,
    Renewed,
    Stale,
    Started,
    Stop,
    Suspended,
)
from distributed_grid.protocol.nodes import Known, NodeFacts, NodeState, Offer
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import Resources

FINDINGS_KEPT = 20
"""Maximum number of findings of lost commits."""
CLOCKS_APART = 1.0
"""So much more a node may have measured than the time since a grant (s)."""


def loss_found(state: GridState, event: LossFound) -> None:
    """Handle evidence of lost commits."""
    declare_loss(state, event.found)


def declare_loss(state: GridState, text: str) -> None:
    """Start nothing until an operator has chosen what to do."""
    if text in state.loss or len(state.loss) >= FINDINGS_KEPT:
        return
    state.loss += (text,)
    state.out += (RecordLoss(text), Alarm(text))


def take_unknown_result(state: GridState, node: Node, exited: Exited) -> bool:
    """A node reports, with proof, the result of an attempt whose grant is lost: it becomes the result of the job.
    False: there is no proof, or no such waiting job."""
    name, _, number = exited.allocation.rpartition(".")
    job = state.jobs.get(name)
    if exited.stamp is None or job is None or not number.isdecimal() or int(number) <= job.tries:
        return False
    if not isinstance(job.phase, Queued | HeldBack | AwaitsHold) or job.request.gang:
        return False
    said = f"{exited.allocation} is over there: that is the result of {job.id} from now on"
    state.out.append(Audit(node.facts.name, said))
    job.tries = int(number)
    attempt = Attempt(node.facts.name, None)
    if exited.outcome.started:
        attempt.started = min(state.now, max(job.submitted, state.now - exited.outcome.seconds))
    text = f"ended on {node.facts.name}, as {exited.allocation}, whose grant was lost"
    outcomes.conclude(state, job, exited.outcome, text=text, attempt=attempt)
    return True


_LEVELS = frozenset(map(str, Walls))


# --- connections ---------------------------------------------------------------------------------------------------


def know(state: GridState, facts: NodeFacts) -> Node:
    """Keep the facts of a node, new or known."""
    node = state.nodes.get(facts.name)
    if node is None:
        node = state.nodes[facts.name] = Node(facts, last_seen=state.now)
        state.shares.know(Resources(), facts.lendable)
        arm(state, node)
    elif node.facts != facts:
        state.shares.know(node.facts.lendable, facts.lendable)
        node.facts = facts
    else:
        return node
    state.feasible_nodes.clear()
    state.index.learn(node, labels(node))
    return node


def node_up(state: GridState, event: NodeUp) -> None:
    """An agent has connected; it gets no work until its inventory is here."""
    old = state.nodes.get(event.facts.name)
    before = old.facts.unknown if old is not None else ""
    if old is None or old.facts != event.facts:
        state.out.append(RecordNode(event.facts))
    if old is not None and old.facts.boot_id != event.facts.boot_id:
        old.sample = None  # its clock has begun anew
    if old is not None and old.facts != event.facts:
        boosts.forget_failures(old)
    node = know(state, event.facts)
    node.session, node.last_seen = event.session, state.now
    state.move_node(node, NodeState.UP)
    node.synced, node.offer = False, None
    if event.facts.unknown not in ("", before):
        state.out.append(Audit(event.facts.name, event.facts.unknown))
    node.orphans.clear()  # what was on its way on the old connection is gone; what runs is taken off the next offer
    state.rebuild(node)
    arm(state, node)


def node_down(state: GridState, event: NodeDown) -> None:
    """The connection is closed. The node gets the same time to return as a silent one."""
    node = state.nodes.get(event.node)
    if node is None or node.session != event.session:
        return
    node.session, node.synced, node.offer = "", False, None
    if node.state is NodeState.UP:
        state.move_node(node, NodeState.SUSPECT)
    state.rebuild(node)
    arm(state, node)


def arm(state: GridState, node: Node) -> None:
    """Set the deadline of the node's next silence timeout."""
    if node.state is NodeState.LOST or node.facts.declared is not None:
        return
    policy = state.policy
    patience = policy.suspect_after if node.state is NodeState.UP else policy.disconnected_after
    if state.now >= node.last_seen + policy.disconnected_after:
        patience = policy.disconnected_after + policy.lost_after
    state.deadlines.arm("silence", node.facts.name, node.last_seen + patience)


def silence(state: GridState, name: str) -> None:
    """Handle a silence timeout, which only ever degrades the state of a node."""
    node = state.nodes[name]
    now, policy = state.now, state.policy
    if now >= node.last_seen + policy.disconnected_after + policy.lost_after:
        if node.state is not NodeState.LOST:
            # Its jobs are ended here and may run on there: only an offer made after that says what is free.
            state.move_node(node, NodeState.LOST)
            node.offer = None
            state.rebuild(node)
            _give_up(state, node)
    elif now >= node.last_seen + policy.disconnected_after:
        if node.state is not NodeState.LOST:
            state.move_node(node, NodeState.DISCONNECTED)
            state.refresh(node)
            silent = f"{name} has been silent for {policy.disconnected_after:g} s"
            for allocation in node.launched:
                if allocation.awaits_ray:
                    ray.never_began(state, allocation, silent)
                elif allocation.state is not State.LOST:
                    _lose(state, allocation, silent)
            execute.abandon(state, node)
    elif now >= node.last_seen + policy.suspect_after and node.state is NodeState.UP:
        state.move_node(node, NodeState.SUSPECT)
        state.refresh(node)
    arm(state, node)


def _lose(state: GridState, allocation: Allocation, text: str) -> None:
    state.move(allocation, State.LOST, text)
    state.changed(state.jobs[allocation.job], allocation)


def _give_up(state: GridState, node: Node) -> None:
    """The node is lost: end its allocations, and tell it to stop them in case it can be reached after all."""
    if state.loss:
        return  # an operator chooses first
    silence = state.policy.disconnected_after + state.policy.lost_after
    for allocation in [
        *node.not_holding.values(),
        *node.allocations.values(),
        *node.inside.values(),
    ]:  # so that no successor takes anything over, and what is inside of a hold has a grant of its own when it ends
        if allocation.state is not State.LOST:
            state.move(allocation, State.LOST, "")
        if allocation.hold:
            text = f"{node.facts.name} was not heard for {silence:g} s"
            _end_lost(state, allocation, Cause.NODE_LOST, text, again=True)
            continue
        if allocation.id in node.allocations:
            node.orphans[allocation.id] = allocation.grant
        # Its lease ends nothing there where the node does not know of it.
        over = lease_expired(allocation, state.policy) and not may_be_alive_unknown(node.facts, allocation)
        after = "its lease has run out there" if over else "the job may have run on there"
        text = f"{node.facts.name} was not heard for {silence:g} s; {after}"
        _end_lost(state, allocation, Cause.NODE_LOST, text, again=over)
        state.out.append(Send(node.facts.name, Stop(allocation=allocation.id, cause=Cause.NODE_LOST.value, text=text)))


def machine_gone(state: GridState, node: Node, text: str) -> None:
    """The machine of this node is gone for sure: what ran there is over, and may be run again elsewhere."""
    node.session, node.synced, node.offer = "", False, None
    if node.state is not NodeState.LOST:
        state.move_node(node, NodeState.LOST)
    state.rebuild(node)
    execute.abandon(state, node)
    for allocation in [*node.not_holding.values(), *node.allocations.values(), *node.inside.values()]:
        if allocation.state is not State.LOST:
            state.move(allocation, State.LOST, "")
        _end_lost(state, allocation, Cause.NODE_LOST, text, again=True)
    node.orphans.clear()


def _end_lost(state: GridState, allocation: Allocation, cause: Cause, text: str, again: bool) -> None:
    # It counts as started also where that was not heard of: it may have been, and "it never ran" is only said for sure.
    outcome = Outcome(cause=cause, text=text)
    outcomes.over(state, state.jobs[allocation.job], outcome, allocation, text, again)


def heartbeat(state: GridState, event: HeartbeatReceived) -> None:
    """Handle a heartbeat: it renews the leases there, and a silent node is back."""
    if (node := state.nodes.get(event.node)) is None:
        return
    node.last_seen, node.sample = state.now, event.sample
    if event.at and not node.orphans:  # what was given up there is to end
        state.out.append(Send(event.node, Renewed(event.at)))
    if node.state is not NodeState.UP:
        _alive(state, node)


def forecasts_reported(state: GridState, event: ForecastsReported) -> None:
    """Handle new forecasts of how long nodes stay idle. They only change where jobs are placed from now on."""
    for name, forecast in event.nodes.items():
        if (node := state.nodes.get(name)) is not None:
            node.forecast = forecast
            state.index.expect(name, forecast)


def _alive(state: GridState, node: Node) -> None:
    """A silent node is back on the same connection, on which no message was lost."""
    if not node.session or node.state is NodeState.UP:
        return
    state.move_node(node, NodeState.UP)
    arm(state, node)
    state.refresh(node)
    if node.synced:
        for allocation in node.launched:
            # A launch still on its way arrives. Sent a second time, it could follow the agent's stale and start then.
            known = allocation.started or allocation.stop is not None
            if allocation.state is State.LOST and known and not may_be_alive_unknown(node.facts, allocation):
                _found(state, node, allocation, running=allocation.started > 0)


# --- messages ------------------------------------------------------------------------------------------------------


def message_received(state: GridState, event: MessageReceived) -> None:
    """Handle a message about offers or allocations."""
    node = state.nodes.get(event.node)
    if node is None or not node.session:
        state.out.append(Audit(event.node, f"{type(event.message).__name__} from a node that is not connected"))
        return
    node.last_seen = state.now
    if node.state is not NodeState.UP:
        _alive(state, node)
    _ON[type(event.message)](state, node, event.message)


def _offer(state: GridState, node: Node, offer: Offer) -> None:
    node.offer, node.offer_until = offer, state.now + offer.expires_in
    state.rebuild(node)
    state.deadlines.arm("offer", node.facts.name, node.offer_until)


def offer_due(state: GridState, name: str) -> None:
    """An offer may have expired."""
    node = state.nodes[name]
    if node.offer is None:
        return
    if state.now >= node.offer_until:
        node.offer = None
        state.rebuild(node)
    else:
        state.deadlines.arm("offer", name, node.offer_until)


def _of(state: GridState, node: Node, allocation: str) -> Allocation | None:
    """The live allocation of this id, if it is on this node."""
    found = state.allocations.get(allocation)
    return found if found is not None and found.node == node.facts.name and not found.hold else None


def _inventory(state: GridState, node: Node, inventory: Inventory) -> None:
    """Reconcile all allocations of a node with those its agent knows, after each connect."""
    node.synced = True
    known = {item.allocation: item for item in inventory.known}
    for allocation in node.launched:
        _reconcile(state, node, allocation, known.pop(allocation.id, None))
    holds.rebooted(state, node)
    for item in known.values():
        _unknown_allocation(state, node, item)
    state.refresh(node)


def _reconcile(state: GridState, node: Node, allocation: Allocation, item: Known | None) -> None:
    name = node.facts.name
    if allocation.awaits_ray:
        allocation.boot, allocation.instance = node.facts.boot_id, node.facts.instance  # it is told of it first
    elif item is not None and item.outcome is not None:
        _set_walls(state.jobs[allocation.job], allocation, item.walls)
        _exited(state, node, Exited(allocation=allocation.id, outcome=item.outcome))
    elif item is not None and item.state is State.ENDED:
        pass  # how it ended is told by itself, right after
    elif item is not None:
        _set_walls(state.jobs[allocation.job], allocation, item.walls)
        allocation.instance = node.facts.instance  # it is known also where other records were lost
        _found(state, node, allocation, item.state is not State.STARTING, item.started_for)
        awaits_reader(state, node, AwaitsReader(allocation=allocation.id, why=item.awaits_reader))
    elif state.loss:
        pass  # what it came to may be lost: nothing is said of it before an operator has chosen
    elif record_lost(node.facts, allocation):
        if not node.facts.unknown:
            text = f"{name} lost its records of it, and nothing of it lives there"
            _end_lost(state, allocation, Cause.NODE_LOST, text, again=True)
        elif allocation.state is not State.LOST:
            _lose(state, allocation, f"{name} does not know what became of it: {node.facts.unknown}")
    elif allocation.boot not in ("", node.facts.boot_id):
        # Also where nothing is known to have started: it may have, and ended with the node.
        _end_lost(state, allocation, Cause.REBOOTED, f"{name} was rebooted", again=True)
    elif allocation.instance not in ("", node.facts.instance):
        # It may have started, and may run on, and who is there now cannot know. So nothing is started again either.
        text = f"{name} has an agent with another state directory; the job may have run on there"
        _end_lost(state, allocation, Cause.NODE_LOST, text, again=False)
    elif allocation.started:
        _end_lost(state, allocation, Cause.NODE_LOST, f"{name} does not know it any more", again=True)
    else:
        _found(state, node, allocation, running=False)


def _found(state: GridState, node: Node, allocation: Allocation, running: bool, started_for: float = 0.0) -> None:
    """The node is back with this allocation, `running` or not started (perhaps its launch was lost)."""
    name, job = node.facts.name, state.jobs[allocation.job]
    before, known = allocation.state, allocation.started
    if running:
        _takes_over(state, node, allocation)
    if running and not allocation.started:
        allocation.started = job.active.attempt.started = _began(state, allocation, started_for)
    if allocation.stop is not None:
        if allocation.state is State.LOST and not allocation.stop.unless_started:
            state.move(allocation, State.STOPPING, f"{name} is back, it is told to stop again")
        state.out.append(Send(name, allocation.stop))
    elif running and boosts.awaited(job):
        boosts.found(state, job, allocation)
    elif running:
        if allocation.state is not State.RUNNING:
            said = "started" if before is State.STARTING else f"{name} is back, it runs on"
            state.move(allocation, State.RUNNING, said)
        boosts.again(state, job)
    elif not running and not state.loss:
        # The launch may have been lost with the connection. An agent that has it already starts nothing again.
        state.out.append(Send(name, launch(state, job, allocation)))
    if allocation.state is not before or allocation.started != known:
        state.changed(job, allocation)


def _unknown_allocation(state: GridState, node: Node, item: Known) -> None:
    name = node.facts.name
    if item.outcome is not None:
        state.out.append(Audit(name, _ended_there(item.allocation, item.outcome)))
        state.out.append(AckExits(name, (item.allocation,)))
        return
    if item.state is State.ENDED:
        return  # its Exited follows
    if state.loss:
        state.out.append(Audit(name, f"{item.allocation} is {item.state.value} there and not known here: it runs on"))
        return
    if item.state is not State.STARTING and state.now - item.started_for < state.unknown_before:
        state.out.append(Audit(name, f"{item.allocation} is from before the backup was restored: it may run on"))
        return
    text = "the grid does not count on it any more"
    state.out.append(Audit(name, f"{item.allocation} is {item.state.value} there and not known here: told to stop"))
    state.out.append(Send(name, Stop(allocation=item.allocation, cause=Cause.NODE_LOST.value, text=text)))


def _started(state: GridState, node: Node, message: Started) -> None:
    allocation = _of(state, node, message.allocation)
    if allocation is None or allocation.started:
        if allocation is None or allocation.state is not State.RUNNING:
            state.out.append(Audit(node.facts.name, f"{message.allocation} started, which was not awaited"))
        return
    job = state.jobs[allocation.job]
    _takes_over(state, node, allocation)
    allocation.started = job.active.attempt.started = state.now
    _set_walls(job, allocation, message.walls)
    quarantine.accepted(node, allocation)
    if node.failed or node.orders.aside is not None or state.failing_commands:
        quarantine.started(state, node, job)
    if boosts.awaited(job) and allocation.stop is None:
        boosts.found(state, job, allocation)
    elif allocation.state is State.STARTING or (allocation.state is State.LOST and allocation.stop is None):
        state.move(allocation, State.RUNNING, _started_on(node, allocation))
        state.changed(job, allocation, soon=True)
    else:  # the stop is on its way to it
        state.tell(job, f"started on {node.facts.name}, and will be stopped")
        state.out += (RecordAllocation(allocation, soon=True), RecordJob(job, soon=True))


def _started_on(node: Node, allocation: Allocation) -> str:
    walls = f", walls {allocation.walls}" if allocation.walls else ""
    return f"started on {node.facts.name}{walls}"


def _takes_over(state: GridState, node: Node, allocation: Allocation) -> None:
    """Handle the start of an allocation: if it is a successor, nothing of its predecessor is alive, and it is not
    withdrawn any more."""
    if allocation.stop is not None and allocation.stop.unless_started:
        allocation.stop = None
        operator.arm_drain(state, node)  # it is not to outlast a deadline that is over
    before = state.chains.predecessors.get(allocation.id)
    if before is not None:
        _takes_over(state, node, state.allocations[before])
        state.take_over(allocation)


def _set_walls(job: Job, allocation: Allocation, walls: str) -> None:
    """Set the walls that its node reports; only the first report counts, since an agent may have others after a
    restart."""
    if walls in _LEVELS and not allocation.walls:
        allocation.walls = job.walls = walls


def _stale(state: GridState, node: Node, message: Stale) -> None:
    allocation = _of(state, node, message.allocation)
    if allocation is None or allocation.started:
        state.out.append(Audit(node.facts.name, f"{message.allocation} answered stale, which was not awaited"))
        _orphan_ended(state, node, message.allocation, returned=False)
        return
    if allocation.id not in node.not_holding:  # also inside of a hold
        quarantine.decline(state, node, message.device)
    elif (before := state.chains.predecessors.get(allocation.id)) is not None:
        state.chains.close(before)
    ray.never_began(state, allocation, f"{node.facts.name} did not start it: {message.reason}")


def _exited(state: GridState, node: Node, message: Exited) -> None:
    if (bound := bounded(message.outcome)) is not message.outcome:
        message = replace(message, outcome=bound)
    allocation = _of(state, node, message.allocation)
    if allocation is None:
        if not take_unknown_result(state, node, message):
            state.out.append(Audit(node.facts.name, _ended_there(message.allocation, message.outcome)))
        _orphan_ended(state, node, message.allocation, message.returned)
    else:
        if message.returned:
            node.counting.pop(allocation.id, None)  # so that the capacity grows by it
        job = state.jobs[allocation.job]
        if message.outcome.started:
            _takes_over(state, node, allocation)
            if message.outcome.cause is Cause.EXITED and message.outcome.seconds > 0:
                ran = _ran_for(state, allocation, message.outcome)
                state.chains.learn(job.user, job.request, _held_for(state, job, allocation, ran))
                state.queue.run_times.learn(job.user, ran)
        if message.outcome.started and not allocation.started:
            allocation.started = job.active.attempt.started = _began(state, allocation, message.outcome.seconds)
            _set_walls(job, allocation, message.walls)
            quarantine.accepted(node, allocation)
            if message.walls:
                state.tell(job, _started_on(node, allocation))
        if message.outcome.cause in (Cause.NODE_OUT_OF_MEMORY, Cause.DISK_FAILED):
            quarantine.decline(state, node, "")  # the next attempt, and everybody else, had better go elsewhere
        quarantine.ended(state, node, job, message.outcome)
        outcome = boosts.outcome_of(job, message.outcome)
        if boosts.failed(state, node, allocation, outcome):
            allocation.outcome = outcome
            outcomes.requeue(state, job, allocation, f"{node.facts.name} did not join: {outcome.text}")
        else:
            outcome = boosts.with_all_failures(state, job, outcome)
            outcomes.over(state, job, outcome, allocation, _words(outcome))
    state.out.append(AckExits(node.facts.name, (message.allocation,)))


def _began(state: GridState, allocation: Allocation, seconds: float) -> float:
    """Return the start time of an allocation that has run for `seconds` according to its node."""
    return min(state.now, max(allocation.granted, state.now - seconds))


def _ran_for(state: GridState, allocation: Allocation, outcome: Outcome) -> float:
    """Return how long an attempt has run (s) according to its node, but no longer than it was granted: its user's jobs
    are placed by that on other nodes, too."""
    return min(outcome.seconds, state.now - allocation.granted + CLOCKS_APART)


def _held_for(state: GridState, job: Job, allocation: Allocation, ran: float) -> float:
    """Return how long the next job has to wait for the resources of a job like this (s): its run time, and the time
    before that for unpacking its files."""
    return max(ran, state.now - allocation.granted) if job.spec.bundle else ran


def _orphan_ended(state: GridState, node: Node, name: str, returned: bool) -> None:
    grant = node.orphans.pop(name, None)
    if grant is not None:
        if returned:
            node.counting.pop(name, None)
        state.give_back(node, name, grant)


def _ended_there(name: str, outcome: Outcome) -> str:
    return f"{name} is over there ({_words(outcome)}), and was ended here already, or never known"


def _words(outcome: Outcome) -> str:
    if outcome.cause is Cause.EXITED:
        return f"exited with code {outcome.code}"
    ending = f"{outcome.cause.value} by signal {outcome.signal}" if outcome.signal else outcome.cause.value
    return f"{ending}: {outcome.text}" if outcome.text else ending


def _noted(state: GridState, node: Node, message: Noted) -> None:
    """Add the node's note to the job's story, once."""
    allocation = node.at_work(message.allocation)
    if allocation is None:
        return
    job = state.jobs[allocation.job]
    text = f"{node.facts.name}: {message.text}"
    if all(step.text != text for step in job.story):
        state.tell(job, text)
        state.changed(job, soon=True)


def _in_effect(state: GridState, node: Node, message: InEffect) -> None:
    """The node's settings have changed, and with them what it can lend at most and its weight."""
    priority = message.settings.values.priority
    facts = replace(
        node.facts,
        lendable=message.lendable,
        priority=node.facts.priority if priority is None else priority,
    )
    if facts != node.facts:
        state.out.append(RecordNode(know(state, facts).facts))
        state.refresh(node)


_ON: dict[type, Callable[[GridState, Node, Any], None]] = {
    Offer: _offer,
    Inventory: _inventory,
    Started: _started,
    Stale: _stale,
    Exited: _exited,
    Suspended: suspended,
    AwaitsReader: awaits_reader,
    Recalled: recalled,
    Noted: _noted,
    InUse: idle.usage_reported,
    InEffect: _in_effect,
}
