"""Who is let in, and what is known of it: a node's labels are those of its token, a bearer is who its token is for."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from distributed_grid import __version__
from distributed_grid.agent.session import dial
from distributed_grid.identity.credentials import trusting_context
from distributed_grid.identity.enrollment import join, parse_invitation
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Access, Done, Hello, ListAccess, Refused, Welcome, Withdraw
from distributed_grid.protocol.nodes import NodeFacts
from tests.coordinator.core.scene import facts
from tests.coordinator.ends import Coordinator, End, coordinator, node
from tests.coordinator.ends import _dial as dial_as


async def comes(grid: Coordinator, folder: Path, name: str, labels: dict[str, str]) -> dict[str, str]:
    """What the coordinator holds for the labels of a node that says these."""
    own = msgspec.structs.replace(facts(name), labels=labels)
    hello = Hello(protocol=PROTOCOL, software=__version__, role="agent", name=name, facts=own)
    session = await dial(grid.url, hello, identity=folder)
    known = grid.ledger.state.nodes[name].facts.labels
    await session.close()
    return known


async def test_a_tokens_labels_are_the_nodes_whatever_it_says_also_after_it_has_joined_again(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        identities, address = grid.pki.identities, grid.url.partition("//")[2]

        async def joins(token: str, name: str) -> Path:
            folder = tmp_path / token[-4:] / name
            await asyncio.to_thread(join, parse_invitation(f"grid://{address}/{token}"), name, lambda _: folder, True)
            return folder

        def token(name: str, labels: dict[str, str], uses: int = 1) -> str:
            pin = grid.pki.authority.pin if grid.pki is not None else ""
            return identities.mint(pin, Role.AGENT, name, labels, uses, 3600.0, "ada", time.time())

        pattern = token("lab*", {"zone": "a", "trust": "low"}, uses=2)
        for name in ("lab1", "lab2"):
            folder = await joins(pattern, name)
            said = {"zone": "b", "own": "x"}
            assert await comes(grid, folder, name, said) == {"zone": "a", "trust": "low", "own": "x"}
        again = await joins(token("lab1", {"zone": "c"}), "lab1")
        assert await comes(grid, again, "lab1", {"trust": "high"}) == {"zone": "c", "trust": "high"}
        assert identities.labels(Role.AGENT, "lab2") == {"zone": "a", "trust": "low"}


@pytest.mark.parametrize("node", [True, False])
async def test_who_joins_with_the_token_of_another_kind_is_refused_and_it_is_not_used_up(
    tmp_path: Path, node: bool
) -> None:
    async with coordinator(tmp_path, founded=True) as grid:
        assert grid.pki is not None
        role, name = (Role.CLIENT, "ann") if node else (Role.AGENT, "lab1")
        pin, now = grid.pki.authority.pin, time.time()
        token = grid.pki.identities.mint(pin, role, name, {}, 1, 3600.0, "ada", now)
        invitation = parse_invitation(f"grid://{grid.url.removeprefix('wss://')}/{token}")
        with pytest.raises(GridError) as refused:
            await asyncio.to_thread(join, invitation, "lab1", lambda _: tmp_path / "made", node)
        error = refused.value
        assert f"this token is for a {'person (client)' if node else 'node'}" in error.what
        assert error.why == "it is not used up" and error.hint.startswith("grid login" if node else "grid agent join")
        assert not (tmp_path / "made").exists() and not grid.pki.identities.certificates(now)
        answer = await asyncio.to_thread(join, invitation, "lab1", lambda _: tmp_path / "made", not node)
        assert (answer.role, answer.name) == (role, name)


async def greeted(grid: Coordinator, *headers: str) -> tuple[ClientConnection, Welcome | Refused]:
    """The connection of somebody with these Authorization headers, and what was answered to its hello."""
    assert grid.pki is not None
    context = trusting_context(grid.pki.authority.pem.decode())
    shown = [("Authorization", one) for one in headers]
    wire = await connect(grid.url, ssl=context, additional_headers=shown, proxy=None)
    await wire.send(encode(0, [Hello(protocol=PROTOCOL, software=__version__, role="client", name="root")]))
    answer: Welcome | Refused = decode("ToClient", await wire.recv(decode=False))[1][0]
    return wire, answer


async def test_a_bearer_is_judged_before_it_says_a_word_and_cut_when_its_token_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        now, bearers = time.time(), grid.pki.identities.bearers
        token = bearers.mint(Role.CLIENT, "ci", 60.0, "ada", now)
        other = bearers.mint(Role.CLIENT, "ci", 60.0, "ada", now)
        over = bearers.mint(Role.CLIENT, "ci", 60.0, "ada", now - 61)
        wire, answer = await greeted(grid, f"Bearer {token}")
        assert isinstance(answer, Welcome) and (answer.user, answer.role) == ("ci", "client")  # whatever it says
        for headers in (
            [f"Bearer {token[:-2]}AA"],
            ["Bearer gridu1.0a1b2c3d.x"],
            ["Bearer"],
            [f"Basic {token}"],
            [f"Bearer {over}"],
            [f"Bearer {token}", f"Bearer {other}"],
        ):
            with pytest.raises(InvalidStatus, match="401"):
                await greeted(grid, *headers)
        _, nobody = await greeted(grid)
        assert isinstance(nobody, Refused) and "asks who you are" in nobody.what
        stays, _ = await greeted(grid, f"Bearer {other}")
        done = grid.server._access.answer("ada", Withdraw(id=1, token=token.split(".")[1]))
        assert isinstance(done, Done) and "and 1 connection ended" in done.text
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(wire.recv(), 60)
        await (await stays.ping())  # of the same person, by another token
        await stays.close()
        assert [one.id for one in bearers.listed(now) if one.revoked] == [token.split(".")[1]]


async def test_a_node_cannot_come_by_a_bearer_token(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        bearers = grid.pki.identities.bearers
        with pytest.raises(BadValue, match="for people"):
            bearers.mint(Role.AGENT, "lab1", 60.0, "ada", time.time())
        token = bearers.mint(Role.OPERATOR, "ada", 60.0, "ada", time.time())
        context = trusting_context(grid.pki.authority.pem.decode())
        header = {"Authorization": f"Bearer {token}"}
        async with connect(grid.url, ssl=context, additional_headers=header, proxy=None) as wire:
            hello = Hello(protocol=PROTOCOL, software=__version__, role="agent", name="lab1", facts=facts("lab1"))
            await wire.send(encode(0, [hello]))
            answer = decode("ToAgent", await wire.recv(decode=False))[1][0]
        assert isinstance(answer, Refused) and "may not speak for node" in answer.what and not grid.ledger.state.nodes


async def test_who_is_taken_back_on_its_way_in_does_not_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may keep a connection waiting while it is looked whether the one before it lives."""
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        ways = {"ssl": grid.member(Role.AGENT, "evil")}
        reached, revoked, settle = asyncio.Event(), asyncio.Event(), grid.server._settle_name

        async def held_up(facts: NodeFacts) -> Refused | None:
            reached.set()
            await revoked.wait()
            return await settle(facts)

        monkeypatch.setattr(grid.server, "_settle_name", held_up)
        hello = Hello(protocol=(1, 0), software="", role="agent", name="evil", facts=node("evil"))
        coming = asyncio.create_task(dial_as(End, grid.url, hello, ways))
        await reached.wait()
        done = grid.server._access.answer("ada", Withdraw(id=1, role=Role.AGENT, name="evil"))
        assert isinstance(done, Done)
        revoked.set()
        end = await coming
        assert isinstance(end.seen[0], Refused) and "taken back" in end.seen[0].what
        assert grid.server._agents == {} and grid.ledger.state.nodes == {}


