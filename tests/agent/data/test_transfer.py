"""What is asked about the files of one job is answered beside all else, and what is refused is told once in a while."""

import asyncio
import threading
from pathlib import Path

import pytest

from distributed_grid.agent.data import transfer
from distributed_grid.agent.data.inputs import Inputs
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.data.transfer import AT_ONCE, DataConnection, Outputs
from distributed_grid.agent.launch.workdir import SlotIndex
from distributed_grid.protocol.messages import FileEntry, Files, Hello, WantFiles


def asked(allocation: str, number: int = 1) -> WantFiles:
    return WantFiles(id=number, allocation=allocation, globs=("**",))


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def data(tmp_path: Path, told: list[str]) -> DataConnection:
    hello = Hello(protocol=(1, 0), software="t", role="agent-data", name="n1")
    places = SlotIndex(tmp_path), JobFiles(tmp_path)
    outputs, inputs = Outputs(tmp_path, lambda _: True), Inputs(tmp_path, lambda _: None, lambda _: None)
    return DataConnection("wss://localhost:1", tmp_path, outputs, inputs, *places, lambda _: hello, told.append, "")


async def test_a_job_whose_files_take_long_keeps_nobody_else_waiting(
    data: DataConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    begun: list[int] = []

    def find(want: WantFiles) -> list[FileEntry]:
        if want.allocation == "j-greedy.1":
            begun.append(want.id)
            released.wait(60)
        return []

    monkeypatch.setattr(data, "_find", find)
    many = [asyncio.create_task(data._list(asked("j-greedy.1", number))) for number in range(100)]
    try:
        assert await asyncio.wait_for(data._list(asked("j-modest.1", 7)), 30) == Files(id=7)
        assert len(begun) == AT_ONCE
    finally:
        released.set()
    assert len(await asyncio.gather(*many)) == 100


async def test_a_coordinator_that_refuses_bulk_data_is_asked_less_and_less_often_and_named_once(
    data: DataConnection, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    enough = asyncio.Event()

    def waited(count: int) -> float:
        tries.append(count)
        if count == 4:
            enough.set()
        return 0.0

    monkeypatch.setattr(transfer, "back_off", waited)
    await data.begin("s1")
    data.open()
    await asyncio.wait_for(enough.wait(), 60)
    await data.begin("")
    assert tries[:4] == [1, 2, 3, 4]
    assert len(told) == 1 and told[0].startswith("no connection for bulk data: ")


async def test_what_is_refused_is_told_to_the_operator_and_not_each_time(data: DataConnection, told: list[str]) -> None:
    for number in range(50):
        answer = await data._guard(number, Files, data._list(asked("j-none.1", number)))
        assert answer.error
    assert told == [f"files of a job are not given: {answer.error}"]
