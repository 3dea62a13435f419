"""What would have to be asked for instead, so that it could start now: the least change of one kind, tried before it is
said. Nothing is changed here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from distributed_grid.coordinator.core.model import Refusal
from distributed_grid.coordinator.core.placement.matching import candidates
from distributed_grid.coordinator.core.queue.reservations import Places
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints
from distributed_grid.protocol.resources import MIB, MILLI, Resources, format_milli
from distributed_grid.protocol.walls import Walls

FRACTION = 10
"""Parts of a GPU are asked for in hundredths (milli-GPUs)."""


class Change(msgspec.Struct, frozen=True):
    """Another request, which would start now on `node`. `what` is what of it changed (cpu, memory, gpu, …), `text` says
    it, and `cost` is how much is given up of what was asked for, 0 to 1: the least comes first."""

    what: str
    request: Request
    node: str
    text: str
    cost: float


def changes(state: GridState, request: Request, place: Callable[[Request], Places]) -> list[Change]:
    """All that would help, one of each kind, the least loss first. For a request that cannot start as it is; `place`
    says where another one would."""
    found = []
    for what, other, text, cost in _others(state, request, place):
        placed = place(other)
        if not isinstance(placed, Refusal):
            where = ", ".join(one.node for one in placed)
            found.append(Change(what, other, placed[0].node, f"{text} it would start now on {where}", cost))
    return sorted(found, key=lambda change: change.cost)


Other = tuple[str, Request, str, float]


def _others(state: GridState, request: Request, place: Callable[[Request], Places]) -> Iterator[Other]:
    if request.gang:
        count = _largest(request.gang - 1, lambda count: _starts(place, msgspec.structs.replace(request, gang=count)))
        if count > 1:
            other = msgspec.structs.replace(request, gang=count)
            yield "nodes", other, f"with --nodes {count}", 1 - count / request.gang
    else:
        for kind in ("memory", "cpu", "gpu"):
            asked = getattr(request.resources, kind)
            if asked and 0 < (most := _most_of(state, request, kind, place)) < asked:
                other = _with(request, kind, most)
                yield kind, other, f"with {_option(kind, most)}", 1 - most / asked
    if request.constraints is not None:
        yield from _relaxed(state, request, request.constraints, place)


def _relaxed(
    state: GridState, request: Request, asked: Constraints, place: Callable[[Request], Places]
) -> Iterator[Other]:
    """One condition left out, or as much of it as has to be."""

    def without(**parts: Any) -> Request:
        left = msgspec.structs.replace(asked, **parts)
        return msgspec.structs.replace(request, constraints=left if left != NO_CONSTRAINTS else None)

    if asked.gpu_memory:
        free = {count // MIB for node in state.nodes.values() if node.room for count in node.room.gpu_memory.values()}
        sizes = sorted(size for size in free if 0 < size * MIB < asked.gpu_memory)
        at = _largest(len(sizes), lambda at: _starts(place, without(gpu_memory=sizes[at - 1] * MIB)))
        if at:
            most = sizes[at - 1]
            cost = 1 - most * MIB / asked.gpu_memory
            yield "gpu-memory", without(gpu_memory=most * MIB), f"with --gpu-memory {most}M", cost
        else:
            yield "gpu-memory", without(gpu_memory=0), "without --gpu-memory", 1.0
    if asked.only:
        yield "only", without(only=()), "without --only", 1.0
    if asked.exclude:
        yield "exclude", without(exclude=()), "without --exclude", 1.0
    for rule in asked.labels:
        labels = tuple(one for one in asked.labels if one != rule)
        yield f"label {rule}", without(labels=labels), f"without --label {rule}", 1.0
    for level in sorted(Walls, key=lambda one: one.strength, reverse=True):
        if level.strength < asked.walls.strength and _starts(place, without(walls=level)):
            text = f"with --walls {level}" if level.strength else "without --walls"
            yield "walls", without(walls=level), text, 1 - level.strength / asked.walls.strength
            break
    if asked.gpu_model:
        yield "gpu-model", without(gpu_model=""), f"without --gpu-model {asked.gpu_model}", 1.0
    if asked.near:
        yield "near", without(near=()), "without --near", 1.0
    if asked.apart:
        yield "apart", without(apart=()), "without --apart", 1.0


def _starts(place: Callable[[Request], Places], request: Request) -> bool:
    return not isinstance(place(request), Refusal)


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` of which it holds; 0: of none. Of what is smaller than one of which it holds, it
    holds as well."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if holds(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _most_of(state: GridState, request: Request, kind: str, place: Callable[[Request], Places]) -> int:
    """The most of one kind with which it would start, all else being as it is."""

    def has_room(count: int) -> bool:
        return bool(candidates(state.nodes, state.index, _with(request, kind, count), state.policy))

    most = _most(kind, getattr(request.resources, kind) - 1, has_room)
    if not most or not state.reservations.by_job:
        return most
    # What is kept for others is in no room that could be asked: it is tried.
    return _most(kind, most, lambda count: _starts(place, _with(request, kind, count)))


def _most(kind: str, most: int, holds: Callable[[int], bool]) -> int:
    """The most of one kind up to so much of which it holds, in the steps in which it can be asked for."""
    step = {"cpu": 1, "memory": MIB, "gpu": MILLI if most >= MILLI else FRACTION}[kind]
    count = _largest(most // step, lambda count: holds(count * step))
    if not count and step == MILLI:
        step = FRACTION
        count = _largest(MILLI // step - 1, lambda count: holds(count * step))
    return count * step


def _option(kind: str, value: int) -> str:
    """An amount as it is asked for on the command line, to the last bit."""
    if kind == "memory":
        return f"--mem {value // MIB}M"
    return f"--{kind}s {format_milli(value)}"


def _with(request: Request, kind: str, value: int) -> Request:
    wanted = request.resources
    parts = {"cpu": wanted.cpu, "memory": wanted.memory, "gpu": wanted.gpu}
    return msgspec.structs.replace(request, resources=Resources(**(parts | {kind: value})))
