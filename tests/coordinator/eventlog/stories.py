"""Events for a ledger, and the logs that are written of them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgpack
import msgspec

from distributed_grid.coordinator.core.commands import Event, HeartbeatReceived, JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.eventlog.format import files
from distributed_grid.coordinator.eventlog.write import EventLog
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages import Inventory, Started
from distributed_grid.protocol.nodes import NodeFacts, Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, offer

Story = Sequence[tuple[float, Event]]


def same(story: Story) -> list[tuple[float, Event]]:
    """The same events once more: a ledger changes the jobs that it takes."""
    return [(now, msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event)) for now, event in story]


def written(folder: Path, story: Story, policy: Policy = DEFAULT) -> Path:
    """The log of these events, each in a turn of its own."""

    async def write() -> None:
        log = EventLog(Ledger(7, policy=policy), folder, 8 << 20, "grid")
        for now, event in same(story):
            log.next_deadline()
            log.handle(event, now)
            log.settle(now)
        log.close()

    asyncio.run(write())
    return files(folder)[-1]


def came(of: NodeFacts, at: float = 0.0) -> list[tuple[float, Event]]:
    """A node with nothing on it offers all it has."""
    return [
        (at, NodeUp(of, f"s-{of.name}")),
        (at, MessageReceived(of.name, Inventory(()))),
        (at, MessageReceived(of.name, offer(of))),
    ]


def asked(name: str, at: float, cpu: int = 1000, on: tuple[str, ...] = ()) -> tuple[float, Event]:
    return at, JobsSubmitted(1, (job(name, Request(Resources(cpu=cpu), nodes=on), at),))


def beats(node: str, start: float, end: float) -> list[tuple[float, Event]]:
    """A heartbeat every second."""
    return [(start + n, HeartbeatReceived(node, Sample(at=start + n))) for n in range(int(end - start))]


def in_order(*parts: Story) -> list[tuple[float, Event]]:
    return sorted((one for part in parts for one in part), key=lambda one: one[0])


def places(path: Path) -> list[int]:
    """Where the records of a log end."""
    stream = msgpack.Unpacker(path.open("rb"), strict_map_key=False)
    return [stream.tell() for _ in stream]


def rewrite(path: Path, change: object) -> None:
    """Have other decisions in the log."""
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    for turns in values[2:]:
        for turn in turns:
            turn[2] = change(turn[2])  # type: ignore[operator]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))


SILENT = in_order(
    came(facts("lab1", cores=2)),
    came(facts("lab2", cores=2)),
    [
        asked("j1", 1.0, on=("lab1",)),
        asked("j2", 1.0, on=("lab1",)),
        (2.0, MessageReceived("lab1", Started(allocation="j1.1"))),
    ],
    beats("lab2", 0.0, 90.0),
)
"""lab1 is never heard again after 2 s, and lost at 72."""
