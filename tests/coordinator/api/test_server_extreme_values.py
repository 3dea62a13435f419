"""Finite and absurd: whatever number one peer sends, everybody else's lists, shares and status go on, and the peer is
answered or cut with the field and its bound. Real sockets, and the command line over what is left of it."""

import asyncio
import itertools
import json
import os
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed

from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.messages import AskWhy, Failed, Refused, Submission, Submit
from distributed_grid.protocol.resources import Resources
from tests import forked
from tests.coordinator.ends import Coordinator, End, agent, answer_to, client, coordinator, node
from tests.fuzz.frames import extremes
from tests.fuzz.served import FROM
from tests.protocol.samples import MESSAGES

WAITS_LONG = {"WantOutput", "WantFiles", "WantFile"}  # they are passed on to a node; see test_relay and test_outputs
LISTS = (
    ("-o", "json", "jobs", "--all"),
    ("jobs", "--all"),
    ("-o", "json", "shares"),
    ("shares",),
    ("-o", "json", "nodes"),
    ("nodes",),
    ("-o", "json", "status"),
    ("status",),
    ("-o", "json", "cluster", "status"),
    ("receipts",),
)


async def grid(made: Coordinator, *words: str) -> tuple[int, str, str]:
    """What the command line says."""
    done = await asyncio.to_thread(forked.grid, ["--coordinator", made.url, *words], os.environ, Path.cwd())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def all_lists_are_told(made: Coordinator) -> None:
    await made.stored()
    for words in LISTS:
        code, out, errors = await grid(made, *words)
        assert code == 0 and "Traceback" not in errors and "error" not in errors, (words, errors)
        if "json" in words:
            json.loads(out)


def plain(name: str) -> Any:
    return msgpack.unpackb(codec.encode(1, [MESSAGES[name]]), strict_map_key=False)[1][0]


async def raw(end: End, message: Any) -> None:
    """Say what our own encoder would not."""
    end.link._sent += 1
    await end.socket.send(msgpack.packb([end.link._sent, [message]]))


async def test_no_number_of_a_client_is_an_internal_error_or_breaks_what_others_see(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    async with coordinator(tmp_path) as made:
        node_end = await agent(made.url)
        asked, refused = await client(made.url), 0
        with capture_logs() as logs:
            for name in sorted(FROM["client"] - WAITS_LONG):
                for message in extremes(plain(name)):
                    try:
                        codec.decode("FromClient", msgpack.packb([1, [message]]))
                    except (BadFrame, OverflowError):
                        refused += 1
                        continue
                    mine = message | {"id": next(numbers)}
                    if "key" in mine:
                        mine["key"] = f"k{mine['id']}"
                    await raw(asked, mine)
                    answer = await asked.until(answer_to(mine["id"]))
                    assert not isinstance(answer, Failed) or answer.code != "internal", (mine, answer)
                    asked.seen.clear()
        assert refused > 100 and next(numbers) > 300
        assert [line for line in logs if line["log_level"] in ("error", "critical")] == []
        await node_end.is_known()
        await all_lists_are_told(made)
        await asked.close()
        await node_end.close()


async def test_no_number_of_a_node_breaks_what_others_see(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as made:
        with capture_logs() as logs:
            ends: list[End] = []
            for number, name in enumerate(sorted(FROM["agent"])):
                end = await agent(made.url, node(f"n{number}"))
                ends.append(end)
                for message in extremes(plain(name)):
                    try:
                        codec.decode("FromAgent", msgpack.packb([1, [message]]))
                    except (BadFrame, OverflowError):
                        continue
                    await raw(end, message)
            await asyncio.sleep(0)
            asked = await client(made.url)
            job = Submission("k", JobSpec(("true",)), Request(Resources(cpu=100)))
            assert (await asked.ask(Submit(1, (job,)))).jobs
            await all_lists_are_told(made)
        assert [line for line in logs if line["log_level"] in ("error", "critical")] == []
        for one in (*ends, asked):
            await one.close()


async def test_a_job_cannot_begin_in_no_calendar(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as made:
        for begin in (1e300, 1e15, 253_370_764_801.0, -1.0):
            asked = await client(made.url)
            job = Submission("k", JobSpec(("true",)), Request(Resources(cpu=1000)), begin=begin)
            await asked.say(Submit(1, (job,)))
            answer = await asked.until(lambda seen: isinstance(seen, Failed | Refused))
            assert "begin" in answer.what and "e+" not in answer.what and answer.why + answer.hint, begin
            await asked.close()
        await all_lists_are_told(made)


async def test_a_node_beyond_all_bounds_is_turned_away_with_one_line(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as made:
        huge = msgspec.to_builtins(node("n9"))
        huge["lendable"] = {"cpu": 4000, "memory": 2**64 - 1}
        hello = {"type": "hello", "protocol": [1, 0], "software": "x", "role": "agent", "name": "n9", "facts": huge}
        with capture_logs() as logs:
            end = await _dial_plain(made.url, hello)
        assert isinstance(end, Refused) and "facts.lendable.memory" in end.what + end.why
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["turned away"]
        assert made.ledger.state.nodes == {}
        await all_lists_are_told(made)


async def test_a_node_that_says_an_absurd_number_is_cut_with_one_line(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as made:
        end = await agent(made.url)
        with capture_logs() as logs:
            await raw(end, {"type": "recalled", "allocation": "j-a.1", "why": "x", "grace": -5.0})
            await end.gone()
        warnings = [line for line in logs if line["log_level"] == "warning"]
        assert [(line["event"], line["name"], line["why"]) for line in warnings] == [
            ("turned away", "n1", "grace is at least 0")
        ]
        await end.close()


@pytest.mark.parametrize("gang", [-1, -(2**31), 2**31 - 1])
async def test_why_is_answered_of_a_gang_that_cannot_be(tmp_path: Path, gang: int) -> None:
    async with coordinator(tmp_path) as made:
        there, asked = await agent(made.url), await client(made.url)
        answer = await asked.ask(AskWhy(1, request=Request(Resources(cpu=1000), gang=gang)))
        assert isinstance(answer, Failed) and answer.code == "bad-value" and "gang" in answer.what
        await asked.close()
        await there.close()


async def _dial_plain(url: str, hello: Any) -> Any:
    from websockets.asyncio.client import connect

    async with connect(url, compression=None, ping_interval=None) as socket:
        await socket.send(msgpack.packb([1, [hello]]))
        try:
            return codec.decode_first(await socket.recv(decode=False), Refused)
        except ConnectionClosed:
            return None
