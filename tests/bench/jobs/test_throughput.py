"""What a run of throughput consists of."""

from pathlib import Path

import pytest

from bench._common import Grid
from bench.jobs import throughput
from bench.jobs.throughput import Setting


def test_every_number_of_agents_is_measured_behind_every_level() -> None:
    assert throughput.settings([1, 2], ["user", "none"]) == [
        Setting(1, "user"),
        Setting(2, "user"),
        Setting(1, "none"),
        Setting(2, "none"),
    ]


def test_old_jobs_are_swept_once_every_node_has_no_more_than_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "KEPT", 2)
    for node, jobs in (("n0", 2), ("n1", 3)):
        for number in range(jobs):
            (tmp_path / node / "allocs" / str(number)).mkdir(parents=True)
    running = Grid("", tmp_path, 0, [1, 2])
    assert not throughput.swept(running)
    (tmp_path / "n1" / "allocs" / "0").rmdir()
    assert throughput.swept(running)


def test_a_fresh_place_is_empty_but_for_what_it_was_tried_with() -> None:
    with throughput.fresh_places() as places:
        where, cost = throughput.fresh(places)
        assert where.parent == places and cost > 0
        assert len(list(where.iterdir())) == throughput.PROBES
    assert not places.exists()