async def test_a_bearer_token_that_is_taken_back_before_the_hello_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        token = grid.pki.identities.bearers.mint(Role.CLIENT, "ci", 60.0, "ada", time.time())
        headers = {"Authorization": f"Bearer {token}"}
        ssl = grid.member(Role.CLIENT, "ci")
        socket = await connect(grid.url, ssl=ssl, additional_headers=headers)
        grid.server._access.answer("ada", Withdraw(id=1, token=token.split(".")[1]))
        end = End(socket, Hello(protocol=(1, 0), software="", role="client", name="ci"))
        end.read_on()
        await end.say()
        refused = await end.until(Refused)
        assert "taken back" in refused.what
        await end.close()


async def test_who_loses_access_cannot_join_again_by_a_token_that_is_left(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        known, answer = grid.pki.identities, grid.server._access.answer
        grid.member(Role.AGENT, "lab1")
        for name in ("lab1", "lab*", "lab2"):
            known.mint("pin", Role.AGENT, name, {}, 5, 3600.0, "ada", time.time())
        done = answer("ada", Withdraw(id=1, role=Role.AGENT, name="lab1"))
        assert isinstance(done, Done) and done.text == "1 certificate and 1 token of lab1 taken back"
        assert {one.name for one in known.tokens(time.time())} == {"lab*", "lab2"}
        done = answer("ada", Withdraw(id=2, role=Role.AGENT, name="lab2"))  # who has not joined yet
        assert isinstance(done, Done) and done.text == "1 token of lab2 taken back"
        with pytest.raises(GridError, match="has no certificate that holds"):
            answer("ada", Withdraw(id=3, role=Role.AGENT, name="lab2"))


async def test_a_node_can_be_revoked_while_its_certificate_is_expired_and_could_be_renewed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        assert grid.pki is not None
        now = time.time()
        grid.pki.identities.signed(7, Role.AGENT, "lab1", now - 3600.0, now - 7200.0)
        done = grid.server._access.answer("ada", Withdraw(id=1, role=Role.AGENT, name="lab1"))
        assert isinstance(done, Done) and done.text == "1 certificate of lab1 taken back"
        assert grid.pki.identities.revoked == {"7"}


async def test_who_takes_back_its_own_access_is_answered_and_nothing_more_is_done_for_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state", founded=True) as grid:
        hello = Hello(protocol=(1, 0), software="", role="client", name="root")
        end, other = [await dial_as(End, grid.url, hello, {"ssl": grid.member(Role.OPERATOR, "root")}) for _ in "ab"]
        await end.say(Withdraw(id=1, role=Role.OPERATOR, name="root"), ListAccess(id=2))
        done = await end.until(Done)
        assert "2 certificates of root taken back, and 2 connections ended" in done.text
        for one in (end, other):
            await asyncio.wait_for(one.socket.wait_closed(), 60)
        assert not [one for one in end.seen if isinstance(one, Access)]
