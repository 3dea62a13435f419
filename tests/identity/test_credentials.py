"""What a peer connects with: its bearer token is read strictly, and files that others can touch are refused."""

import re
import ssl
from pathlib import Path

import pytest

from distributed_grid.coordinator.client.session import not_dialled
from distributed_grid.identity import credentials
from distributed_grid.protocol.errors import GridError

TOKEN = "gridu1.id.secret"


@pytest.fixture(autouse=True)
def no_file_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(credentials.VARIABLE, raising=False)


def keep(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_a_bearer_token_is_found_in_its_folder_or_in_the_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert credentials.bearer_in(tmp_path) == ""
    keep(tmp_path / credentials.BEARER, f"{TOKEN}\n")
    assert credentials.bearer_in(tmp_path) == TOKEN
    keep(tmp_path / "other", "grid://host:1/gridu1.pin.other.secret")
    monkeypatch.setenv(credentials.VARIABLE, str(tmp_path / "other"))
    assert credentials.bearer_in(tmp_path) == "gridu1.other.secret"


@pytest.mark.parametrize("text", ["grid1.id.secret", "gridu1.a b.c", "gridu1.\x07", ""])
def test_what_is_no_bearer_token_is_refused(tmp_path: Path, text: str) -> None:
    keep(tmp_path / credentials.BEARER, text)
    with pytest.raises(GridError, match="holds no bearer token"):
        credentials.bearer_in(tmp_path)


def test_a_secret_that_others_can_read_or_replace_is_refused(tmp_path: Path) -> None:
    keep(tmp_path / "a", "x", 0o640)
    with pytest.raises(GridError, match="can be read by others"):
        credentials.check_private(tmp_path / "a")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    keep(tmp_path / "open" / "b", "x")
    with pytest.raises(GridError, match="in the place of"):
        credentials.check_private(tmp_path / "open" / "b")
    with pytest.raises(GridError, match="cannot read"):
        credentials.check_private(tmp_path / "none")


def test_tls_is_version_1_3_only_and_its_alerts_are_explained() -> None:
    assert credentials.blind_context().minimum_version is ssl.TLSVersion.TLSv1_3
    error = ssl.SSLError()
    error.reason = "SSLV3_ALERT_CERTIFICATE_REVOKED"
    assert credentials.tls_words(error) == "our certificate was taken back"
    error.reason = "SOMETHING_ELSE"
    assert credentials.tls_words(error) == "TLS: something else"


@pytest.mark.parametrize("code", [9, 10])
def test_a_certificate_that_does_not_hold_now_is_told_with_this_machines_clock(code: int) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "certificate is of another time"
    assert re.fullmatch(
        r"its certificate is of another time; this machine's clock says \d{4}-\d\d-\d\d \d\d:\d\d UTC",
        credentials.tls_words(error),
    )
    unreachable = not_dialled("wss://127.0.0.1:7433", error, None)
    assert "clock" in unreachable.why and "clock" in unreachable.hint
    error.verify_code = 18
    assert credentials.tls_words(error) == "its certificate is not good here: certificate is of another time"
    assert credentials.hint_of(error) == ""
