"""Only who has the secret is right, and what is kept of it does not open anything."""

from distributed_grid.coordinator.access import tokens


def test_a_secret_is_known_by_what_is_kept_of_it_and_no_other_is() -> None:
    (first, secret), (second, other) = tokens.new(), tokens.new()
    assert first != second and secret != other and len(secret) >= 43
    kept = tokens.digest(secret)
    assert tokens.is_right(kept, secret)
    assert not tokens.is_right(kept, other) and not tokens.is_right(kept, kept.hex())


def test_where_nothing_is_kept_no_secret_is_right() -> None:
    assert not tokens.is_right(None, "") and not tokens.is_right(None, "\0" * 32)
    assert not tokens.is_right(tokens.digest("a"), "\udcff")
