"""Root on one node: a hostile agent with a real certificate, which was granted a job and says what it likes. Whatever
that is, the coordinator goes on, everybody sees what they saw, another node's jobs and another's name are out of its
reach, and the next start reads what is stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.access.ca import presented
from distributed_grid.coordinator.api import server
from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.net import connection as net
from distributed_grid.coordinator.net.limits import LOG_LINES
from distributed_grid.identity.keys import new_key, request_for
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import Cause, GpuUse, Outcome, State, Use
from distributed_grid.protocol.messages import (
    Ack,
    Cancel,
    Exited,
    GetStatus,
    Hello,
    InUse,
    Inventory,
    Launch,
    ListJobs,
    MakeToken,
    NewCertificate,
    Recalled,
    Refused,
    Stale,
    Started,
    Status,
    Submit,
    Suspended,
    WantCertificate,
)
from distributed_grid.protocol.nodes import Offer
from tests.coordinator.api.test_server_extreme_values import plain, raw
from tests.coordinator.ends import AgentEnd, ClientEnd, Coordinator, End, agent, client, coordinator, job, node, runs_on
from tests.coordinator.ends import _dial as dial
from tests.fuzz.frames import extremes
from tests.fuzz.served import FROM

LIES = "x" * 30_000 + "\x1b[2J"


class Scene:
    """A founded grid with an honest and a hostile node, each of which runs a job of ann's."""

    def __init__(self, grid: Coordinator, ann: ClientEnd, honest: AgentEnd, evil: AgentEnd) -> None:
        self.grid, self.ann, self.honest, self.evil = grid, ann, honest, evil
        self.on_honest, self.on_evil = honest.launched[0].allocation, evil.launched[0].allocation

    def job(self, allocation: str) -> Any:
        return self.grid.ledger.state.jobs.get(allocation.rpartition(".")[0])

    async def heard(self) -> None:
        """Wait until the hostile node was heard to its last word."""
        number = self.evil.facts.incarnation * 1000 + len(self.evil.seen) + 7
        await self.evil.say(Offer(number=number, expires_in=300))
        async with asyncio.timeout(60):
            while (offer := self.grid.ledger.state.nodes["evil"].offer) is None or offer.number != number:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with coordinator(tmp_path, founded=True) as grid:
        ann = await client(grid.url, "ann", ssl=grid.member(Role.CLIENT, "ann"))
        ends = []
        for name in ("honest", "evil"):
            ends.append(await agent(grid.url, node(name), runs_on, ssl=grid.member(Role.AGENT, name)))
            await ann.submit(job("sleep", "9", cpu=4000))
            await ends[-1].until(Launch)
        try:
            yield Scene(grid, ann, *ends)
        finally:
            for one in (*ends, ann):
                await one.close()


def about(allocation: str) -> list[Any]:
    return [
        Started(allocation, 1, "user"),
        Stale(allocation, LIES, device="memory"),
        Suspended(allocation, LIES, lasted=5.0),
        Recalled(allocation, LIES, grace=1.0),
        InUse((Use(allocation=allocation, seconds=1e10, cpu=1e15, cpu_peak=1e15, memory=1 << 60),)),
        Exited(allocation, Outcome(Cause.EXITED), returned=True),
    ]


async def test_nothing_that_it_says_of_another_nodes_job_changes_that(tmp_path: Path) -> None:
    async with scene(tmp_path) as on:
        before = msgspec.msgpack.encode(on.job(on.on_honest))
        allocation = on.grid.ledger.state.allocations[on.on_honest]
        held = msgspec.msgpack.encode(allocation)
        await on.evil.say(*about(on.on_honest))
        await on.heard()
        assert msgspec.msgpack.encode(on.job(on.on_honest)) == before
        assert msgspec.msgpack.encode(allocation) == held and allocation.state is State.RUNNING
        assert not on.grid.driver.trouble.found and not any(isinstance(one, Refused) for one in on.honest.seen)


