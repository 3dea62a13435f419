"""Where a gang goes: a node for each of its members, all different, or none at all; and where its members meet. Nothing
is held for a part of a gang, so two gangs can never wait for each other.
"""

from collections.abc import Container, Mapping, Sequence
from zlib import crc32

from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Node, Placement, Refusal
from distributed_grid.coordinator.core.placement.catalogue import Shown
from distributed_grid.coordinator.core.placement.matching import candidates
from distributed_grid.coordinator.core.placement.scoring import confidence, scores
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import NodeFacts

_LOOPBACK = ("127.", "::1")


def places(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT
) -> tuple[Placement, ...] | Refusal:
    """The places of all members by their rank, the best node first; preferred nodes come before others. All members ask
    for the same amount and none shares a node, so there are places for all if so many nodes fit, whichever is taken."""
    fitting = fits(nodes, index, request, policy)
    if len(fitting) < request.gang:
        return Refusal(len(index))
    ranked: list[tuple[float, int, str, dict[str, float]]] = []
    weights = policy.weights_of(request.strategy)
    for number, name in enumerate(fitting):
        node = nodes[name]
        assert node.room is not None
        parts = scores(node, node.room, request, weights)
        ranked.append((-confidence(parts, weights), number, name, parts))
    ranked.sort(key=lambda one: one[:2])
    found = []
    for sure, _, name, parts in ranked[: request.gang]:
        room = nodes[name].room
        assert room is not None and room.fits(request.resources, request.constraints), f"{name} has no room"
        found.append(Placement(name, room.choose(request.resources, request.constraints), -sure, parts))
    return tuple(found)


def fits(nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT) -> list[str]:
    """Nodes with room for a member: as many as the gang needs and some more, if there are so many."""
    fitting = dict.fromkeys(candidates(nodes, index, request, policy, request.gang))
    if len(fitting) < request.gang:
        others = replace(request, nodes=())
        fitting |= dict.fromkeys(candidates(nodes, index, others, policy, request.gang + len(fitting)))
    return list(fitting)


def meeting(
    gang: str, members: Sequence[NodeFacts], taken: Container[tuple[str, int]], policy: Policy = DEFAULT
) -> tuple[Gang, ...] | None:
    """What each member is told, for these nodes by rank. The port is one that no other gang has at that address; which
    one is tried first depends on `gang`, a name that no other gang and no other attempt has. None: no port is left."""
    addresses = _addresses(members)
    first, last = policy.gang_ports
    count = last - first + 1
    start = crc32(gang.encode())
    for step in range(count):
        port = first + (start + step) % count
        if (addresses[0], port) not in taken:
            break
    else:
        return None
    names = tuple(facts.name for facts in members)
    whole = Gang(0, names, addresses, port)
    return tuple(replace(whole, rank=rank) for rank in range(len(names)))


def _addresses(members: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Where the members find each other. A node on the coordinator's own machine is seen there at an address that means
    another machine to everybody else: among others it goes by its host's name."""
    here = [facts.address.startswith(_LOOPBACK) or not facts.address for facts in members]
    if all(here):
        return tuple(facts.address or "127.0.0.1" for facts in members)
    return tuple(facts.hostname if local else facts.address for facts, local in zip(members, here, strict=True))
