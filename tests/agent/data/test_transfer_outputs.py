"""Output as readers get it: whole, in time, with an end, and with a word about what is gone."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.data.transfer import Outputs
from distributed_grid.agent.launch import workdir
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.messages import Output, WantOutput
from tests.agent.conftest import Bench

ID = "j-a.1"


def made(state_dir: Path, name: str) -> Path:
    """A working directory as agents before this one made it, in the folder of the allocation."""
    (path := workdir.folder(state_dir, name) / "workdir").mkdir(parents=True)
    return path


class Ends(Outputs):
    """The outputs of jobs that run until they are ended here."""

    def __init__(self, state_dir: Path) -> None:
        over: set[str] = set()
        super().__init__(state_dir, lambda allocation: allocation not in over)
        self._over = over

    def ended(self, allocation: str) -> None:
        self._over.add(allocation)
        super().ended(allocation)


@pytest.fixture
async def outputs(tmp_path: Path) -> AsyncIterator[Outputs]:
    made = Ends(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path, ID).parent


def want(offset: int = 0, size: int = PART_BYTES, wait: float = 0.0, stream: str = "stdout") -> WantOutput:
    return WantOutput(id=7, allocation=ID, stream=stream, offset=offset, size=size, wait=wait)


async def test_a_piece_is_what_was_asked_for(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").write_bytes(b"0123456789")
    assert await outputs.read(want(offset=2, size=3)) == Output(id=7, offset=2, data=b"234")


async def test_the_end_is_told_only_when_the_job_is_over_and_all_was_read(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").write_bytes(b"0123456789")
    assert not (await outputs.read(want())).end
    assert await outputs.read(want(offset=10)) == Output(id=7, offset=10)
    outputs.ended(ID)
    assert await outputs.read(want(size=4)) == Output(id=7, offset=0, data=b"0123")
    assert await outputs.read(want(offset=4)) == Output(id=7, offset=4, data=b"456789", end=True)
    assert await outputs.read(want(offset=10)) == Output(id=7, offset=10, end=True)


async def test_no_piece_is_larger_than_the_credit_of_one(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").write_bytes(b"x" * (PART_BYTES + 1))
    assert len((await outputs.read(want(size=1 << 30))).data) == PART_BYTES


async def test_a_waiting_reader_is_woken_by_the_first_byte(outputs: Outputs, folder: Path) -> None:
    waiting = asyncio.create_task(outputs.read(want(wait=30)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    begun = time.monotonic()
    with open(folder / "stdout", "ab", buffering=0) as file:
        # The file appearing wakes, and so does each write.
        file.write(b"now")
        assert (await waiting).data == b"now"
        waiting = asyncio.create_task(outputs.read(want(offset=3, wait=30)))
        await asyncio.sleep(0.05)
        file.write(b"then")
        assert (await waiting).data == b"then"
    assert time.monotonic() - begun < 20


async def test_a_waiting_reader_is_woken_by_the_end(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").touch()
    waiting = [asyncio.create_task(outputs.read(want(wait=30))) for _ in range(3)]
    await asyncio.sleep(0.02)
    outputs.ended(ID)
    async with asyncio.timeout(20):
        assert [(await one).end for one in waiting] == [True] * 3


async def test_waiting_has_an_end_too(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").touch()
    assert await outputs.read(want(wait=0.05)) == Output(id=7, offset=0)


async def test_without_inotify_the_file_is_looked_at_now_and_then(tmp_path: Path, folder: Path) -> None:
    outputs = Ends(tmp_path)
    outputs.close()
    waiting = asyncio.create_task(outputs.read(want(wait=30)))
    await asyncio.sleep(0.02)
    (folder / "stdout").write_bytes(b"late")
    async with asyncio.timeout(20):
        assert (await waiting).data == b"late"


async def test_the_gap_is_told_and_reading_goes_on_after_it(outputs: Outputs, folder: Path) -> None:
    (folder / "stdout").write_bytes(b"a" * 100 + b"\0" * 200 + b"z" * 50)
    (folder / "stdout.gap").write_text("100 300\n")
    outputs.ended(ID)
    assert await outputs.read(want(offset=40)) == Output(id=7, offset=40, data=b"a" * 60)
    assert await outputs.read(want(offset=100)) == Output(id=7, offset=300, data=b"z" * 50, gap=200, end=True)
    assert await outputs.read(want(offset=250, size=7)) == Output(id=7, offset=300, data=b"z" * 7, gap=50)


@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
@pytest.mark.parametrize("name", ["stdout", "stdout.gap"])
async def test_what_a_job_puts_in_the_place_of_a_file_is_not_read_and_not_waited_for(
    outputs: Outputs, folder: Path, name: str, what: str
) -> None:
    (folder.parent / "own.key").write_text("7 9")
    (folder / "stdout").write_bytes(b"0123456789")
    (folder / name).unlink(missing_ok=True)
    match what:
        case "fifo":
            os.mkfifo(folder / name)
        case "link":
            (folder / name).symlink_to("../own.key")
        case "directory":
            (folder / name).mkdir()
    outputs.ended(ID)
    async with asyncio.timeout(20):
        answer = await outputs.read(want())
    if name == "stdout":
        assert "not a regular file" in answer.error or "a symbolic link" in answer.error
    else:
        assert answer == Output(id=7, offset=0, data=b"0123456789", end=True)


@pytest.mark.parametrize("note", ["9" * 1000 + " 1", "a b", "1", "5 -1", "0 1e9", "3 " + "9" * 30, "0 11", ""])
async def test_a_note_of_a_gap_that_is_none_is_as_no_note(outputs: Outputs, folder: Path, note: str) -> None:
    (folder / "stdout").write_bytes(b"0123456789")
    (folder / "stdout.gap").write_text(note)
    outputs.ended(ID)
    async with asyncio.timeout(20):
        assert await outputs.read(want()) == Output(id=7, offset=0, data=b"0123456789", end=True)


async def test_a_gap_cut_by_the_supervisor_is_read_around(make_bench: Callable[..., Awaitable[Bench]]) -> None:
    bench = await make_bench(limit=4 << 20)
    code = "import os, time\nfor n in range(12): os.write(1, bytes([65 + n]) * (1 << 20))\ntime.sleep(1000)"
    id = bench.launch(sys.executable, "-c", code)
    path = workdir.folder(bench.dir, id) / "stdout"
    await bench.until(lambda: path.exists() and path.stat().st_size == 12 << 20)
    await bench.until(lambda: path.with_name("stdout.gap").exists() and path.stat().st_blocks * 512 <= 4 << 20)
    bench.stop(id, grace=0)
    outcome = await bench.ended(id)
    outputs = Outputs(bench.dir, running=lambda _: False)
    offset, missing, data, end = 0, 0, b"", False
    while not end:
        piece = await outputs.read(WantOutput(id=1, allocation=id, stream="stdout", offset=offset, size=PART_BYTES))
        assert not piece.error
        missing += piece.gap
        data += piece.data
        offset, end = piece.offset + len(piece.data), piece.end
    outputs.close()
    assert missing > 4 << 20
    assert len(data) + missing == outcome.stdout_size == offset
    assert data[: 1 << 20] == b"A" * (1 << 20)
    assert b"\0" not in data
    assert data.endswith(b"L" * (1 << 20))


async def test_a_running_jobs_output_arrives_whole_while_it_is_written(bench: Bench) -> None:
    code = "import os\nfor n in range(40): os.write(1, os.urandom(100_000))"
    id = bench.launch(sys.executable, "-c", code)
    outputs = Outputs(bench.dir, running=lambda id: not bench.outcomes(id))
    data, end = b"", False
    async with asyncio.timeout(60):
        while not end:
            ask = WantOutput(id=1, allocation=id, stream="stdout", offset=len(data), size=70_000, wait=0.2)
            piece = await outputs.read(ask)
            data, end = data + piece.data, piece.end
    outputs.close()
    assert data == bench.read(id)
    assert len(data) == 4_000_000


async def test_what_cannot_be_given_is_an_error_and_not_a_path(outputs: Outputs, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", folder / "stdout")
    for ask in (
        want(),
        want(stream="../spec"),
        WantOutput(id=7, allocation="../..", stream="stdout", offset=0, size=9),
    ):
        answer = await outputs.read(ask)
        assert answer.error and not answer.data, ask


async def test_a_job_that_never_started_has_an_end_and_a_swept_one_an_error(outputs: Outputs, folder: Path) -> None:
    outputs.ended(ID)
    assert await outputs.read(want()) == Output(id=7, offset=0, end=True)
    outputs.ended("j-gone.1")
    answer = await outputs.read(WantOutput(id=7, allocation="j-gone.1", stream="stdout", offset=0, size=9))
    assert "not kept" in answer.error
