"""The node's certificate is renewed over the session when it is time; the coordinator is played."""

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from distributed_grid.agent import renewal
from distributed_grid.agent.renewal import Renewal
from distributed_grid.agent.session import Session, dial
from distributed_grid.coordinator.access.ca import Authority
from distributed_grid.identity import enrollment
from distributed_grid.identity.enrollment import renewal_time
from distributed_grid.identity.keys import key_pem, new_key, request_for, save_identity
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello, NewCertificate, WantCertificate
from tests.agent.scene import Coordinator
from tests.agent.scene import coordinator as coordinator
from tests.protocol.samples import FACTS

LAB = Identity("grid", Role.AGENT, "lab")
NOW = datetime.datetime.now(datetime.UTC)
AUTHORITY = Authority.create("grid", NOW)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An identity of which most of the life is over."""
    key = new_key()
    certificate = AUTHORITY.sign(request_for(key), LAB, NOW - datetime.timedelta(hours=20), 24 * 3600)
    save_identity(tmp_path / "identity", key_pem(key), pem(certificate), AUTHORITY.pem.decode())
    return tmp_path / "identity"


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


@pytest.fixture
async def session(coordinator: Coordinator) -> AsyncIterator[Session]:
    hello = Hello(protocol=PROTOCOL, software="test", role="agent", name=FACTS.name, facts=FACTS)
    made = await dial(f"ws://127.0.0.1:{coordinator.port}", hello)
    yield made
    await made.close()


async def renewing(folder: Path, session: Session) -> tuple[Renewal, "asyncio.Task[None]"]:
    one = Renewal(folder, "wss://master:7433", lambda: session)
    return one, asyncio.create_task(one.run())


async def test_a_certificate_near_its_end_is_replaced_by_the_one_that_the_coordinator_signs(
    coordinator: Coordinator, session: Session, folder: Path
) -> None:
    before = renewal_time(folder)
    one, running = await renewing(folder, session)
    want = await coordinator.hears(WantCertificate)
    fresh = AUTHORITY.sign(want.request.encode(), LAB, NOW, 24 * 3600)
    one.answered(NewCertificate(certificate=pem(fresh)))
    await coordinator.until(lambda: renewal_time(folder) > before + 3600)
    running.cancel()
    assert len(coordinator.all(WantCertificate)) == 1


@pytest.mark.parametrize("answer", [NewCertificate(error="not now"), NewCertificate(certificate="no certificate")])
async def test_a_refusal_leaves_the_identity_and_is_tried_again(
    coordinator: Coordinator, session: Session, folder: Path, answer: NewCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "BACK_OFF", 0.01)
    before = (folder / "own.crt").read_bytes()
    one, running = await renewing(folder, session)
    await coordinator.hears(WantCertificate)
    one.answered(answer)
    await coordinator.hears(WantCertificate, count=2)
    running.cancel()
    assert (folder / "own.crt").read_bytes() == before


async def test_a_renewal_that_failed_while_the_clock_was_ahead_is_tried_again_when_it_is_not(
    coordinator: Coordinator, session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "BACK_OFF", 0.5)
    real = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: real() + 30 * 86400)
        one, running = await renewing(folder, session)
        await coordinator.hears(WantCertificate)
        one.answered(NewCertificate(error="not now"))
        await coordinator.until(lambda: one._answer is None)
    await coordinator.hears(WantCertificate, count=2)
    running.cancel()


async def test_a_clock_that_is_ahead_does_not_make_it_renew_without_end(
    coordinator: Coordinator, session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "BACK_OFF", 3600.0)
    before, real = renewal_time(folder), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 30 * 86400)
    one, running = await renewing(folder, session)
    want = await coordinator.hears(WantCertificate)
    one.answered(NewCertificate(certificate=pem(AUTHORITY.sign(want.request.encode(), LAB, NOW, 24 * 3600))))
    await coordinator.until(lambda: renewal_time(folder) > before + 3600)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await coordinator.hears(WantCertificate, count=2)
    running.cancel()


async def test_an_answer_that_nobody_waits_for_and_a_node_without_identity_change_nothing(tmp_path: Path) -> None:
    one = Renewal(tmp_path / "none", "wss://master:7433", lambda: None)
    one.answered(NewCertificate(certificate="x"))
    await one.revive()
    assert not (tmp_path / "none").exists()


async def test_a_certificate_of_the_future_is_renewed_once_a_try_to_connect_has_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def renew(folder: Path, url: str) -> None:
        asked.append(url)
        raise enrollment.NotRenewed("not now", final=True)

    monkeypatch.setattr(enrollment, "renew_expired", renew)
    one = Renewal(folder, "wss://master:7433", lambda: None)
    await one.revive(failed=True)
    assert not asked, "it holds"
    key = new_key()
    later = AUTHORITY.sign(request_for(key), LAB, NOW + datetime.timedelta(days=6), 7 * 86400)
    save_identity(folder, key_pem(key), pem(later), AUTHORITY.pem.decode())
    await one.revive()
    assert not asked, "the coordinator's clock may be ahead of ours, and then it takes it"
    await one.revive(failed=True)
    assert asked == ["wss://master:7433"], "and it connects all the same, where it is not renewed"
