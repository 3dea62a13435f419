"""Exponential back-off after failures: for a device whose launch was refused, and for a node that fails several
launches in a row (set aside).
"""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, RecordOrders
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.nodes import REASON_CHARS, Aside


def decline(state: GridState, node: Node, device: str) -> None:
    """Put a refused device in back-off; the whole node, if it is no device."""
    if device == "port":
        return  # the next attempt has another one
    device = device.removeprefix("core").removeprefix("cpu").strip(" -:")
    core = device.isdigit() and int(device) in node.facts.cores
    if not core and device != "memory" and all(gpu.uuid != device for gpu in node.facts.gpus):
        device = ""
    back_off(state, node, device, state.policy.decline_first, state.policy.decline_most)


def back_off(state: GridState, node: Node, device: str, first: float, most: float) -> None:
    """Put a device in back-off, doubled each time from `first` to `most` seconds."""
    until, seconds = node.declined.get(device, (0.0, 0.0))
    if state.now > until + most:
        seconds = 0.0
    seconds = min(most, seconds * 2 or first)
    node.declined[device] = (state.now + seconds, seconds)
    state.rebuild(node)
    state.deadlines.arm("decline", node.facts.name, state.now + seconds)


def backoff_due(state: GridState, name: str) -> None:
    """Handle the end of a back-off."""
    node = state.nodes[name]
    state.rebuild(node)
    waiting = [until for until, _ in node.declined.values() if until > state.now]
    if waiting:
        state.deadlines.arm("decline", name, min(waiting))


def accepted(node: Node, allocation: Allocation) -> None:
    """The node has started an allocation: clear the back-off of its devices."""
    if node.declined:
        grant = allocation.grant
        cores = (str(core) for core in (*grant.cores, *grant.slack, grant.shared_core))
        for device in ("", "memory", *cores, *(gpu.uuid for gpu in grant.gpus)):
            node.declined.pop(device, None)


BLAMED = frozenset({Cause.SPAWN_FAILED, Cause.WORKDIR_FAILED, Cause.DISK_FAILED})
"""Causes that count against a node. A missing or invalid program does not: that is the user's mistake."""
KEPT = 1000
"""Maximum number of failed commands remembered."""
EVERYWHERE = ""


def what(job: Job) -> str:
    """A key of jobs that would fail for the same reason on any node."""
    return "\0".join((job.user, job.spec.argv[0] if job.spec.argv else "", job.spec.bundle))


def ended(state: GridState, node: Node, job: Job, outcome: Outcome) -> None:
    """An attempt has ended: if it failed to start, tell failures of the node from those of the command."""
    if outcome.started or outcome.cause not in BLAMED or job.spec.workdir:
        return  # a directory that a user names may well not be there
    command, name = what(job), node.facts.name
    before = state.failing_commands.get(command)
    if before is None:
        if len(state.failing_commands) >= KEPT:
            del state.failing_commands[next(iter(state.failing_commands))]
        state.failing_commands[command] = name
    elif before != name:
        state.failing_commands[command] = EVERYWHERE
        if before != EVERYWHERE:
            _clear_failures(state, state.nodes.get(before), command)
        return
    node.failed.append(command)
    aside = node.orders.aside
    if len(node.failed) >= (1 if aside is not None else state.policy.aside_after):
        _set_aside(state, node, outcome)


def _set_aside(state: GridState, node: Node, outcome: Outcome) -> None:
    policy, before, name = state.policy, node.orders.aside, node.facts.name
    if before is not None and before.until:
        return  # what was on its way there already
    seconds = policy.aside_first if before is None else min(policy.aside_most, 2 * before.seconds)
    failures = len(node.failed) + (before.failures if before is not None else 0)
    why = outcome.text[:REASON_CHARS] or outcome.cause.value
    aside = Aside(until=state.now + seconds, seconds=seconds, failures=failures, why=why)
    _order(state, node, aside)
    times = "1 launch" if failures == 1 else f"{failures} launches"
    state.out.append(Audit(name, f"set aside for {seconds:g} s after {times} failed in a row: {aside.why}"))
    arm(state, node)


def _clear_failures(state: GridState, node: Node | None, command: str) -> None:
    """A command failed on another node too: clear its failures here, and undo the setting aside if none is left."""
    if node is not None and command in node.failed:
        node.failed = [one for one in node.failed if one != command]
        if not node.failed and node.orders.aside is not None:
            _order(state, node, None)


def arm(state: GridState, node: Node) -> None:
    """Set the deadline at which it is no longer set aside."""
    if (aside := node.orders.aside) is not None and aside.until:
        state.deadlines.arm("set-aside", node.facts.name, aside.until)


def due(state: GridState, name: str) -> None:
    """Handle the end of being set aside. The node is on probation then: one more failure sets it aside for twice as
    long, one start clears its record."""
    node = state.nodes[name]
    aside = node.orders.aside
    if aside is None or not aside.until:
        return
    if state.now < aside.until:
        arm(state, node)
    else:
        node.failed.clear()
        _order(state, node, replace(aside, until=0.0))


def started(state: GridState, node: Node, job: Job) -> None:
    """A command has started: clear the failures of the node and of the command."""
    if state.failing_commands:
        state.failing_commands.pop(what(job), None)
    node.failed.clear()
    if node.orders.aside is not None:
        _order(state, node, None)


def _order(state: GridState, node: Node, aside: Aside | None) -> None:
    node.orders = replace(node.orders, aside=aside)
    state.out.append(RecordOrders(node.facts.name, node.orders))
    state.refresh(node)
