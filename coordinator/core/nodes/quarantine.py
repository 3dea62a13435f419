"""What has failed is left alone for a while, longer each time: a device whose launch was refused (back-off), and a
node that fails several launches in a row (set aside).
"""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, RecordOrders
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.nodes import REASON_CHARS, Aside


def decline(state: GridState, node: Node, device: str) -> None:
    """Leave alone what was not spare after all: the device where it is one, else the node; longer every time."""
    if device == "port":
        return  # the next attempt has another one
    device = device.removeprefix("core").removeprefix("cpu").strip(" -:")
    core = device.isdigit() and int(device) in node.facts.cores
    if not core and device != "memory" and all(gpu.uuid != device for gpu in node.facts.gpus):
        device = ""
    back_off(state, node, device, state.policy.decline_first, state.policy.decline_most)


def back_off(state: GridState, node: Node, device: str, first: float, most: float) -> None:
    """Do not ask for this for so long, doubled each time from the first to the most."""
    until, seconds = node.declined.get(device, (0.0, 0.0))
    if state.now > until + most:
        seconds = 0.0
    seconds = min(most, seconds * 2 or first)
    node.declined[device] = (state.now + seconds, seconds)
    state.rebuild(node)
    state.deadlines.arm("decline", node.facts.name, state.now + seconds)


def backoff_due(state: GridState, name: str) -> None:
    """Something that was left alone may be tried again."""
    node = state.nodes[name]
    state.rebuild(node)
    waiting = [until for until, _ in node.declined.values() if until > state.now]
    if waiting:
        state.deadlines.arm("decline", name, min(waiting))


def accepted(node: Node, allocation: Allocation) -> None:
    """The node did not decline what this allocation holds."""
    if node.declined:
        grant = allocation.grant
        cores = (str(core) for core in (*grant.cores, grant.shared_core))
        for device in ("", "memory", *cores, *(gpu.uuid for gpu in grant.gpus)):
            node.declined.pop(device, None)


BLAMED = frozenset({Cause.SPAWN_FAILED, Cause.WORKDIR_FAILED})
"""A program that is not there, or not one, is not among them: it is the user's, on nearly all nodes alike."""
KEPT = 1000
"""So many commands are remembered for having failed to start."""
EVERYWHERE = ""


def what(job: Job) -> str:
    """What two jobs have in common that fail for the same reason wherever they go."""
    return "\0".join((job.user, job.spec.argv[0] if job.spec.argv else "", job.spec.bundle))


def ended(state: GridState, node: Node, job: Job, outcome: Outcome) -> None:
    """An attempt has ended there. Whether it failed to start, and whose fault that is."""
    if outcome.started or outcome.cause not in BLAMED or job.spec.workdir:
        return  # a directory that a user names may well not be there
    command, name = what(job), node.facts.name
    before = state.failing.get(command)
    if before is None:
        if len(state.failing) >= KEPT:
            del state.failing[next(iter(state.failing))]
        state.failing[command] = name
    elif before != name:
        state.failing[command] = EVERYWHERE
        if before != EVERYWHERE:
            _forgive(state, state.nodes.get(before), command)
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


def _forgive(state: GridState, node: Node | None, command: str) -> None:
    """What was held against this node was not its fault. Where that was all, it is not set aside any more."""
    if node is not None and command in node.failed:
        node.failed = [one for one in node.failed if one != command]
        if not node.failed and node.orders.aside is not None:
            _order(state, node, None)


def arm(state: GridState, node: Node) -> None:
    """Have its time looked at when it is over."""
    if (aside := node.orders.aside) is not None and aside.until:
        state.deadlines.arm("aside", node.facts.name, aside.until)


def due(state: GridState, name: str) -> None:
    """A node may have been set aside for long enough. It is on trial then: one more failure, and it is set aside for
    twice as long; one start, and all is forgotten."""
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
    """A command runs there: the node is in order, and so is the command."""
    if state.failing:
        state.failing.pop(what(job), None)
    node.failed.clear()
    if node.orders.aside is not None:
        _order(state, node, None)


def _order(state: GridState, node: Node, aside: Aside | None) -> None:
    node.orders = replace(node.orders, aside=aside)
    state.out.append(RecordOrders(node.facts.name, node.orders))
    state.refresh(node)
