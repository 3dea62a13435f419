"""Certificates are renewed for who holds the old one and its key, and for nobody else. Real TLS on loopback."""

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from distributed_grid.coordinator.access import ca
from distributed_grid.coordinator.access.ca import Lives, Pki, presented
from distributed_grid.coordinator.access.renewing import AT_MOST, Renewals
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.net.limits import LogThrottle
from distributed_grid.identity.credentials import client_context, server_context, trusting_context
from distributed_grid.identity.enrollment import (
    NotRenewed,
    RenewalRequest,
    has_expired,
    is_of_the_future,
    renew_expired,
)
from distributed_grid.identity.keys import (
    certificate_in,
    key_pem,
    new_key,
    read_secret,
    request_for,
    save_identity,
    validity_of,
)
from distributed_grid.protocol import codec
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import NewCertificate, Refused, WantCertificate
from distributed_grid.protocol.messages.handshake import RENEW_PATH, Challenge, Renew, signed_to_renew
from distributed_grid.protocol.resources import Grant
from tests.coordinator.core.scene import facts

OVER = 0.02
"""The life of a certificate that is over when it is looked at. They hold until whole seconds, so most are at once."""


class World:
    """A coordinator's door for renewals, and who comes to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pki = Pki.create(home / "pki", "0a1b", ["localhost"])
        self.audit = RequestLog(home / "audit.log")
        node = Node(facts("lab1"), orphans={"j-a.1": Grant()})  # something may run there still
        self.renewals = Renewals(self.pki, self.audit, {"lab1": node, "lab2": Node(facts("lab2"))}, LogThrottle())
        self.url = ""

    def member(self, name: str = "lab1", role: Role = Role.AGENT, life: float = OVER, folder: str = "") -> Path:
        """The identity of somebody whose certificate holds so many seconds."""
        self.pki.lives = Lives(agent=life, person=life)
        key = new_key()
        signed = self.pki.certify(request_for(key).decode(), role, name, folder or name)
        self.pki.lives = Lives()
        made = self.home / (folder or name)
        save_identity(made, key_pem(key), signed, self.pki.authority.pem.decode())
        while life == OVER and not has_expired(made):
            time.sleep(0.001)
        return made

    def given(self) -> int:
        return len(self.pki.identities.certificates(0.0))


@asynccontextmanager
async def standing(home: Path) -> AsyncIterator[World]:
    world = World(home)
    async with serve(world.renewals.serve, "127.0.0.1", 0, ssl=server_context(world.pki.folder)) as listener:
        world.url = f"wss://localhost:{next(iter(listener.sockets)).getsockname()[1]}"
        yield world
    world.audit.close()
    world.pki.close()


async def test_a_node_whose_certificate_expired_while_its_jobs_ran_gets_another_for_a_new_key(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        node = world.member()
        old = read_secret(node / "own.key")
        assert has_expired(node)
        await asyncio.to_thread(renew_expired, node, world.url)
        assert not has_expired(node) and read_secret(node / "own.key") not in old
        assert (node / "own.key").stat().st_mode & 0o777 == 0o600
        assert certificate_in(node).public_key() != world.pki.authority.certificate.public_key()
        client_context(node)  # key and certificate are one pair
        shown = presented(certificate_in(node).public_bytes(serialization.Encoding.DER))
        assert shown.identity.uri == "grid://0a1b/agent/lab1"
        assert '"renew"' in (tmp_path / "audit.log").read_text()


async def test_a_node_whose_certificate_was_made_while_the_clock_was_ahead_gets_one_that_holds_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing(tmp_path) as world:
        with monkeypatch.context() as ahead:
            later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=6)
            ahead.setattr(ca, "_now", lambda: later)
            node = world.member("lab2", life=60.0)  # no job runs there
        assert is_of_the_future(node)
        await asyncio.to_thread(renew_expired, node, world.url)
        assert not is_of_the_future(node) and not has_expired(node)


REFUSED: dict[str, tuple[Callable[[World], Path], str]] = {
    "no job of its runs": (lambda world: world.member("lab2"), "no job of the grid runs there"),
    "it was taken back": (
        lambda world: (world.member(life=60), world.pki.identities.revoke(Role.AGENT, "lab1", time.time()))[0],
        "was taken back",
    ),
    "it was taken back when it had expired": (
        lambda world: (world.member(), world.pki.identities.revoke(Role.AGENT, "lab1", time.time()))[0],
        "was taken back",
    ),
    "another node has joined by its name since": (
        lambda world: (world.member(), world.member(folder="other"))[0],
        "somebody has joined as node lab1 since",
    ),
    "it is a person": (lambda world: world.member("lab1", Role.OPERATOR), "only nodes renew"),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_it_is_refused_and_nothing_is_signed_when(tmp_path: Path, why: str) -> None:
    begin, said = REFUSED[why]
    async with standing(tmp_path) as world:
        folder = begin(world)
        before, given = read_secret(folder / "own.key"), world.given()
        with pytest.raises(NotRenewed) as refused:
            await asyncio.to_thread(renew_expired, folder, world.url)
        assert said in f"{refused.value.what} {refused.value.why}" and refused.value.final
        assert (read_secret(folder / "own.key"), world.given()) == (before, given)


async def test_it_is_refused_when_it_expired_longer_ago_than_the_bound(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        node = world.member()
        world.pki.lives = Lives(renew_expired=0.0)
        with pytest.raises(NotRenewed, match="expired on") as refused:
            await asyncio.to_thread(renew_expired, node, world.url)
        assert "certificates.renew_expired" in refused.value.why


async def test_a_certificate_of_another_authority_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "forged").mkdir()
    async with standing(tmp_path) as world:
        forger = World(tmp_path / "forged")
        node = forger.member()
        (node / "ca.crt").write_bytes(world.pki.authority.pem)  # it knows the grid, and is not of it
        with pytest.raises(NotRenewed, match="not proved to be a node of this grid"):
            await asyncio.to_thread(renew_expired, node, world.url)
        forger.pki.close()
        forger.audit.close()


async def test_what_was_said_on_one_connection_is_worth_nothing_on_another(tmp_path: Path) -> None:
    async with standing(tmp_path) as world:
        node = world.member()
        context = trusting_context((node / "ca.crt").read_text())
        key = serialization.load_pem_private_key(read_secret(node / "own.key"), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        pem = certificate_in(node).public_bytes(serialization.Encoding.PEM).decode()

        async def answered(nonce: str, signed: str, asked: str) -> NewCertificate | Refused:
            async with connect(world.url + RENEW_PATH, ssl=context, compression=None) as wire:
                challenge: Challenge = codec.decode_first(await wire.recv(decode=False), Challenge)
                words = signed_to_renew(nonce or challenge.nonce, signed)
                signature = key.sign(words, ec.ECDSA(hashes.SHA256())).hex()
                frame = codec.encode(1, [Renew(certificate=pem, request=asked, signature=signature)])
                await wire.send(frame)
                answer: NewCertificate | Refused = codec.decode_first(
                    await wire.recv(decode=False), NewCertificate | Refused
                )
                return answer

        mine, thiefs = (request_for(new_key()).decode() for _ in range(2))
        given = world.given()
        assert isinstance(await answered("5eed" * 16, mine, mine), Refused)  # signed on another connection
        assert isinstance(await answered("", mine, thiefs), Refused)  # a request that was put in its place
        assert world.given() == given
        assert isinstance(await answered("", mine, mine), NewCertificate)


def test_over_the_session_who_is_connected_gets_its_own_name_and_nobody_elses(tmp_path: Path) -> None:
    world = World(tmp_path)
    person = world.member("ann", Role.CLIENT, life=60.0)
    shown = presented(certificate_in(person).public_bytes(serialization.Encoding.DER))
    asked = RenewalRequest(person)
    answer = world.renewals.renew(shown, WantCertificate(request=asked.request, id=7))
    assert answer.id == 7 and not answer.error
    asked.keep(answer.certificate)
    assert presented(certificate_in(person).public_bytes(serialization.Encoding.DER)).identity == shown.identity
    kept = world.pki.identities.certified(f"{certificate_in(person).serial_number:x}")
    assert kept is not None and kept.token == "ann"  # it is known still by which token she came
    with pytest.raises(NotRenewed, match="is for another key"):
        RenewalRequest(person).keep(answer.certificate)
    client_context(person)


def test_nobody_is_given_certificates_without_end_and_a_bad_request_gives_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    node = world.member(life=60.0)
    shown = presented(certificate_in(node).public_bytes(serialization.Encoding.DER))
    assert "not a certificate request" in world.renewals.renew(shown, WantCertificate(request="no")).error
    assert "no certificate" in world.renewals.renew(None, WantCertificate(request=RenewalRequest(node).request)).error
    for _ in range(AT_MOST):
        assert not world.renewals.renew(shown, WantCertificate(request=RenewalRequest(node).request)).error
    given = world.given()
    assert "was given" in world.renewals.renew(shown, WantCertificate(request=RenewalRequest(node).request)).error
    assert world.given() == given


def test_the_coordinators_own_certificate_is_renewed_when_most_of_its_life_is_over(tmp_path: Path) -> None:
    pki = Pki.create(tmp_path / "pki", "0a1b", ["localhost", "192.0.2.1"])
    assert not pki.refresh_self()
    pki.lives = Lives(server=OVER)
    pki.certify_self(["localhost", "192.0.2.1"])
    before = certificate_in(pki.folder)
    pki.lives = Lives()
    assert pki.refresh_self() and not has_expired(pki.folder)
    after = certificate_in(pki.folder)
    assert after.serial_number != before.serial_number
    names = [one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (before, after)]
    assert names[0] == names[1] and x509.DNSName("localhost") in names[0]
    server_context(pki.folder)
    pki.close()


def test_the_coordinators_own_certificate_is_for_the_host_where_it_is_said_to_be_reached(tmp_path: Path) -> None:
    pki = Pki.create(tmp_path / "pki", "0a1b", ["old.example.org", "2001:db8::1"])
    for known in ("", "wss://old.example.org:7433", "wss://[2001:DB8:0::1]:7433", "ws://new.example.org:7433"):
        assert not pki.refresh_self(known)
    assert not pki.refresh_self("wss://ü.example.org:7433")
    assert pki.refresh_self("wss://new.example.org:7433")
    assert pki.hosts() == ["old.example.org", "new.example.org", "2001:db8::1"]
    assert not pki.refresh_self("wss://new.example.org:7433")
    server_context(pki.folder)
    pki.close()


def test_the_coordinators_own_certificate_is_renewed_when_it_was_made_while_the_clock_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki.create(tmp_path / "pki", "0a1b", ["localhost"])
    with monkeypatch.context() as ahead:
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=70)
        ahead.setattr(ca, "_now", lambda: later)
        pki.certify_self(["localhost"])
    assert validity_of(certificate_in(pki.folder)).begin > time.time()
    assert pki.refresh_self() and validity_of(certificate_in(pki.folder)).begin < time.time()
    assert not pki.refresh_self()
    pki.close()
