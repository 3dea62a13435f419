"""Only who has the secret is right, and what is kept of it does not open anything."""

from functools import partial
from pathlib import Path

import pytest

from distributed_grid.coordinator.access import identities
from distributed_grid.protocol.identity import Role


def test_a_secret_is_known_by_what_is_kept_of_it_and_no_other_is() -> None:
    (first, secret), (second, other) = identities.new_secret(), identities.new_secret()
    assert first != second and secret != other and len(secret) >= 43
    kept = identities.digest_of(secret)
    assert identities.is_right(kept, secret)
    assert not identities.is_right(kept, other) and not identities.is_right(kept, kept.hex())


def test_where_nothing_is_kept_no_secret_is_right() -> None:
    assert not identities.is_right(None, "") and not identities.is_right(None, "\0" * 32)
    assert not identities.is_right(identities.digest_of("a"), "\udcff")


def test_the_same_seed_gives_the_same_token_which_is_used_once_all_the_same(tmp_path: Path) -> None:
    known = identities.Identities(tmp_path / "identities.db")
    mint = partial(known.mint, "pin", Role.AGENT, "m-1", {}, 1)
    first, again = mint(60.0, "grid", 100.0, seed=b"x" * 32), mint(60.0, "grid", 130.0, seed=b"x" * 32)
    assert first == again != mint(60.0, "grid", 100.0, seed=b"y" * 32)
    _, _, id, secret = first.split(".")
    with pytest.raises(identities.TokenRefused, match="has expired"):
        known.redeem(id, secret, "m-1", 160.0)
    assert known.redeem(id, secret, "m-1", 150.0).name == "m-1"
    assert mint(60.0, "grid", 155.0, seed=b"x" * 32) == first
    with pytest.raises(identities.TokenRefused, match="is used up"):
        known.redeem(id, secret, "m-1", 156.0)
    known.close()


def test_a_token_of_a_name_that_is_expelled_opens_nothing_even_when_it_is_made_again(tmp_path: Path) -> None:
    known = identities.Identities(tmp_path / "identities.db")
    mint = partial(known.mint, "pin", Role.AGENT, "m-1", {}, 1, 60.0, "grid", 100.0, seed=b"x" * 32)
    _, _, id, secret = mint().split(".")
    assert known.withdraw_of(Role.AGENT, "m-1", 101.0) == 1
    assert mint().split(".")[3] == secret
    with pytest.raises(identities.TokenRefused, match="is used up"):
        known.redeem(id, secret, "m-1", 101.0)
    known.close()


def test_what_is_revoked_stays_so_although_it_had_expired_and_only_what_was_of_use_is_counted(tmp_path: Path) -> None:
    known = identities.Identities(tmp_path / "identities.db")
    for serial, expires in ((1, 100.0), (2, 140.0), (3, 200.0)):
        known.signed(serial, Role.AGENT, "lab1", expires, 50.0)
    known.signed(4, Role.AGENT, "lab2", 200.0, 50.0)
    assert known.revoke(Role.AGENT, "lab1", 150.0, renewable=30.0) == 2
    assert known.revoked == {"1", "2", "3"} and known.revoke(Role.AGENT, "lab1", 151.0) == 0
    assert all((one := known.certified(serial)) is not None and one.revoked == 150.0 for serial in "123")
    known.close()
