"""CPU and counters of processes, by what they are."""

import os
from pathlib import Path

import pytest

from bench import _processes
from bench._common import TICKS, Grid

STAT = "7 (a (strange) name) S 1 7 7 0 -1 4194560 10 20 0 0 {} {} {} {} 20 0 1 0 100 0 0"


def test_what_a_process_used_and_what_its_children_did_are_told_apart() -> None:
    assert _processes.times(STAT.format(TICKS, 2 * TICKS, 4 * TICKS, 0)) == (3.0, 4.0)


def test_all_that_lives_below_a_process_is_found() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 4}
    assert sorted(_processes.below(2, parents)) == [3, 4, 6]
    assert _processes.below(6, parents) == []


def test_a_unit_of_work_costs_what_was_used_between() -> None:
    before, after = {"agent": 1.0, "jobs": 0.5}, {"agent": 3.0, "jobs": 1.5}
    assert _processes.cpu_per(before, after, 1000) == {"all": 3.0, "agent": 2.0, "jobs": 1.0}


def test_a_grid_of_which_nothing_lives_has_used_nothing() -> None:
    gone = 2**22 + 1  # no process has such a number
    used = _processes.cpu(Grid("", Path(), gone, [gone], [gone]))
    assert {kind: value for kind, value in used.items() if kind != "client"} == dict.fromkeys(
        _processes.KINDS[:-1], 0.0
    )
    assert used["client"] > 0


def test_the_counters_of_this_process_grow(tmp_path: Path) -> None:
    before = _processes.counters(os.getpid())
    if "writes" not in before:
        pytest.skip("this kernel does not count reads and writes")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    after = _processes.counters(os.getpid())
    assert after["written_kib"] - before["written_kib"] >= 1024 and after["writes"] > before["writes"]
