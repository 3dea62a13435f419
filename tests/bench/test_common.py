"""Medians of what several runs have measured, and how they are printed."""

import json

import pytest

from bench import _common


def test_medians_are_taken_also_of_what_is_nested() -> None:
    rows = [{"rate": rate, "walls": "user", "cpu": {"agent": rate / 2}} for rate in (3.0, 1.0, 2.0)]
    assert _common.medians(rows) == {"rate": 2.0, "walls": "user", "cpu": {"agent": 1.0}}


def test_a_yes_or_no_is_no_figure() -> None:
    assert _common.medians([{"tls": True}, {"tls": True}]) == {"tls": True}


def test_a_report_is_one_line_with_figures_of_four_digits(capsys: pytest.CaptureFixture[str]) -> None:
    _common.report("x", {"rows": [{"ms": 1.23456}], "cpu": {"agent": 0.000123456}, "jobs": 100_000})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"bench": "x", "rows": [{"ms": 1.235}], "cpu": {"agent": 0.0001235}, "jobs": 100_000}


def test_the_floor_is_that_of_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    floors = iter((2000.0, 3000.0))
    monkeypatch.setattr(_common, "floor", lambda: next(floors))
    found = _common.beside_floor(lambda: {"jobs_per_s": 500.0})
    assert found == {"jobs_per_s": 500.0, "floor_jobs_per_s": 2500.0, "fraction_of_floor": 0.2}


def test_percentiles_lie_between_two_values() -> None:
    assert _common.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert _common.percentile([1.0, 2.0], 0.25) == 1.25
