"""Invitations are read strictly; the rest is tried over real TLS in tests/coordinator/access."""

from pathlib import Path

import pytest

from distributed_grid.identity import enrollment
from distributed_grid.protocol.errors import BadValue

PIN = "a" * 52


def test_an_invitation_names_host_port_pin_and_token() -> None:
    read = enrollment.parse_invitation(f" grid://[::1]:7000/grid1.{PIN}.t1.s1\n")
    assert (read.url, read.pin, read.token, read.secret, read.bearer) == ("wss://[::1]:7000", PIN, "t1", "s1", "")
    bearer = enrollment.parse_invitation(f"grid://m/gridu1.{PIN}.t1.s1")
    assert (bearer.address, bearer.bearer) == (f"m:{enrollment.PORT}", "gridu1.t1.s1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "grid://",
        f"http://m/grid1.{PIN}.t.s",
        "grid://m/grid1.short.t.s",
        f"grid://m/grid1.{PIN}.t",
        "grid://m:x/never",
    ],
)
def test_what_is_no_invitation_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadValue, match="this is not an invitation") as refused:
        enrollment.parse_invitation(text)
    secret = text.rpartition("/")[2]
    assert not secret or secret not in " ".join(refused.value.lines())


def test_nobody_joins_with_a_bearer_token(tmp_path: Path) -> None:
    invitation = enrollment.parse_invitation(f"grid://m/gridu1.{PIN}.t1.s1")
    with pytest.raises(BadValue, match="cannot be used to join"):
        enrollment.join(invitation, "n1", lambda name: tmp_path / name, node=True)


def test_text_that_is_no_certificate_has_no_pin_and_a_plain_address_no_certificate() -> None:
    assert enrollment.pin_in("nothing") == ""
    assert "wss://" in enrollment.disconnect_reason("ws://m:1", None)