async def test_no_number_of_its_own_job_keeps_anybody_from_seeing_it_or_the_next_start_from_reading_it(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as on:
        use = Use(
            allocation=on.on_evil,
            seconds=1e10,
            cpu=1e15,
            cpu_peak=-1e15,
            memory=1 << 60,
            gpus=(GpuUse("u", 1e15, 1e15),),
        )
        with capture_logs() as logs:
            for _ in range(3):
                await on.evil.say(InUse((use,)), InUse((msgspec.structs.replace(use, cpu=-1e15, cpu_peak=1e15),)))
                await on.evil.say(Suspended(on.on_evil, "x", lasted=1e10, in_all=1e10))
                await on.evil.say(Suspended(on.on_evil, "", lasted=1e10, in_all=1e10))
            # What a node tells of itself is no word on a job: test_settings.py has that.
            for name in sorted(FROM["agent"] - {"Exited", "Inventory", "Stale", "WantCertificate", "InEffect"}):
                for message in extremes(plain(name)):
                    if "allocation" in message:
                        message["allocation"] = on.on_evil
                    for one in message.get("uses", ()):
                        one["allocation"] = on.on_evil
                    try:
                        codec.decode("FromAgent", msgpack.packb([1, [message]]))
                    except (BadFrame, OverflowError):
                        continue
                    await raw(on.evil, message)
            await on.heard()
            shown = views.job(on.grid.ledger.state, on.on_evil.rpartition(".")[0])
            msgspec.msgpack.decode(msgspec.msgpack.encode(shown), type=type(shown))
            outcome = Outcome(Cause.EXITED, seconds=1e15, cpu_seconds=-1e15, peak_memory=1 << 60, suspended=1e15)
            await on.evil.say(Exited(on.on_evil, outcome))
            await on.heard()
        await on.grid.stored()
        assert [line for line in logs if line["log_level"] in ("error", "critical")] == []
    async with coordinator(tmp_path) as grid:
        assert len(grid.ledger.state.jobs) == 1
        ann = await client(grid.url, "ann", ssl=grid.member(Role.CLIENT, "ann"))
        told = await ann.ask(ListJobs(1, ended=True))
        assert len(told.jobs) == 2
        await ann.close()


async def test_words_without_end_do_not_make_a_jobs_record_large(tmp_path: Path) -> None:
    async with scene(tmp_path) as on:
        for number in range(150):
            await on.evil.say(Suspended(on.on_evil, f"{number}{LIES}", lasted=1.0), Suspended(on.on_evil, ""))
        await on.heard()
        record = msgspec.msgpack.encode(on.job(on.on_evil))
        assert len(record) < 200_000
        assert on.job(on.on_evil).state is State.RUNNING
        tail = bytes(100_000)
        outcome = Outcome(Cause.EXITED, text=LIES, stdout_size=1 << 40, stdout_tail=tail, stderr_tail=tail)
        await on.evil.say(Exited(on.on_evil, outcome))
        ended = await on.ann.ended(on.on_evil.rpartition(".")[0])
        assert len(msgspec.msgpack.encode(ended)) < 200_000


async def test_it_may_not_ask_what_people_ask(tmp_path: Path) -> None:
    async with scene(tmp_path) as on:
        ways: dict[str, Any] = {"ssl": on.grid.member(Role.AGENT, "evil2")}
        name = on.on_honest.rpartition(".")[0]
        for question in (
            GetStatus(1),
            ListJobs(2),
            Cancel(3, (name,)),
            Submit(4, (job(),)),
            MakeToken(5, role=Role.OPERATOR),
        ):
            end = await agent(on.grid.url, node("evil2"), **ways)
            await end.say(question)
            await end.gone()
            assert not any(getattr(seen, "id", None) == question.id for seen in end.seen)
        asks = await dial(End, on.grid.url, Hello(protocol=(1, 0), software="", role="client", name="ann"), ways)
        assert isinstance(asks.seen[0], Refused) and "a node may not ask what people ask" in asks.seen[0].what
        assert on.job(on.on_honest).state is State.RUNNING and len(on.grid.ledger.state.jobs) == 2


async def test_it_is_not_let_in_as_another_node_nor_given_a_certificate_as_one(tmp_path: Path) -> None:
    async with scene(tmp_path) as on:
        ways: dict[str, Any] = {"ssl": on.grid.member(Role.AGENT, "evil")}
        session = on.grid.server._agents["honest"].session
        for hello in (
            Hello(protocol=(1, 0), software="", role="agent", name="honest", facts=node("honest", incarnation=99)),
            Hello(protocol=(1, 0), software="", role="agent-data", name="honest", session=session),
            Hello(protocol=(1, 0), software="", role="agent-data", name="evil", session=session),
            Hello(protocol=(1, 0), software="", role="agent", name="evil", facts=node("honest", incarnation=99)),
        ):
            end = await dial(End, on.grid.url, hello, ways)
            assert isinstance(end.seen[0], Refused), hello
        await on.evil.say(WantCertificate(request=request_for(new_key()).decode(), id=9))
        given = await on.evil.until(NewCertificate)
        assert presented(given.certificate.encode()).identity.uri.endswith("/agent/evil")
        assert not on.honest.closed and on.grid.server._agents["honest"].session == session


async def test_an_inventory_is_told_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as on:
        await on.evil.say(Inventory(()))
        await on.evil.gone()
        assert not on.honest.closed and on.job(on.on_honest).state is State.RUNNING


async def test_who_says_too_much_is_read_no_further_for_a_while_also_on_its_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WORDS_PER_SECOND", 10.0)
    monkeypatch.setattr(server, "WORDS_AT_ONCE", 1000.0)
    many = [Exited(f"j-{number:012x}.1", Outcome(Cause.EXITED)) for number in range(2000)]
    async with scene(tmp_path) as on:
        await on.evil.say(*many)
        await on.evil.until(lambda seen: isinstance(seen, Ack) and many[-1].allocation in seen.allocations)
        await on.evil.say(Offer(number=77, expires_in=300))
        again = Hello(protocol=(1, 0), software="", role="agent", name="evil", facts=node("evil", incarnation=2))
        evil = await dial(End, on.grid.url, again, {"ssl": on.grid.member(Role.AGENT, "evil")})
        await evil.say(Inventory(()), Offer(number=78, expires_in=300))
        await on.ann.submit(job("true", cpu=1000))
        assert isinstance(await on.ann.ask(GetStatus(5)), Status)
        heard = on.grid.ledger.state.nodes["evil"]
        assert heard.offer is None and not heard.synced, "not before its debt is paid"
        assert on.job(on.on_honest).state is State.RUNNING and not on.honest.closed
        evil.socket.transport.abort()


async def test_who_asks_for_certificates_without_end_keeps_nobody_waiting_and_fills_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net, "TURN_SECONDS", 0.0)
    answered = 0

    async with scene(tmp_path) as on:
        renew = on.grid.server._access.renew

        def counted(*asked: Any) -> Any:
            nonlocal answered
            answered += 1
            return renew(*asked)

        monkeypatch.setattr(on.grid.server._access, "renew", counted)
        with capture_logs() as logs:
            await on.evil.say(*(WantCertificate(request="none", id=1) for _ in range(1000)))
            assert isinstance(await on.ann.ask(GetStatus(5)), Status)
            assert answered < 1000
            async with asyncio.timeout(60):
                while answered < 1000:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert 0 < len([line for line in logs if line["event"] == "not renewed"]) <= LOG_LINES
        assert on.grid.server._words["evil"].debt(asyncio.get_running_loop().time()) > 10
        on.evil.socket.transport.abort()
