"""The table of the policy lab: rows in Markdown of what `grid simulate --trace` says."""

from typing import Any

from bench.policies.lab import CASES, columns, heading, row

FIGURES: dict[str, Any] = {
    "policy": "random", "use": 0.5, "wait": {"mean": 1234.4, "p95": 2.0, "max": 3.0}, "wait_by_area": 4.0,
    "by_size": {}, "slowdown": 5.25, "fairness": 1.0, "gpus_allocated": 0.9, "gpus_fragmented": 0.1, "owners_use": 0.2,
    "unfinished": 7, "moves": 8, "wasted": 3600.0, "frozen": 7200.0, "owners_pain": 360.0, "decisions_a_second": 10.6,
}  # fmt: skip


def told(fill: float | None = None, owners: int | None = None) -> dict[str, Any]:
    return {"fill": fill, "owners": owners}


def test_a_row_has_what_its_heading_says() -> None:
    assert row("Mira", {**FIGURES, "interval": None}, columns(told())) == (
        "| Mira | `random` | 50.0 | 1,234 | 2 | 3 | 4 | - | 5.2 | 1.00 | 11 |"
    )
    for one in (told(), told(fill=1.3), told(owners=3)):
        first, second = heading(one).splitlines()
        cells = row("x", {**FIGURES, "interval": None}, columns(one))
        assert first.count("|") == second.count("|") == cells.count("|")


def test_owners_have_hours_and_arrivals_have_gpus() -> None:
    owned, filled = ({**FIGURES, "interval": None} for _ in range(2))
    assert row("Helios", owned, columns(told(owners=3))).endswith("| 7 | 8 | 1.0 | 2.0 | 0.1 | 11 |")
    assert row("openb", filled, columns(told(fill=1.3))) == "| openb | `random` | 90.0 | 10.0 | 50.0 | 11 |"


def test_several_seeds_have_intervals() -> None:
    width = {"use": 0.01, "wait": {"mean": 5.0, "p95": 0.0, "max": 0.0}, "slowdown": 0.5}
    cells = row("Mira", {**FIGURES, "interval": width}, columns(told()))
    assert cells.startswith("| Mira | `random` | 50.0 ± 1.0 | 1,234 ± 5 | 2 ± 0 |") and "| 11 |" in cells


def test_each_trace_is_shown_without_the_part_that_parameters_are_chosen_on() -> None:
    assert all("--skip" in one.options or "--fill" in one.options for one in CASES)
