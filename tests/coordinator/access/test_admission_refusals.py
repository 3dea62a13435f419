"""Whoever may not come in is told so in a sentence, leaves one line in the coordinator's log, and changes nothing. Real
sockets and TLS on loopback, in one process."""

import asyncio
import contextlib
import datetime
import socket
import sqlite3
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from distributed_grid import __version__
from distributed_grid.agent.session import CannotConnect, dial
from distributed_grid.coordinator.access.ca import Authority, Pki
from distributed_grid.coordinator.client.blocking import GridClient as Command
from distributed_grid.identity.credentials import trusting_context
from distributed_grid.identity.enrollment import join, parse_invitation
from distributed_grid.identity.keys import certificate_in, key_pem, new_key, request_for, save_identity
from distributed_grid.identity.member import Member, write_member
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello
from tests.coordinator.core.scene import facts
from tests.coordinator.ends import Coordinator, coordinator

NOW = datetime.datetime.now(datetime.UTC)
HOUR = datetime.timedelta(hours=1)


class Scene:
    """A coordinator with an authority, and a folder for whoever comes."""

    def __init__(self, grid: Coordinator, home: Path) -> None:
        assert grid.pki is not None
        self.grid, self.pki, self.home = grid, grid.pki, home
        self.port = int(grid.url.rpartition(":")[2])

    def identity(
        self, role: Role, name: str, authority: Authority | None = None, at: datetime.datetime = NOW, life: float = 3600
    ) -> Path:
        """The identity of somebody, signed by the grid's authority or another."""
        key = new_key()
        own = authority or self.pki.authority
        signed = own.sign(request_for(key), Identity(own.grid, role, name), at, life)
        pem = signed.public_bytes(serialization.Encoding.PEM).decode()
        folder = self.home / f"{role}-{name}-{signed.serial_number:x}"
        save_identity(folder, key_pem(key), pem, self.pki.authority.pem.decode())
        return folder

    def state(self) -> tuple[list[str], list[str], set[str]]:
        """All that the coordinator keeps."""
        with contextlib.closing(sqlite3.connect(self.grid.state_dir / "grid.db")) as store:
            kept = [line for line in store.iterdump() if 'INTO "meta"' not in line]
        return kept, [*self.pki.identities._db.iterdump()], set(self.grid.ledger.state.nodes)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def hello(role: str, name: str) -> Hello:
    own = facts(name) if role == "agent" else None
    return Hello(protocol=PROTOCOL, software=__version__, role=role, name=name, facts=own)


async def comes(scene: Scene, folder: Path, role: str = "agent", name: str = "lab1", url: str = "") -> str:
    """What somebody is told who dials as our agents do."""
    try:
        session = await dial(url or scene.grid.url, hello(role, name), identity=folder)
    except CannotConnect as error:
        return f"{error.what}: {error.why}"
    await session.close()
    return "let in"


async def nobody(scene: Scene) -> str:
    folder = scene.home / "nobody"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(scene.pki.authority.pem)
    assert "joined no grid" in await comes(scene, folder)
    return await raw(scene, trusting_context(scene.pki.authority.pem.decode()))


async def raw(scene: Scene, context: ssl.SSLContext) -> str:
    """As somebody who uses none of our programs."""
    from websockets.asyncio.client import connect

    from distributed_grid.protocol import codec
    from distributed_grid.protocol.messages import Refused

    try:
        async with connect(scene.grid.url, ssl=context, proxy=None) as wire:
            await wire.send(codec.encode(0, [hello("client", "root")]))
            answer = codec.decode("ToClient", bytes(await wire.recv()))[1][0]  # type: ignore[arg-type]
            return f"{answer.what}: {answer.why}" if isinstance(answer, Refused) else "let in"
    except OSError as error:
        return f"{type(error).__name__}: {error}"


async def of_another_authority(scene: Scene) -> str:
    return await comes(scene, scene.identity(Role.AGENT, "lab1", Authority.create(scene.pki.authority.grid, NOW)))


