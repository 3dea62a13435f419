"""Commands of the ledger become questions to providers, and their answers events."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachinesListed,
)
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind
from distributed_grid.coordinator.providers.service import MachineService
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from tests.coordinator.providers.scene import settings

MACHINE = Machine(name="a-1-1", pool="a", provider="command", state=MachineState.CREATING, calls=1, join_within=60.0)


class Scene:
    """A service with the user's programs as provider, and the events that it has put."""

    def __init__(self, folder: Path, pki: Pki | None = None, lag: float = 0.0) -> None:
        """`lag`: by how much grid time is behind the wall clock (s)."""
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        given, clock = {"command": settings(folder)}, lambda: time.time() - lag
        self.service = MachineService("g1", self.events.put_nowait, pki, lambda: "ws://127.0.0.1:9", given, {}, clock)

    async def does(self, command: CreateMachine | EndMachine | ListMachines) -> Any:
        self.service.perform(command)
        return await asyncio.wait_for(self.events.get(), 30)


async def test_a_machine_is_created_listed_and_ended(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    made = await scene.does(CreateMachine(MACHINE))
    assert made == MachineAnswered("a-1-1", CallKind.CREATE, 1, Answer.DONE, "vm-a-1-1")
    found = await scene.does(ListMachines("command", 7))
    assert isinstance(found, MachinesListed) and found.number == 7 and found.listed is not None
    assert [one.name for one in found.listed] == ["a-1-1"]
    ended = await scene.does(EndMachine("command", "a-1-1", "vm-a-1-1", 1))
    assert ended == MachineAnswered("a-1-1", CallKind.END, 1, Answer.DONE)
    assert (await scene.does(EndMachine("command", "a-1-1", "vm-a-1-1", 2))).answer is Answer.GONE
    await scene.service.close()


async def test_a_creation_that_is_asked_for_again_meanwhile_is_done_once_and_answered_twice(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "does").write_text("wait")
    for calls in (1, 2):
        scene.service.perform(CreateMachine(replace(MACHINE, calls=calls)))
    async with asyncio.timeout(60):
        while not (tmp_path / "waits").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (tmp_path / "go").touch()
    answers = [await asyncio.wait_for(scene.events.get(), 30) for _ in range(2)]
    assert answers == [MachineAnswered("a-1-1", CallKind.CREATE, n, Answer.DONE, "vm-a-1-1") for n in (1, 2)]
    assert (tmp_path / "waits").read_text() == "create\n"
    await scene.service.close()


async def test_what_a_provider_refuses_is_an_event_and_a_list_that_fails_lists_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "does").write_text("quota")
    made = await scene.does(CreateMachine(MACHINE))
    assert (made.answer, made.text) == (Answer.QUOTA, "it says quota")
    (tmp_path / "does").write_text("credentials")
    found = await scene.does(ListMachines("command", 8))
    assert found == MachinesListed("command", 8, None, "it says credentials", True)
    await scene.service.close()


async def test_a_handle_that_no_record_can_hold_is_no_answer(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "does").write_text("long")
    made = await scene.does(CreateMachine(MACHINE))
    assert (made.answer, made.handle) == (Answer.LOST, "") and "length <= 1024" in made.text
    await scene.service.close()


async def test_a_creation_that_is_repeated_says_the_same_with_the_same_token_also_after_a_restart(
    tmp_path: Path,
) -> None:
    pki = Pki.create(tmp_path / "pki", "0a1b", ["127.0.0.1"])
    machine = replace(MACHINE, born=time.time(), calls=2)
    told = []
    for each in range(2):
        scene = Scene(tmp_path, pki if not each else Pki(tmp_path / "pki", "0a1b"))
        for call in (1, 2):
            assert (await scene.does(CreateMachine(replace(machine, calls=call)))).answer is Answer.DONE
            told.append((tmp_path / "told-create").read_text())
        await scene.service.close()
    assert len(set(told)) == 1 and "grid://127.0.0.1:9/grid1." in told[0]
    assert len(pki.identities.tokens(time.time())) == 1, "one token, for one use"
    pki.close()


@pytest.mark.parametrize("lag", [0.0, 3600.0, -3600.0])
async def test_an_invitation_holds_until_the_machine_has_to_have_joined_wherever_grid_time_is(
    tmp_path: Path, lag: float
) -> None:
    pki = Pki.create(tmp_path / "pki", "0a1b", ["127.0.0.1"])
    scene = Scene(tmp_path, pki, lag)
    asked = time.time()
    machine = replace(MACHINE, born=asked - lag - 100.0, join_within=600.0, queue_within=30.0)
    assert (await scene.does(CreateMachine(machine))).answer is Answer.DONE
    await scene.service.close()
    (token,) = pki.identities.tokens(time.time())
    assert token.expires - asked == pytest.approx(530.0, abs=20.0)
    pki.close()


def test_a_provider_is_told_for_how_long_a_machine_was_asked_for_in_grid_time(tmp_path: Path) -> None:
    """Grid time may be far from the wall clock: none of the two says anything about the other."""
    scene = Scene(tmp_path, lag=1e6)
    machine = replace(MACHINE, born=time.time() - 1e6 - 400.0)
    assert scene.service._spec(machine).age == pytest.approx(400.0, abs=20.0)


async def test_the_end_of_the_coordinator_ends_no_machine(tmp_path: Path) -> None:
    """What nobody uses ends by itself when the coordinator stays away (agent/machine.py); what runs jobs does not."""
    scene = Scene(tmp_path)
    await scene.does(CreateMachine(MACHINE))
    before = sorted(one.name for one in tmp_path.iterdir())
    await scene.service.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == before and scene.events.empty(), "nothing more was asked"
    again = Scene(tmp_path)
    found = await again.does(ListMachines("command", 1))
    assert [one.name for one in found.listed] == ["a-1-1"]
    await again.service.close()
