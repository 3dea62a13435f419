"""The grid's certificate authority: what it signs holds in a real handshake, and what it did not sign does not."""

import asyncio
import base64
import contextlib
import datetime
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from distributed_grid.coordinator.access.ca import DAY, Authority, presented
from distributed_grid.identity.keys import key_pem, new_key, pin_of, read_secret, request_for, write_secret
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Identity, Role

NOW = datetime.datetime.now(datetime.UTC)
COORDINATOR = Identity("0a1b", Role.COORDINATOR)
NODE = Identity("0a1b", Role.AGENT, "n1")


def paper(
    folder: Path, authority: Authority, identity: Identity, now: datetime.datetime = NOW, **more: Any
) -> tuple[Path, Path]:
    """A certificate and its key, as files."""
    key = new_key()
    signed = authority.sign(request_for(key), identity, now, 3600.0, **more)
    stem = identity.role.value + identity.name + str(signed.serial_number)
    (folder / f"{stem}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_secret(folder / f"{stem}.key", key_pem(key))
    return folder / f"{stem}.crt", folder / f"{stem}.key"


async def meet(
    folder: Path, authority: Authority, client: tuple[Path, Path], trusted: Authority | None = None
) -> Identity:
    """A handshake over TLS 1.3 of a coordinator with who has this certificate: whom the coordinator sees. Raises what
    the handshake of either side does."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(*paper(folder, authority, COORDINATOR, hosts=["127.0.0.1", "localhost"]))
    server.load_verify_locations(cadata=authority.pem.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    mine = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    mine.load_verify_locations(cadata=(trusted or authority).pem.decode())
    mine.load_cert_chain(*client)
    seen: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        seen.set_result(presented(certificate).identity)
        writer.write(b"hello")
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=mine)
        with contextlib.closing(writer):
            assert await reader.read() == b"hello"
            return await seen


async def refused(meeting: Callable[[], Awaitable[Identity]]) -> None:
    async with asyncio.timeout(60):
        with pytest.raises((ssl.SSLError, ConnectionResetError, AssertionError)):
            await meeting()


async def test_who_was_signed_is_known_by_the_name_that_was_given_out(tmp_path: Path) -> None:
    authority = Authority.create("0a1b", NOW)
    assert await meet(tmp_path, authority, paper(tmp_path, authority, NODE)) == NODE


async def test_a_certificate_of_another_authority_opens_nothing_also_where_its_grid_has_the_same_id(
    tmp_path: Path,
) -> None:
    authority, other = Authority.create("0a1b", NOW), Authority.create("0a1b", NOW)
    await refused(lambda: meet(tmp_path, authority, paper(tmp_path, other, NODE)))


async def test_a_client_does_not_take_a_coordinator_of_another_authority(tmp_path: Path) -> None:
    authority, other = Authority.create("0a1b", NOW), Authority.create("0a1b", NOW)
    mine = paper(tmp_path, authority, NODE)
    await refused(lambda: meet(tmp_path, authority, mine, trusted=other))


async def test_an_expired_certificate_opens_nothing(tmp_path: Path) -> None:
    authority = Authority.create("0a1b", NOW)
    old = paper(tmp_path, authority, NODE, NOW - datetime.timedelta(hours=2))
    await refused(lambda: meet(tmp_path, authority, old))


async def test_a_coordinators_certificate_is_no_clients(tmp_path: Path) -> None:
    authority = Authority.create("0a1b", NOW)
    await refused(lambda: meet(tmp_path, authority, paper(tmp_path, authority, COORDINATOR, hosts=["localhost"])))


def test_what_a_request_asks_to_be_called_is_not_looked_at() -> None:
    authority, key = Authority.create("0a1b", NOW), new_key()
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")]))
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier("grid://0a1b/operator/root")]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, SHA256())
    )
    signed = authority.sign(greedy.public_bytes(serialization.Encoding.PEM), NODE, NOW, 1)
    assert presented(signed.public_bytes(serialization.Encoding.DER)).identity == NODE
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "root" not in signed.subject.rfc4514_string()


def test_a_request_that_is_not_signed_by_its_own_key_or_is_none_is_refused() -> None:
    authority = Authority.create("0a1b", NOW)
    der = bytearray(x509.load_pem_x509_csr(request_for(new_key())).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    weak = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(rsa.generate_private_key(65537, 1024), SHA256())  # noqa: S505
        .public_bytes(serialization.Encoding.PEM)
    )
    # An unknown curve, an unknown kind of key, an unknown version.
    curve, key, version = b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x02\x01", b"\x02\x01\x00"
    der[-1] ^= 1
    strange = [
        b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n"
        % base64.encodebytes(bytes(der).replace(one, one[:-1] + b"\x55", 1))
        for one in (curve, key, version)
    ]
    for request in (b"", b"nonsense", forged, weak, *strange):
        with pytest.raises(BadValue):
            authority.sign(request, NODE, NOW, 1)


def test_a_certificate_outlives_neither_its_days_nor_its_authority() -> None:
    authority = Authority.create("0a1b", NOW)
    signed = authority.sign(request_for(new_key()), NODE, NOW, 7 * DAY)
    assert signed.not_valid_after_utc - NOW <= datetime.timedelta(days=7)
    late = authority.sign(request_for(new_key()), NODE, NOW, 36500 * DAY)
    assert late.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_an_authority_is_the_same_when_it_is_loaded_again_and_its_key_is_its_owners(tmp_path: Path) -> None:
    authority = Authority.create("0a1b", NOW)
    authority.save(tmp_path)
    assert os.stat(tmp_path / "ca.key").st_mode & 0o777 == 0o600
    again = Authority.load(tmp_path, "0a1b")
    assert (again.pem, again.pin, pin_of(again.certificate)) == (authority.pem, authority.pin, authority.pin)
    assert len(authority.pin) == 52


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    Authority.create("0a1b", NOW).save(tmp_path)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(GridError, match="can be read by others") as error:
        Authority.load(tmp_path, "0a1b")
    assert error.value.hint.startswith("chmod 600 ")


def test_a_key_of_another_certificate_is_not_taken(tmp_path: Path) -> None:
    Authority.create("0a1b", NOW).save(tmp_path)
    write_secret(tmp_path / "ca.key", key_pem(new_key()))
    with pytest.raises(GridError, match="is not the key of"):
        Authority.load(tmp_path, "0a1b")


def test_a_secret_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    write_secret(tmp_path / "secret", b"x")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert read_secret(tmp_path / "secret") == b"x"


def test_a_derived_secret_is_the_same_after_a_restart_and_another_for_each_purpose_and_grid(tmp_path: Path) -> None:
    authority = Authority.create("0a1b", NOW)
    authority.save(tmp_path)
    secret = authority.secret_of("token of m-1")
    assert len(secret) == 32 and Authority.load(tmp_path, "0a1b").secret_of("token of m-1") == secret
    assert secret != authority.secret_of("token of m-2")
    assert secret != Authority.create("0a1b", NOW).secret_of("token of m-1")
