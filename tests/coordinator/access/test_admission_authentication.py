"""A connection ends with what its peer was let in by: real TLS on loopback, and certificates of a few seconds."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from websockets.exceptions import ConnectionClosedError

from distributed_grid.coordinator.access.ca import Lives
from distributed_grid.coordinator.client import GridClient, blocking, connection
from distributed_grid.identity.credentials import client_context, trusting_context
from distributed_grid.identity.enrollment import RenewalRequest
from distributed_grid.identity.keys import certificate_in, key_pem, new_key, request_for, save_identity, validity_of
from distributed_grid.identity.member import MEMBER
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import GetStatus, NewCertificate, Status, WantCertificate, WantOutput, Welcome
from distributed_grid.protocol.messages.handshake import AUTHORITY_PATH
from tests.coordinator.ends import ClientEnd, Coordinator, agent, client, coordinator, job, node, runs_on

LATE = 3.0
"""Seconds after its end, at most, in which a connection is closed; the machine may be slow."""


@pytest_asyncio.fixture
async def grid(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with coordinator(tmp_path, founded=True) as made:
        yield made


def member(grid: Coordinator, folder: Path, role: Role, name: str, life: float) -> Path:
    """The identity of somebody whose certificate holds so many seconds (whole ones are cut off), as later ones do."""
    assert grid.pki is not None
    grid.pki.lives = Lives(agent=life, person=life)
    key = new_key()
    signed = grid.pki.certify(request_for(key).decode(), role, name)
    save_identity(folder, key_pem(key), signed, grid.pki.authority.pem.decode())
    return folder


def end_of(folder: Path) -> float:
    return validity_of(certificate_in(folder)).end


async def closed_in_time(end: ClientEnd, at: float) -> None:
    """It is closed at that moment, and its peer is told why."""
    await end.gone()
    assert at <= time.time() < at + LATE
    with pytest.raises(ConnectionClosedError, match="has expired; renew it"):
        await end.socket.recv()


def authority_asked(url: str, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession]:
    """What is answered on a connection that resumes a session, and the session of that connection."""
    port = int(url.rpartition(":")[2])
    with (
        socket.create_connection(("localhost", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as wire,
    ):
        wire.sendall(f"GET {AUTHORITY_PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = wire.recv(1 << 16)
        assert wire.session is not None
        return answer, wire.session


async def test_a_session_is_not_resumed_when_its_certificate_has_ended(grid: Coordinator, tmp_path: Path) -> None:
    folder = member(grid, tmp_path / "ann", Role.CLIENT, "ann", 2.0)
    context = client_context(folder)
    answer, session = await asyncio.to_thread(authority_asked, grid.url, context, None)
    assert b"BEGIN CERTIFICATE" in answer and not session.has_ticket
    await asyncio.sleep(max(0.0, end_of(folder) - time.time()) + 0.1)
    try:
        answer, _ = await asyncio.to_thread(authority_asked, grid.url, context, session)
    except OSError:  # an alert
        answer = b""
    assert answer == b""


async def test_no_older_tls_is_spoken(grid: Coordinator, tmp_path: Path) -> None:
    context = client_context(member(grid, tmp_path / "ann", Role.CLIENT, "ann", 60.0))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(authority_asked, grid.url, context, None)


async def test_an_open_connection_ends_with_its_certificate(grid: Coordinator, tmp_path: Path) -> None:
    folder = member(grid, tmp_path / "ann", Role.CLIENT, "ann", 2.0)
    lasting = await client(
        grid.url, "bob", ssl=client_context(member(grid, tmp_path / "bob", Role.CLIENT, "bob", 60.0))
    )
    end = await client(grid.url, "ann", ssl=client_context(folder))
    await closed_in_time(end, end_of(folder))
    assert isinstance(await lasting.ask(GetStatus(id=1)), Status)
    await lasting.close()


async def test_a_nodes_both_connections_end_with_its_certificate_and_its_jobs_are_not_lost(
    grid: Coordinator, tmp_path: Path
) -> None:
    folder = member(grid, tmp_path / "n1", Role.AGENT, "n1", 3.0)
    asker = await client(grid.url, "bob", ssl=client_context(member(grid, tmp_path / "bob", Role.CLIENT, "bob", 60.0)))
    lab = await agent(grid.url, node("n1"), runs_on, output=b"said", ssl=client_context(folder))
    (made,) = await asker.submit(job())
    running = await asker.until(lambda seen: getattr(getattr(seen, "job", None), "state", None) is State.RUNNING)
    await asker.ask(WantOutput(7, running.job.allocation, "stdout", 0, 10))
    assert lab.data is not None
    await lab.gone()
    await lab.data.gone()
    assert end_of(folder) <= time.time() < end_of(folder) + LATE
    assert grid.ledger.state.jobs[made].state is not State.ENDED
    await asker.close()


async def test_a_renewal_over_the_connection_moves_its_end(grid: Coordinator, tmp_path: Path) -> None:
    folder = member(grid, tmp_path / "ann", Role.CLIENT, "ann", 3.0)
    end, first = await client(grid.url, "ann", ssl=client_context(folder)), end_of(folder)
    welcome = end.seen[0]
    assert isinstance(welcome, Welcome) and not welcome.renew and 0 < welcome.renew_in <= 2.0
    await asyncio.sleep(max(0.0, first - 1.0 - time.time()))
    asked = RenewalRequest(folder)
    answer = await end.ask(WantCertificate(id=1, request=asked.request))
    assert isinstance(answer, NewCertificate) and answer.certificate
    asked.keep(answer.certificate)
    await asyncio.sleep(max(0.0, first + 0.3 - time.time()))
    assert isinstance(await end.ask(GetStatus(id=2)), Status)
    await closed_in_time(end, end_of(folder))


async def test_a_connection_ends_with_its_bearer_token(grid: Coordinator) -> None:
    assert grid.pki is not None
    expires = time.time() + 1.5
    token = grid.pki.identities.bearers.mint(Role.CLIENT, "ci", 1.5, "root", expires - 1.5)
    shown = {"Authorization": f"Bearer {token}"}
    context = trusting_context(grid.pki.authority.pem.decode())
    end = await client(grid.url, "ci", ssl=context, additional_headers=shown)
    await closed_in_time(end, expires)


@pytest.fixture
def context(grid: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `grid login` leaves of a person whose certificates hold for three seconds."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = member(grid, tmp_path / "config" / "grid" / "contexts" / "here", Role.CLIENT, "ann", 3.0)
    told = {"url": grid.url, "grid": grid.store.grid, "role": "client", "name": "ann"}
    (folder / MEMBER).write_text(json.dumps(told))
    return folder


async def test_a_python_client_stays_connected_over_many_certificates(grid: Coordinator, context: Path) -> None:
    until = time.time() + 8
    async with GridClient(grid.url) as ours:
        while time.time() < until:
            assert (await ours.status()).nodes == ()
            await asyncio.sleep(0.2)
        assert ours._session.opened == 1


async def test_a_command_stays_connected_over_many_certificates(grid: Coordinator, context: Path) -> None:
    def follow() -> None:
        until = time.time() + 8
        ours = blocking.GridClient(grid.url, patience=0).connect()
        while time.time() < until:
            ours.receive(0.2)
        assert isinstance(ours.call(GetStatus(id=ours.number())), Status)
        ours.close()

    await asyncio.to_thread(follow)


AHEAD = 30 * 86400.0


@pytest.fixture
def renewals(grid: Coordinator, context: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a renewal was asked for: the first is refused. The pause after that is short."""
    asked: list[float] = []
    renew = grid.server._access.renew

    def refused_once(*args: Any) -> NewCertificate:
        asked.append(time.monotonic())
        return renew(*args) if len(asked) > 1 else NewCertificate(error="not now", id=args[1].id)

    monkeypatch.setattr(grid.server._access, "renew", refused_once)
    for module in (blocking, connection):
        monkeypatch.setattr(module, "RENEW_AGAIN", 0.1)
    return asked


