"""`grid ledger`: what it prints of an answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.main import main
from distributed_grid.protocol.messages import DayOfLoans, GetLoans, Loans, UserBalance, UserLoans

NOTHING = Loans(1, (), (), (), 0.1, 86_400.0)
LENT = Loans(
    1,
    users=(UserBalance("ann", 0.05, 0.01, 0.04), UserBalance("ben", 0.01, 0.05, -0.04)),
    pairs=(UserLoans("ann", "ben", 0.25, 0.05, 2), UserLoans("ben", "ann", 0.0, 0.01, 0)),
    days=(DayOfLoans(20_000, "ann", "ben", "n1", 900.0, 7200.0, 14_400.0, 0.0),),
    credit=0.1,
    half_life=86_400.0,
    owned=1,
)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command against this answer."""

    def run(answer: Loans, *words: str, asked: list[Any] | None = None) -> Result:

        def ask(self: Invocation, make: Callable[[int], Any]) -> Any:
            (asked if asked is not None else []).append(make(1))
            return answer

        monkeypatch.setattr(Invocation, "ask", ask)
        return CliRunner().invoke(main, words)

    return run


def test_who_is_owed_comes_with_pairs_and_days(grid: Callable[..., Result]) -> None:
    lines = grid(LENT, "ledger").output.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["ann", "5.00%", "1.00%", "+0.040", "is", "owed", "4.00%"],
        ["ben", "1.00%", "5.00%", "-0.040", "owes", "4.00%"],
    ]
    assert lines[5].split() == ["ann", "ben", "25.00%", "2", "5.00%", "4.00%"]
    assert lines[6].split() == ["ben", "ann", "-", "0", "1.00%", "-"]
    assert lines[9].split() == ["2024-10-04", "ann", "ben", "n1", "2.00", "4.00", "-"]
    assert lines[-1] == "the past counts half after 1d00h, a credit 0.1 of a share at most"


def test_json_has_all_numbers_and_quiet_has_credits(grid: Callable[..., Result]) -> None:
    found = json.loads(grid(LENT, "-o", "json", "ledger").output)
    assert found["users"][0] == {
        "user": "ann", "lent": 0.05, "borrowed": 0.01, "balance": pytest.approx(0.04), "credit": 0.04,
    }  # fmt: skip
    assert found["pairs"][0]["owed"] == pytest.approx(0.04)
    assert (found["days"][0]["day"], found["days"][0]["core_seconds"]) == ("2024-10-04", 7200.0)
    assert grid(LENT, "-o", "quiet", "ledger").output == "ann +0.040\nben -0.040\n"


def test_what_is_asked_for_is_what_was_said(grid: Callable[..., Result]) -> None:
    asked: list[Any] = []
    grid(LENT, "ledger", "--user", "ann", "--node", "n1", "--days", "30", asked=asked)
    assert asked == [GetLoans(1, "ann", "n1", 30)]
    assert grid(LENT, "ledger", "--days", "91").exit_code == 2


def test_without_owners_and_without_loans_it_says_so(grid: Callable[..., Result]) -> None:
    assert "no node has an owner" in grid(NOTHING, "ledger").output
    assert grid(replace(NOTHING, owned=3), "ledger").output == "nothing was lent: 3 nodes with an owner\n"


def test_it_says_where_days_may_be_missing_and_how_many_lines_are_left_out(grid: Callable[..., Result]) -> None:
    done = grid(replace(LENT, trouble="disk full", left_out=5), "ledger")
    assert "history is not written now, so days may be missing: disk full" in done.output
    assert "and 5 lines more: fewer --days, --user or --node\n" in done.output
