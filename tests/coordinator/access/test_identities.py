"""Only who has the secret is right, and what is kept of it does not open anything."""

from distributed_grid.coordinator.access import identities


def test_a_secret_is_known_by_what_is_kept_of_it_and_no_other_is() -> None:
    (first, secret), (second, other) = identities.new_secret(), identities.new_secret()
    assert first != second and secret != other and len(secret) >= 43
    kept = identities.digest_of(secret)
    assert identities.is_right(kept, secret)
    assert not identities.is_right(kept, other) and not identities.is_right(kept, kept.hex())


def test_where_nothing_is_kept_no_secret_is_right() -> None:
    assert not identities.is_right(None, "") and not identities.is_right(None, "\0" * 32)
    assert not identities.is_right(identities.digest_of("a"), "\udcff")