def clock_until(asked: list[float]) -> SimpleNamespace:
    """The module time, whose wall clock is a month ahead until a renewal was asked for."""
    return SimpleNamespace(
        monotonic=time.monotonic, sleep=time.sleep, time=lambda: time.time() + (0.0 if asked else AHEAD)
    )


async def test_a_python_client_renews_again_after_a_failure_while_the_clock_was_ahead(
    grid: Coordinator, context: Path, renewals: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "time", clock_until(renewals), raising=False)
    before = end_of(context)
    async with GridClient(grid.url), asyncio.timeout(20):
        while end_of(context) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_command_renews_again_after_a_failure_while_the_clock_was_ahead(
    grid: Coordinator, context: Path, renewals: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "time", clock_until(renewals))
    before = end_of(context)

    def follow() -> None:
        with blocking.GridClient(grid.url, patience=0) as ours:
            while end_of(context) == before:
                ours.receive(0.05)

    async with asyncio.timeout(20):
        await asyncio.to_thread(follow)


async def test_a_client_whose_clock_is_ahead_renews_no_more_often_than_others(
    grid: Coordinator, context: Path, renewals: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep, time=lambda: time.time() + AHEAD)
    for module in (blocking, connection):
        monkeypatch.setattr(module, "time", ahead, raising=False)

    def follow() -> None:
        with blocking.GridClient(grid.url, patience=0) as ours:
            while len(renewals) < 6:
                ours.receive(0.05)

    async with asyncio.timeout(30):
        await asyncio.to_thread(follow)
        assert renewals[3] - renewals[2] > 1.0
        renewals.clear()
        async with GridClient(grid.url):
            while len(renewals) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert renewals[3] - renewals[2] > 1.0