async def expired(scene: Scene) -> str:
    return await comes(scene, scene.identity(Role.AGENT, "lab1", at=NOW - 2 * HOUR))


async def taken_back(scene: Scene) -> str:
    folder = scene.identity(Role.AGENT, "gone")
    scene.pki.identities.revoked.add(f"{certificate_in(folder).serial_number:x}")
    return await comes(scene, folder, name="gone")


async def another_node(scene: Scene) -> str:
    return await comes(scene, scene.identity(Role.AGENT, "lab2"))


async def person_as_node(scene: Scene) -> str:
    return await comes(scene, scene.identity(Role.OPERATOR, "ann"))


async def node_as_person(scene: Scene) -> str:
    return await comes(scene, scene.identity(Role.AGENT, "lab1"), "client", "root")


async def of_another_grid(scene: Scene) -> str:
    other = Authority(scene.pki.authority.certificate, scene.pki.authority._key, "feed")
    return await comes(scene, scene.identity(Role.AGENT, "lab1", other))


async def old_tls(scene: Scene) -> str:
    context = trusting_context(scene.pki.authority.pem.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return await raw(scene, context)


async def plain_agent(scene: Scene) -> str:
    return await comes(scene, scene.home, url=f"ws://localhost:{scene.port}")


async def plain_command(scene: Scene) -> str:
    def command() -> str:
        try:
            Command(f"ws://localhost:{scene.port}").connect().close()
        except GridError as error:
            return f"{error.what}: {error.why}"
        return "let in"

    return await asyncio.to_thread(command)


async def garbage(scene: Scene) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.port)
    writer.write(b"\0" * 100)
    try:
        return f"closed {await reader.read()!r}"
    except ConnectionResetError:
        return "closed"
    finally:
        writer.close()


async def a_used_token(scene: Scene) -> str:
    # It was used when the scene was set; see `standing`.
    token = (scene.home / "used").read_text()
    try:
        await asyncio.to_thread(join, parse_invitation(token), "lab9", lambda _: scene.home / "again", True)
    except GridError as error:
        assert not (scene.home / "again").exists() and token.rpartition(".")[2] not in f"{error.lines()}"
        return error.what
    return "let in"


Attempt = Callable[[Scene], Awaitable[str]]
REFUSED: dict[str, tuple[Attempt, str, str]] = {
    # who: what they do, what they are told, what the coordinator's log says
    "no certificate": (nobody, "this grid asks who you are", "this grid asks who you are"),
    "wrong authority": (of_another_authority, "our certificate", "not of this grid's authority"),
    "expired": (expired, "our certificate has expired", "its certificate has expired"),
    "taken back": (taken_back, "was taken back", "was taken back"),
    "another node's name": (another_node, "may not speak for node 'lab1'", "may not speak for node 'lab1'"),
    "a person as a node": (person_as_node, "may not speak for node", "it comes from operator ann"),
    "a node as a person": (node_as_person, "a node may not ask what people ask", "a node may not ask"),
    "another grid's name": (of_another_grid, "is nobody who may connect", "is nobody who may connect"),
    "TLS 1.2": (old_tls, "Error", "it does not speak TLS 1.3"),
    "plain agent": (plain_agent, "use wss://", "what it says is not TLS"),
    "plain command": (plain_command, "use wss://", "what it says is not TLS"),
    "garbage": (garbage, "closed", "what it says is not TLS"),
    "a used token": (a_used_token, "is used up", "is used up"),
}


@pytest.fixture
def own_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield


@contextlib.asynccontextmanager
async def standing(home: Path) -> AsyncIterator[Scene]:
    (home / "state").mkdir()
    async with coordinator(home / "state", founded=True) as grid:
        scene = Scene(grid, home)
        pki = scene.pki
        token = pki.identities.mint(pki.authority.pin, Role.AGENT, "lab9", {}, 1, 3600.0, "test", time.time())
        (home / "used").write_text(f"grid://localhost:{scene.port}/{token}")
        invitation = parse_invitation((home / "used").read_text())
        await asyncio.to_thread(join, invitation, "lab9", lambda _: home / "lab9", True)
        yield scene


