"""`grid quota` shows limit, used and left, for people and for programs; and sends what an operator grants."""

from typing import Any

import pytest
from click.testing import CliRunner

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid import quota
from distributed_grid.cli.main import main
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.messages import Done, GetQuota, Quota, Quotas, Rights, SetRights, Whose
from distributed_grid.protocol.resources import GIB, Resources

ANN = Quota(
    whose=Whose.USER, name="ann",
    rights=Rights(highest_priority=Priority.HIGH, cores=8000, core_hours=4000, exclusive_boosts=False),
    holds=Resources(6000, GIB), core_hours=1500, waiting=2,
)  # fmt: skip
LAB = Quota(whose=Whose.GROUP, name="lab", rights=Rights(gpus=1000), holds=Resources(gpu=2000), members=("ann", "ben"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the coordinator is asked, which answers as if it were there."""
    found: list[Any] = []

    def ask(self: Invocation, make: Any) -> Any:
        found.append(message := make(1))
        return Quotas(1, (ANN, LAB), 86400.0) if isinstance(message, GetQuota) else Done(1, "ann has: --cores 16")

    monkeypatch.setattr(Invocation, "ask", ask)
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["quota", *words])


def test_limits_are_shown_with_what_is_used_and_left(asked: list[Any]) -> None:
    lines = [line.split() for line in run().output.splitlines()]
    assert ["ann", "cores", "8", "6", "2"] in lines
    assert ["ann", "core-hours", "a", "day", "4", "1.5", "2.5"] in lines
    assert ["ann", "highest", "priority", "high", "-", "-"] in lines
    assert ["ann", "memory", "unlimited", "1G", "-"] in lines and [
        "ann",
        "exclusive",
        "boosts",
        "no",
        "-",
        "-",
    ] in lines
    assert ["group", "lab", "gpus", "1", "2", "0"] in lines
    assert asked == [GetQuota(1)]


def test_a_word_that_is_no_command_is_a_user(asked: list[Any]) -> None:
    run("ann")
    run("show", "set")
    assert asked == [GetQuota(1, "ann"), GetQuota(1, "set")]


def test_programs_get_numbers_and_null_where_there_is_no_limit() -> None:
    told = quota._json(ANN)
    assert (told["limits"]["cores"], told["used"]["cores"], told["left"]["cores"]) == (8.0, 6.0, 2.0)
    assert (told["limits"]["memory"], told["used"]["memory"], told["left"]["memory"]) == (None, GIB, None)
    assert (told["highest_priority"], told["exclusive_boosts"], told["left"]["core_hours"]) == ("high", False, 2.5)


def test_what_an_operator_grants_is_sent(asked: list[Any]) -> None:
    assert run("set", "ann", "--cores", "16", "--no-reservations", "--highest-priority", "critical").exit_code == 0
    run("set", "--group", "lab", "--gpus", "unlimited")
    run("set", "--default", "--memory", "64")
    run("unset", "ann")
    given = Rights(cores=16_000, reservations=False, highest_priority=Priority.URGENT)
    assert asked == [
        SetRights(1, Whose.USER, "ann", given),
        SetRights(1, Whose.GROUP, "lab", Rights(gpus=-1)),
        SetRights(1, Whose.DEFAULT, "", Rights(memory=64 * GIB)),
        SetRights(1, Whose.USER, "ann", None),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("set", "ann"), ("set", "--cores", "1"), ("set", "ann", "--group", "lab", "--cores", "1"),
        ("set", "ann", "--cores", "many"), ("unset",),
    ],
)  # fmt: skip
def test_a_mistake_is_explained_and_nothing_is_sent(asked: list[Any], words: tuple[str, ...]) -> None:
    told = run(*words)
    assert told.exit_code == 2 and "error:" in told.output and not asked
