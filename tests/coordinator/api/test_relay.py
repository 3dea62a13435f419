"""Bulk data from nodes to clients: an answer that does not fit its question harms its own asker only."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.api import relay
from distributed_grid.protocol.messages import (
    FileData,
    FileEntry,
    Files,
    InputTaken,
    Output,
    PutInput,
    WantFile,
    WantFiles,
    WantOutput,
)
from tests.coordinator import ends
from tests.coordinator.ends import AgentEnd, DataEnd, agent, client, coordinator, job, runs_on

NUMBER = 7


class Odd(DataEnd):
    """Answers as `answer` says: a function of the question."""

    answer: Any = None

    async def react(self, message: Any) -> None:
        if (
            isinstance(message, WantOutput | WantFiles | WantFile | PutInput)
            and (said := type(self).answer(message)) is not None
        ):
            await self.say(said)


def output(allocation: str) -> WantOutput:
    return WantOutput(id=NUMBER, allocation=allocation, stream="stdout", offset=100, size=1000)


def file(allocation: str) -> WantFile:
    return WantFile(id=NUMBER, allocation=allocation, path="a", offset=100, size=1000)


def files(allocation: str) -> WantFiles:
    return WantFiles(id=NUMBER, allocation=allocation, globs=("a",))


def piece(allocation: str) -> PutInput:
    return PutInput(id=NUMBER, allocation=allocation, offset=100, data=b"x" * 1000)


CASES: dict[str, tuple[Any, Any]] = {
    "more output": (output, lambda want: Output(want.id, want.offset, b"x" * (want.size + 1))),
    "earlier output": (output, lambda want: Output(want.id, 0, b"x")),
    "another kind": (output, lambda want: FileData(want.id, b"x")),
    "another number": (output, lambda want: Output(want.id + 1, want.offset, b"x")),
    "more of a file": (file, lambda want: FileData(want.id, b"x" * (want.size + 1))),
    "a hole that was not asked for": (file, lambda want: FileData(want.id, hole=1000)),
    "nothing, and no end": (file, lambda want: FileData(want.id)),
    "a file for input": (piece, lambda put: FileData(put.id, b"x")),
    "a file for a list": (files, lambda want: FileData(want.id, b"x")),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_that_does_not_fit_the_question_cuts_the_nodes_data_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, answer = CASES[name]
    monkeypatch.setattr(ends, "DataEnd", Odd)
    monkeypatch.setattr(Odd, "answer", staticmethod(answer))
    async with coordinator(tmp_path) as grid:
        node, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await ann.submit(job())
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        told = await ann.ask(ask(node.launched[0].allocation))
        assert told.error and not getattr(told, "data", b"")
        assert node.data is not None
        await node.data.gone()
        said = capsys.readouterr().out
        assert "cut: a node's answer does not fit the question" in said and "Traceback" not in said
        assert not node.closed and not ann.closed, "its jobs and its clients go on"
        await served_again(node, ann, monkeypatch)
        await node.close()
        await ann.close()


async def served_again(node: AgentEnd, ann: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest answer after that arrives."""
    monkeypatch.setattr(Odd, "answer", staticmethod(lambda want: Output(want.id, want.offset, b"fine", end=True)))
    want = WantOutput(id=NUMBER + 1, allocation=node.launched[0].allocation, stream="stdout", offset=0, size=10)
    assert await ann.ask(want) == Output(NUMBER + 1, 0, b"fine", end=True)


async def test_a_node_that_does_not_answer_is_told_and_its_late_answer_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(ends, "DataEnd", Odd)
    kept: list[Any] = []
    monkeypatch.setattr(Odd, "answer", staticmethod(kept.append))
    async with coordinator(tmp_path) as grid:
        node, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await ann.submit(job())
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        told = await ann.ask(output(node.launched[0].allocation))
        assert told == Output(NUMBER, 100, error="node n1 does not answer")
        assert node.data is not None
        await node.data.say(Output(kept[0].id, 100, b"late"))
        await served_again(node, ann, monkeypatch)
        assert not node.data.closed
        assert [seen for seen in ann.seen if isinstance(seen, Output) and seen.data == b"late"] == []
        await node.close()
        await ann.close()


async def test_a_list_of_too_many_files_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MOST_ENTRIES", 2)
    monkeypatch.setattr(ends, "DataEnd", Odd)
    three = tuple(FileEntry(name, 1) for name in "abc")
    monkeypatch.setattr(Odd, "answer", staticmethod(lambda want: Files(want.id, three)))
    async with coordinator(tmp_path) as grid:
        node, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await ann.submit(job())
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        told = await ann.ask(files(node.launched[0].allocation))
        assert "breaks the protocol: a list of 3 files" in told.error and told.files == ()
        assert node.data is not None
        await node.data.gone()
        await node.close()
        await ann.close()


async def test_standard_input_goes_to_the_node_and_is_not_kept_until_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "DataEnd", Odd)
    came: list[PutInput] = []
    async with coordinator(tmp_path) as grid:

        def answer(put: PutInput) -> InputTaken:
            (pending,) = grid.server._relay._agents["n1"].pending.values()
            assert isinstance(pending.want, PutInput) and pending.want.data == b""
            came.append(put)
            return InputTaken(put.id, offset=1, next=2, until=3)

        monkeypatch.setattr(Odd, "answer", staticmethod(answer))
        node, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await ann.submit(job(stdin=True))
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        told = await ann.ask(piece(node.launched[0].allocation))
        assert told == InputTaken(NUMBER, offset=1, next=2, until=3)
        assert [put.data for put in came] == [b"x" * 1000]
        await node.close()
        await ann.close()


async def test_nobody_but_the_submitter_sends_a_job_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "DataEnd", Odd)
    came: list[PutInput] = []
    monkeypatch.setattr(Odd, "answer", staticmethod(came.append))
    async with coordinator(tmp_path) as grid:
        node, ann, bob = await agent(grid.url, runs=runs_on), await client(grid.url), await client(grid.url, "bob")
        await ann.submit(job(stdin=True))
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        told = await bob.ask(piece(node.launched[0].allocation))
        assert told == InputTaken(NUMBER, error=f"no allocation {node.launched[0].allocation!r}")
        assert not came
        for end in (node, ann, bob):
            await end.close()


async def test_of_more_input_than_may_be_under_way_a_part_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "CLIENT_BYTES", relay.LEAST_BYTES + 100)
    monkeypatch.setattr(ends, "DataEnd", Odd)
    came: list[PutInput] = []

    def answer(put: PutInput) -> InputTaken:
        came.append(put)
        return InputTaken(put.id, next=len(put.data))

    monkeypatch.setattr(Odd, "answer", staticmethod(answer))
    async with coordinator(tmp_path) as grid:
        node, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await ann.submit(job(stdin=True))
        await node.until(lambda seen: type(seen).__name__ == "Launch")
        whole = PutInput(NUMBER, node.launched[0].allocation, 0, b"x" * 10_000, end=True)
        told = await ann.ask(whole)
        assert told.next == relay.LEAST_BYTES + 100
        assert (len(came[0].data), came[0].end) == (told.next, False)
        await node.close()
        await ann.close()
