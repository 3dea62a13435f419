"""Rights are written as people write them, and what is left unset comes from elsewhere."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.messages.rights import (
    NO_RIGHTS,
    UNLIMITED,
    Rights,
    Whose,
    amount_words,
    check_name,
    limit_words,
    parse_limit,
    parse_rights,
)
from distributed_grid.protocol.resources import GIB


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cores", "8", 8000), ("cores", "0.5", 500), ("gpus", "0", 0), ("memory", "64", 64 * GIB),
        ("memory", "512M", GIB // 2),
        ("memory", "0", 0), ("core_hours", "1.5", 1500), ("jobs_waiting", "20", 20), ("gpus", " Unlimited ", UNLIMITED),
        ("cores", "-1", UNLIMITED),
    ],
)  # fmt: skip
def test_a_limit_is_read_and_written(name: str, text: str, value: int) -> None:
    assert parse_limit(name, text) == value
    assert parse_limit(name, limit_words(name, value)) == value


@pytest.mark.parametrize("text", ["-2", "many", "nan", "inf", "1e30", "1e999999", "0.0001", ""])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_limit("cores", text)


def test_what_is_unset_comes_from_others() -> None:
    mine, others = Rights(cores=1000, exclusive_boosts=False), Rights(cores=2000, gpus=500, reservations=True)
    assert mine.over(others) == Rights(cores=1000, gpus=500, exclusive_boosts=False, reservations=True)
    assert mine.over(NO_RIGHTS) == mine and NO_RIGHTS.over(others) == others


def test_quotas_are_the_limits_that_limit() -> None:
    rights = Rights(highest_priority=Priority.LOW, cores=UNLIMITED, gpus=0, reservations=False)
    assert rights.quotas() == Rights(gpus=0)


def test_rights_are_named_as_options() -> None:
    rights = parse_rights({"cores": 8, "highest_priority": "critical", "exclusive_boosts": False, "memory": "64G"})
    assert rights.words() == "--highest-priority urgent --cores 8 --memory 64G --no-exclusive-boosts"
    assert amount_words("core_hours", 1500) == "1.5 core-hours" and amount_words("gpus", 500) == "0.5 gpu"


@pytest.mark.parametrize("given", [{"core": 1}, {"reservations": "yes"}, {"highest_priority": "top"}])
def test_unknown_rights_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(BadValue):
        parse_rights(given)


@pytest.mark.parametrize(
    ("whose", "name"), [(Whose.USER, ""), (Whose.USER, "x" * 65), (Whose.DEFAULT, "a"), (Whose.GROUP, "\n")]
)
def test_a_name_that_nobody_can_have_is_refused(whose: Whose, name: str) -> None:
    check_name(Whose.USER, "ann")
    with pytest.raises(BadValue):
        check_name(whose, name)
