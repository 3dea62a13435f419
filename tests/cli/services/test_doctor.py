"""Findings for people, and how far two clocks may be apart; tests/e2e/service/test_doctor.py has real services."""

from distributed_grid import __version__
from distributed_grid.cli.services.doctor import APART, FAR_APART, _clock_finding, _software, text_of
from distributed_grid.protocol.messages import Status
from distributed_grid.runtime.health import Finding, Level


def test_only_bad_findings_have_reason_and_remedy_and_are_counted() -> None:
    fine = Finding("disk", Level.OK, "all free", "no reason", "no remedy")
    assert text_of([fine]) == "ok       disk  all free\nall is well\n"
    bad = Finding("clock", Level.WARNING, "off", "it drifts", "ntp")
    lines = text_of([fine, bad, bad._replace(level=Level.ERROR, why="")]).splitlines()
    assert lines[1:4] == ["warning  clock  off", "                why: it drifts", "                try: ntp"]
    assert lines[-1] == "1 error, 1 warning"


def test_clocks_are_judged_beyond_doubt() -> None:
    assert _clock_finding(APART + 0.5, 1.0).level is Level.OK
    assert _clock_finding(-APART - 1.5, 1.0).level is Level.WARNING and "behind" in _clock_finding(-9.0, 0.0).what
    assert _clock_finding(FAR_APART + 1, 0.0).level is Level.ERROR


def test_another_release_at_the_coordinator_is_a_warning() -> None:
    told = Status(id=1, grid="g", software=__version__, epoch=1, up_for=1.0, nodes=(), counts={}, ended={}, at=1.0)
    assert _software(told).level is Level.OK
    other = Status(id=1, grid="g", software="9.9", epoch=1, up_for=1.0, nodes=(), counts={}, ended={}, at=1.0)
    assert _software(other).level is Level.WARNING and "9.9" in _software(other).remedy
