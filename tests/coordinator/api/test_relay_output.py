"""Output comes from the node or from the job's record."""

import asyncio
from pathlib import Path
from typing import Any

from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import (
    Exited,
    Launch,
    OpenData,
    Output,
    Started,
    WantOutput,
)
from tests.coordinator.ends import (
    ClientEnd,
    agent,
    client,
    coordinator,
    job,
    runs_on,
    until_away,
)


def ends_with(outcome: Outcome) -> Any:
    return lambda launch: [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]


async def test_output_is_relayed_from_the_nodes_data_connection_under_the_clients_numbers(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        text = bytes(range(256)) * 4096  # 1 MiB
        worker = await agent(grid.url, runs=runs_on, output=text)
        ann, bob = await client(grid.url), await client(grid.url, "bob")
        (name,) = await ann.submit(job("cat"))
        await worker.until(Launch)

        async def read(end: ClientEnd, number: int) -> bytes:
            got = b""
            while True:
                number += 1
                part = await end.ask(WantOutput(number, f"{name}.1", "stdout", len(got), 1 << 30))
                assert isinstance(part, Output) and not part.error and part.offset == len(got)
                assert len(part.data) <= 256 << 10
                got += part.data
                if part.end:
                    return got

        assert list(await asyncio.gather(read(ann, 5000), read(bob, 5000))) == [text, text]
        assert sum(isinstance(seen, OpenData) for seen in worker.seen) == 1
        for end in (ann, bob, worker):
            await end.close()


async def test_output_of_an_ended_job_is_had_from_its_record_when_the_node_is_away(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        outcome = Outcome(Cause.EXITED, stdout_size=5, stdout_tail=b"hello", stderr_size=90_000, stderr_tail=b"end")
        worker, ann = await agent(grid.url, runs=ends_with(outcome)), await client(grid.url)
        (name,) = await ann.submit(job("echo"))
        await ann.ended(name)
        await worker.close()
        await until_away(grid)
        assert await ann.ask(WantOutput(401, f"{name}.1", "stdout", 0, 100)) == Output(401, 0, b"hello", end=True)
        assert await ann.ask(WantOutput(402, f"{name}.1", "stdout", 1, 2)) == Output(402, 1, b"el")
        assert await ann.ask(WantOutput(403, f"{name}.1", "stdout", 5, 9)) == Output(403, 5, b"", end=True)
        assert await ann.ask(WantOutput(404, f"{name}.1", "stderr", 89_998, 9)) == Output(404, 89_998, b"nd", end=True)
        gone = await ann.ask(WantOutput(405, f"{name}.1", "stderr", 0, 9))
        assert "unavailable" in gone.error and "n1" in gone.error
        assert "no allocation" in (await ann.ask(WantOutput(406, "j-x.1", "stdout", 0, 9))).error
        await ann.close()


async def test_a_question_to_a_node_that_goes_away_is_answered_with_that(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (name,) = await ann.submit(job("cat"))
        await worker.until(Launch)
        worker.react = lambda message: asyncio.sleep(0)  # type: ignore[method-assign]  # never opens it
        await ann.say(WantOutput(501, f"{name}.1", "stdout", 0, 10, wait=30.0))
        await worker.until(OpenData)
        await worker.close()
        answer = await ann.until(lambda seen: isinstance(seen, Output))
        assert "not connected" in answer.error
        await ann.close()
