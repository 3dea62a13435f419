"""What would have to be asked for instead, so that it could start now: the least change of one kind, tried before it is
said. Nothing is changed here.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core.constraints import meets
from distributed_grid.coordinator.core.matching import Refusal, usable
from distributed_grid.coordinator.core.reserving import Places
from distributed_grid.coordinator.core.room import Room
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placing import Constraints
from distributed_grid.protocol.resources import MIB, MILLI, Resources, format_milli

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


class Change(msgspec.Struct, frozen=True):
    """Another request, which would start now on `node`. `what` is what of it changed (cpu, memory, gpu, …), `text` says
    it, and `cost` is how much is given up of what was asked for, 0 to 1: the least comes first."""

    what: str
    request: Request
    node: str
    text: str
    cost: float


def changes(ledger: "Ledger", request: Request, place: Callable[[Request], Places]) -> list[Change]:
    """All that would help, one of each kind, the least loss first. For a request that cannot start as it is; `place`
    says where another one would."""
    found = []
    for what, other, text, cost in _others(ledger, request):
        placed = place(other)
        if not isinstance(placed, Refusal):
            found.append(Change(what, other, placed[0].node, f"{text} it would start now on {placed[0].node}", cost))
    return sorted(found, key=lambda change: change.cost)


def _others(ledger: "Ledger", request: Request) -> Iterator[tuple[str, Request, str, float]]:
    for kind in ("memory", "cpu", "gpu"):
        asked = getattr(request.resources, kind)
        if asked and 0 < (most := _most_beside(ledger, request, kind)) < asked:
            less = _with(request.resources, kind, most)
            other = msgspec.structs.replace(request, resources=less)
            yield kind, other, f"with {_option(kind, most)}", 1 - most / asked


def _option(kind: str, value: int) -> str:
    """An amount as it is asked for on the command line, to the last bit."""
    if kind == "memory":
        return f"--mem {value // MIB}M"
    return f"--{kind}s {format_milli(value)}"


def _with(wanted: Resources, kind: str, value: int) -> Resources:
    parts = {"cpu": wanted.cpu, "memory": wanted.memory, "gpu": wanted.gpu}
    return Resources(**(parts | {kind: value}))


def _most_beside(ledger: "Ledger", request: Request, kind: str) -> int:
    """The most of one kind that a node has now which has enough of all the others."""
    asked, others = request.constraints, _with(request.resources, kind, 0)
    index = ledger.index
    rooms = [
        node.room
        for name, node in ledger.nodes.items()
        if usable(node) and (asked is None or meets(node, index.labels_of(name), request))
    ]
    fitting = (room for room in rooms if room is not None and room.fits(others, asked))
    return max((most(room, kind, asked) for room in fitting), default=0)


def most(room: Room, kind: str, need: Constraints | None = None) -> int:
    """The most of one kind that one job could be given here: memory in whole MiB, so that it can be said exactly."""
    if kind == "memory":
        return max(0, room.free_memory // MIB * MIB)
    if kind == "cpu":
        return room.whole * MILLI + max(room.parts.values(), default=0)
    return room.most_gpu(need)
