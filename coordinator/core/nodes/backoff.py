"""What of a node was refused a moment ago is left alone for a while, longer each time: a device, its memory, all of it,
or what Ray has there."""

from distributed_grid.coordinator.core.model import Allocation, Node
from distributed_grid.coordinator.core.state import GridState


def decline(state: GridState, node: Node, device: str) -> None:
    """Leave alone what was not spare after all: the device where it is one, else the node; longer every time."""
    if device == "port":
        return  # the next attempt has another one
    device = device.removeprefix("core").removeprefix("cpu").strip(" -:")
    core = device.isdigit() and int(device) in node.facts.cores
    if not core and device != "memory" and all(gpu.uuid != device for gpu in node.facts.gpus):
        device = ""
    leave_alone(state, node, device, state.policy.decline_first, state.policy.decline_most)


def leave_alone(state: GridState, node: Node, device: str, first: float, most: float) -> None:
    """Do not ask for this for so long, doubled each time from the first to the most."""
    until, seconds = node.declined.get(device, (0.0, 0.0))
    if state.now > until + most:
        seconds = 0.0
    seconds = min(most, seconds * 2 or first)
    node.declined[device] = (state.now + seconds, seconds)
    state.rebuild(node)
    state.deadlines.arm("decline", node.facts.name, state.now + seconds)


def due(state: GridState, name: str) -> None:
    """Something that was left alone may be tried again."""
    node = state.nodes[name]
    state.rebuild(node)
    waiting = [until for until, _ in node.declined.values() if until > state.now]
    if waiting:
        state.deadlines.arm("decline", name, min(waiting))


def started(node: Node, allocation: Allocation) -> None:
    """The node did not decline what this allocation holds."""
    if node.declined:
        grant = allocation.grant
        cores = (str(core) for core in (*grant.cores, grant.shared_core))
        for device in ("", "memory", *cores, *(gpu.uuid for gpu in grant.gpus)):
            node.declined.pop(device, None)
