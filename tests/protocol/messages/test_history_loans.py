"""Questions about loans: what is asked where nothing is said, and what cannot be asked."""

import msgspec
import pytest

from distributed_grid.protocol.messages.history import DayOfLoans, GetLoans


def test_a_week_of_all_loans_is_asked_for_where_nothing_is_said() -> None:
    assert GetLoans(1) == GetLoans(1, user="", node="", days=7)


@pytest.mark.parametrize("asked", [{"id": 1, "days": -1}, {"id": 1, "user": "a" * 1025}, {"id": -1}])
def test_what_is_out_of_bounds_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "get-loans"} | asked, GetLoans)


def test_a_day_before_the_epoch_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"day": -1} | dict.fromkeys(DayOfLoans.__struct_fields__[1:4], "a"), DayOfLoans)