async def test_who_may_not_come_in_is_told_so_leaves_one_line_and_changes_nothing(tmp_path: Path) -> None:
    async with standing(tmp_path) as scene:
        assert await comes(scene, tmp_path / "lab9", name="lab9") == "let in"
        for who, (attempt, told, logged) in REFUSED.items():
            with capture_logs() as lines:
                before = scene.state()
                answer = await attempt(scene)
                await until(lambda: any(logged in f"{line.get('error')} {line.get('why')}" for line in lines))  # noqa: B023
            assert told in answer, (who, answer)
            said = [line for line in lines if line["event"] == "turned away"]
            assert len(said) == 1 and said[0]["peer"].startswith("127.0.0.1"), (who, lines)
            assert not any("Traceback" in str(line) or "exc_info" in line for line in lines), (who, lines)
            assert scene.state() == before, who
            scene.grid.server._throttle._said.clear()
        assert await comes(scene, tmp_path / "lab9", name="lab9") == "let in"


async def test_who_wants_tls_of_a_grid_without_an_authority_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with coordinator(tmp_path / "state") as grid:
        other = Pki.create(tmp_path / "pki", "feed", ["localhost"])
        scene = Scene.__new__(Scene)
        scene.pki, scene.home = other, tmp_path
        url = grid.url.replace("ws://127.0.0.1", "wss://localhost")
        with capture_logs() as lines:
            answer = await comes(scene, scene.identity(Role.AGENT, "lab1"), url=url)
        other.close()
        assert "what answers there does not speak TLS" in answer
        assert [line["why"] for line in lines if line["event"] == "turned away"] == [
            "it speaks TLS, and this grid has no authority"
        ]


async def test_who_says_nothing_is_sent_away_after_a_while_and_who_leaves_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.net.listener.TLS_SECONDS", 0.2)
    async with standing(tmp_path) as scene:
        with capture_logs() as lines:
            reader, writer = await asyncio.open_connection("127.0.0.1", scene.port)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
            with socket.create_connection(("127.0.0.1", scene.port)):
                pass
            await until(lambda: len(lines) == 2)
        assert sorted(line["why"] for line in lines) == [
            "it left without a word",
            "it said nothing for 0.2 s",
        ]


async def test_from_a_new_certificate_on_connections_are_made_with_it_and_those_there_are_go_on(tmp_path: Path) -> None:
    async with standing(tmp_path) as scene:

        def shown() -> bytes:
            context = trusting_context(scene.pki.authority.pem.decode())
            plain = socket.create_connection(("127.0.0.1", scene.port))
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                return secured.getpeercert(binary_form=True) or b""

        session = await dial(scene.grid.url, hello("agent", "lab9"), identity=tmp_path / "lab9")
        before = await asyncio.to_thread(shown)
        scene.pki.certify_self(["localhost"])
        scene.grid.server.take_certificate()
        assert await asyncio.to_thread(shown) != before
        assert scene.grid.ledger.state.nodes["lab9"].session == session.welcome.session
        await session.close()


def test_a_command_whose_certificate_has_expired_says_what_to_do(tmp_path: Path, own_context: None) -> None:
    async def scene() -> str:
        async with standing(tmp_path) as there:
            folder = there.identity(Role.OPERATOR, "ann", at=NOW - 2 * HOUR)
            context = tmp_path / "config" / "grid" / "contexts"
            context.mkdir(parents=True)
            folder.rename(context / "default")
            write_member(context / "default", Member(there.grid.url, there.pki.authority.grid, Role.OPERATOR, "ann"))

            def command() -> str:
                try:
                    Command(there.grid.url).connect().close()
                except GridError as error:
                    return "\n".join(error.lines())
                return "let in"

            return await asyncio.to_thread(command)

    told = asyncio.run(scene())
    assert "your certificate for the grid" in told and "has expired" in told and "grid login" in told
