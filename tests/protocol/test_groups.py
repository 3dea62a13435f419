"""Arrays as people write them."""

import pytest

from distributed_grid.protocol import groups
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, parse_array


@pytest.mark.parametrize(
    ("text", "indexes"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("1-10:3", [1, 4, 7, 10]),
        ("1-9:3", [1, 4, 7]),
        ("1,3,7", [1, 3, 7]),
        ("7", [7]),
        ("5,1-2", [1, 2, 5]),
        ("1-4,3-6", [1, 2, 3, 4, 5, 6]),
        ("0-8:4,2", [0, 2, 4, 8]),
        (" 0-1 , 4 ", [0, 1, 4]),
    ],
)
def test_an_array_is_read(text: str, indexes: list[int]) -> None:
    array = parse_array(text)
    assert list(groups.indexes(array.parts)) == indexes
    assert groups.count(array.parts) == len(indexes)
    assert (array.most, array.max_fails) == (0, -1)
    assert parse_array(groups.words(array)) == array


def test_how_many_run_at_once_stands_behind_a_percent_sign() -> None:
    array = parse_array("0-99%8", max_fails=2)
    assert array == Array(((0, 99, 1),), most=8, max_fails=2)
    assert groups.words(array) == "0-99%8"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no range"),
        ("a-b", "no range"),
        ("3-1", "ends before it begins"),
        ("1-5:0", "steps of nothing"),
        ("-1", "no range"),
        ("1-5%0", "no number above zero"),
        ("1-5%", "no number above zero"),
        ("1,,2", "no range"),
        ("٣", "no range"),
        ("0-٣", "no range"),
        ("0-3%٢", "no number above zero"),
        ("0-100000", ""),
        ("0-99999,50000-199999", ""),
    ],
)
def test_what_is_no_array_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadValue) as caught:
        parse_array(text)
    assert why in caught.value.why


def test_what_others_send_is_looked_at_before_it_is_counted() -> None:
    assert groups.sound(parse_array("0-9:3,20")) is None
    for parts in (((5, 1, 1),), ((0, 5, 0),), ((0, 5, 1), (3, 9, 1)), ((-1, 2, 1),), (), ((0, 10**12, 1),)):
        assert groups.sound(Array(parts)) is not None
    assert groups.sound(Array(((0, 1, 1),), most=-1)) is not None


def test_a_member_is_told_from_other_names() -> None:
    assert groups.split_member("j-abc_7") == ("j-abc", 7)
    assert groups.split_member("my_sweep_12") == ("my_sweep", 12)
    for text in ("j-abc", "j-abc_", "_7", "j-abc_x", "j-abc_²"):
        assert groups.split_member(text) is None
