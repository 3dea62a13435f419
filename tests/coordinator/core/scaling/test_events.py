"""Events and commands of machines: what is stored before a provider is asked, and what is not."""

import msgspec

from distributed_grid.coordinator.core.commands import RECORDS, Event
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachineOver,
    MachinesListed,
    RecordMachine,
    RecordPauses,
)
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed


def test_only_what_is_stored_is_a_record() -> None:
    assert {RecordMachine, RecordPauses} < set(RECORDS)
    assert not {CreateMachine, EndMachine, ListMachines, MachineOver} & set(RECORDS)


def test_events_survive_the_event_log() -> None:
    for event in (
        MachineAnswered("a-1-1", CallKind.CREATE, 2, Answer.CAPACITY, "", "no capacity"),
        MachinesListed("p", 3, (Listed("i-1", "a-1-1", "a", born=5.0),)),
        MachinesListed("p", 3, None, "timed out"),
    ):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event
