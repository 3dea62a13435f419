"""Private keys are kept where nobody else can read them, and a certificate says how long it is valid."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from distributed_grid.identity import keys
from distributed_grid.identity.credentials import AUTHORITY, CERTIFICATE, KEY
from distributed_grid.protocol.errors import GridError

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def certificate(days: int = 9) -> x509.Certificate:
    key, name = keys.new_key(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(BEGIN).not_valid_after(BEGIN + datetime.timedelta(days))
    return built.sign(key, hashes.SHA256())


def test_a_secret_is_written_whole_for_its_owner_alone_and_read_only_so(tmp_path: Path) -> None:
    path = tmp_path / "own.key"
    keys.write_secret(path, b"old")
    keys.write_secret(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o600 and keys.read_secret(path) == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["own.key"]
    path.chmod(0o644)
    with pytest.raises(GridError, match="can be read by others"):
        keys.read_secret(path)


def test_an_identity_is_a_folder_with_key_certificate_and_authority(tmp_path: Path) -> None:
    made = certificate()
    text = made.public_bytes(serialization.Encoding.PEM).decode()
    keys.save_identity(tmp_path / "id", keys.key_pem(keys.new_key()), text, "authority")
    assert sorted(one.name for one in (tmp_path / "id").iterdir()) == sorted([AUTHORITY, CERTIFICATE, KEY])
    assert keys.certificate_in(tmp_path / "id") == made
    (tmp_path / "id" / KEY).write_bytes(b"nothing of the kind")
    with pytest.raises(GridError, match="cannot be read"):
        keys.certificate_in(tmp_path / "id")


def test_the_validity_of_a_certificate_is_counted_from_its_begin() -> None:
    valid = keys.validity_of(certificate(days=10))
    assert valid.begin == BEGIN.timestamp() and valid.end - valid.begin == 10 * 86400
    assert valid.at(0.5) == valid.begin + 5 * 86400


def test_the_pin_is_of_the_key_and_a_request_names_nobody() -> None:
    one, other = certificate(), certificate()
    assert len(keys.pin_of(one)) == 52 and keys.pin_of(one) != keys.pin_of(other)
    asked = x509.load_pem_x509_csr(keys.request_for(keys.new_key()))
    assert [name.value for name in asked.subject] == ["grid"] and asked.is_signature_valid
