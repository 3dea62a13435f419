"""Groups: many jobs of one submission. A group has an id (`j-…`); its members are jobs whose ids are made of that and
their index (`j-…_7`). A gang is a job that runs as one on several nodes at once, one member on each node."""

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Dependency, JobSpec, Reason, Request
from distributed_grid.protocol.resources import Code, Count, Finite, Index, Number

MOST_MEMBERS = 100_000
MOST_INDEX = 999_999_999
_PART = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?"


class GroupKind(StrEnum):
    """How the members are related: those of an array run independently, those of a gang all at the same time."""

    ARRAY = "array"
    GANG = "gang"


class Array(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of an array, as (first, last, step), each part behind the one before it. `most`: maximum number of
    members that hold resources or are in the queue at once (0: no limit); `max_fails`: if more of them fail, the rest
    is ended (-1: never)."""

    parts: tuple[tuple[Number, Number, Number], ...]
    most: Code = 0
    max_fails: Code = -1


def indexes(parts: tuple[tuple[int, int, int], ...]) -> Iterator[int]:
    """The indexes of all members, ascending."""
    for first, last, step in parts:
        yield from range(first, last + 1, step)


def count(parts: tuple[tuple[int, int, int], ...]) -> int:
    """Return the number of members."""
    return sum(len(range(first, last + 1, step)) for first, last, step in parts)


def sound(array: Array) -> BadValue | None:
    """Check a received array. Returns what is wrong; None: nothing."""
    before = -1
    for first, last, step in array.parts:
        if not before < first <= last <= MOST_INDEX or step < 1:
            return BadValue(f"the array {words(array)!r} cannot be made", why="its indexes have to ascend")
        before = last
    size = count(array.parts)
    if not 0 < size <= MOST_MEMBERS:
        return BadValue(f"an array of {size} jobs cannot be made", hint=f"give 1 to {MOST_MEMBERS}")
    if not 0 <= array.most <= MOST_INDEX or not -1 <= array.max_fails <= MOST_INDEX:
        return BadValue("an array's limits cannot be used", why=f"they go from 0 to {MOST_INDEX}")
    return None


def parse_array(text: str, max_fails: int | None = None) -> Array:
    """An array from `0-99`, `1-10:2`, `1,3,7`, and with `%8` behind: at most 8 at once. Raises BadValue."""
    hint = "write it as 0-99, 1-10:2 or 1,3,7; with %8 behind, at most 8 run at once"
    which, percent, limit = text.strip().partition("%")
    if percent and not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and int(limit)):
        raise BadValue(f"the array {text!r} cannot be read", why=f"{limit!r} is no number above zero", hint=hint)
    numbers: list[tuple[int, int, int]] = []
    for part in which.split(","):
        match = re.fullmatch(_PART, part.strip())
        if match is None:
            raise BadValue(f"the array {text!r} cannot be read", why=f"{part!r} is no range of indexes", hint=hint)
        first, last, step = (int(group) if group else 0 for group in match.groups())
        last = last if match[2] else first
        if last < first:
            raise BadValue(f"the array {text!r} cannot be read", why=f"{part!r} ends before it begins", hint=hint)
        if match[3] and not step:
            raise BadValue(f"the array {text!r} cannot be read", why=f"{part!r} makes steps of nothing", hint=hint)
        numbers.append((first, last, max(1, step)))
    if max_fails is not None and max_fails < 0:
        raise BadValue(f"--max-fails {max_fails} is below zero", hint="0 ends the rest after the first that fails")
    array = Array(_ascending(numbers, text), int(limit) if percent else 0, -1 if max_fails is None else max_fails)
    if problem := sound(array):
        raise problem
    return array


def _ascending(parts: list[tuple[int, int, int]], text: str) -> tuple[tuple[int, int, int], ...]:
    """The parts in order. Those that overlap are taken apart: an index is one job, however often it is said."""
    parts = [(first, first + (last - first) // step * step, step) for first, last, step in sorted(parts)]
    if all(one[1] < other[0] for one, other in zip(parts, parts[1:], strict=False)):
        return tuple(parts)
    if count(tuple(parts)) > MOST_MEMBERS:
        raise BadValue(f"the array {text!r} has too many jobs", hint=f"{MOST_MEMBERS} are the most")
    made: list[tuple[int, int, int]] = []
    for index in sorted(set(indexes(tuple(parts)))):
        if made and made[-1][1] + 1 == index:
            made[-1] = (made[-1][0], index, 1)
        else:
            made.append((index, index, 1))
    return tuple(made)


def words(array: Array) -> str:
    """An array as people write it."""
    text = ",".join(
        str(first) if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")
        for first, last, step in array.parts
    )
    return text + (f"%{array.most}" if array.most else "")


def member_id(group: str, index: int) -> str:
    """The id of a group's member."""
    return f"{group}_{index}"


def split_member(text: str) -> tuple[str, int] | None:
    """Split the id of a member into its group (an id or name) and index; None: it is no id of a member."""
    group, mark, index = text.rpartition("_")
    return (group, int(index)) if mark and group and index.isascii() and index.isdecimal() and len(index) < 10 else None


class GroupView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A group as clients see it. `states` counts its members by state; of those that have ended `failed` did not exit
    with 0 and `cancelled` were cancelled (they are not among the failed). `reason`: why those that wait do,
    `ended`: when the last of them had."""

    id: str
    user: str
    kind: GroupKind
    spec: JobSpec
    request: Request
    submitted: Finite
    count: Count
    array: Array | None = None
    states: dict[str, Count] = {}
    failed: Count = 0
    cancelled: Count = 0
    ended: Finite = 0.0
    reason: Reason | None = None
    after: tuple[Dependency, ...] = ()
    begin: Finite = 0.0


MOST_NODES = 256
"""Every member is told the names of all."""
LONGEST_RANGE = 65535


class Gang(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of its gang that a member gets: its own `rank`, the names of the nodes and their addresses by rank, and
    a port on the node of rank 0 for their rendezvous. That node checks at the launch that the port is free."""

    rank: Index
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    port: Count


def environment(gang: Gang) -> dict[str, str]:
    """The variables of a member: our own, those that torchrun is given, and those that torch.distributed and its like
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
    """Parse the number of nodes of a gang to the field `gang` of a Request; None: an ordinary job. Raises BadValue."""
    if nodes is None:
        return 0
    if not 1 <= nodes <= MOST_NODES:
        raise BadValue(f"a gang on {nodes} nodes cannot be asked for", hint=f"give a number from 1 to {MOST_NODES}")
    return nodes


def parse_ports(text: str) -> tuple[int, int]:
    """The first and the last port of a range such as `29500-29999`. Raises BadValue."""
    first, dash, last = text.strip().partition("-")
    if not (text.isascii() and first.isdecimal() and (last if dash else first).isdecimal()):
        raise BadValue(f"{text!r} is not a range of ports", hint="write it as 29500-29999")
    low, high = int(first), int(last if dash else first)
    if not 0 < low <= high <= LONGEST_RANGE:
        raise BadValue(f"{text!r} is not a range of ports", why="ports go from 1 to 65535", hint="write 29500-29999")
    return low, high
