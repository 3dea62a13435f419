"""Gangs: jobs that run as one on several nodes at once, one member a node."""

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.numbers import Count, Index

MOST_NODES = 256
"""Every member is told the names of all."""
LONGEST_RANGE = 65535


class Gang(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member is told of its gang: its own `rank`, the names of the nodes and their addresses by rank, and a port
    on the node of rank 0 where they can meet. That node sees at the launch that nobody listens there."""

    rank: Index
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    port: Count


def environment(gang: Gang) -> dict[str, str]:
    """The variables of a member: our own, those that torchrun is given, and those that torch.distributed and its kin
    look for where each node runs one process."""
    rank, count = str(gang.rank), str(len(gang.nodes))
    return {
        "GRID_NODE_RANK": rank,
        "GRID_NNODES": count,
        "GRID_NODES": ",".join(gang.nodes),
        "GRID_NODE_ADDRESSES": ",".join(gang.addresses),
        "MASTER_ADDR": gang.addresses[0],
        "MASTER_PORT": str(gang.port),
        "NODE_RANK": rank,
        "RANK": rank,
        "WORLD_SIZE": count,
    }


def parse_gang(nodes: int | None) -> int:
    """The field `gang` of a Request: on so many nodes at once; None: an ordinary job. Raises BadValue."""
    if nodes is None:
        return 0
    if not 1 <= nodes <= MOST_NODES:
        raise BadValue(f"a gang on {nodes} nodes cannot be asked for", hint=f"give a number from 1 to {MOST_NODES}")
    return nodes


def parse_ports(text: str) -> tuple[int, int]:
    """The first and the last port of a range such as `29500-29999`. Raises BadValue."""
    first, dash, last = text.strip().partition("-")
    if not (first.isdecimal() and (last if dash else first).isdecimal()):
        raise BadValue(f"{text!r} is not a range of ports", hint="write it as 29500-29999")
    low, high = int(first), int(last if dash else first)
    if not 0 < low <= high <= LONGEST_RANGE:
        raise BadValue(f"{text!r} is not a range of ports", why="ports go from 1 to 65535", hint="write 29500-29999")
    return low, high
