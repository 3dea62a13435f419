"""Whole grids in one process: nothing is lost, run twice or told wrongly, and the same seed is the same grid."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from distributed_grid.cli.grid.simulate import run_some
from distributed_grid.cli.main import main
from distributed_grid.simulator import KINDS, Shape, make, run, shrink, story
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run
from tests.depth import DEEP, tries

SEEDS = range(tries(40)) if DEEP else (0, 1, 4, 7, 11, 12, 18, 29, 32, 34, 38)
"""Here those of the first 45 that together meet all kinds of faults in the least time, and start many jobs."""


def test_many_grids_keep_their_promises() -> None:
    runs = [run(seed) for seed in SEEDS]
    assert [(one.seed, one.about, one.what) for one in runs if one.what] == []
    assert min(one.events for one in runs) >= 200
    met = {kind for one in runs for kind in one.faults}
    assert met == set(KINDS)
    assert sum(one.started for one in runs) > 5 * len(SEEDS)


SMALL = Shape(nodes=4, events=300)
DENSE = Shape(nodes=6, jobs=40, faults=25, seconds=120.0)
FULL = Shape(nodes=3, jobs=30, faults=15, seconds=60.0)
DEAR = [*((seed, Shape()) for seed in (1001946, 1003220, 1006400)), (1104391, SMALL), (2000691, DENSE)]
"""Some of the following take as long as all the others."""
FOUND = [
    *((seed, Shape()) for seed in (1000060, 1000896)),
    *((seed, SMALL) for seed in (1201381, 1202148)),
    (2001193, FULL),
    *DEAR[: len(DEAR) * DEEP],
]
"""Grids by which a defect was found, of the ledger or of a judge."""
LATER = ("holds", "labels", "predictions", "requeue")
"""What was not drawn yet when these were found."""
FOUND_SINCE = [
    (11001155, Shape(nodes=3, jobs=60, faults=20, seconds=120.0)),
    *((seed, Shape()) for seed in (1502639, 6002649, 7002953, 41000620)),
    *((seed, SMALL) for seed in (6021132, 6041991, 6066406, 6086477, 6086958, 6090044, 6090706)),
    *((seed, SMALL) for seed in (6054753, 6056957) if DEEP),
]
"""Those that were found with all that."""


@pytest.mark.parametrize(
    ("seed", "shape", "without"), [*((*one, LATER) for one in FOUND), *((*one, ()) for one in FOUND_SINCE)]
)
def test_a_grid_by_which_a_defect_was_found_keeps_its_promises(
    seed: int, shape: Shape, without: tuple[str, ...]
) -> None:
    found = run(seed, shape, without)
    assert (found.about, found.what) == ("", "")


def test_the_same_seed_is_the_same_grid_whatever_the_hash_seed() -> None:
    same = 4 if DEEP else 1
    program = f"from distributed_grid.simulator import run\nfor seed in range(11, {11 + same}): print(run(seed).trace)"
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # another one than ours
    traces = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout.split()
    assert len(set(traces)) == same
    assert [run(seed).trace for seed in range(11, 11 + same)] == traces


def test_a_seed_whose_run_fails_is_a_finding_like_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(self: Judge, ran: Run, code: int, signal: int = 0) -> None:
        raise KeyError(ran.allocation)

    monkeypatch.setattr(Judge, "over", over)
    runs = run_some(range(2), 3, 30, ())
    assert [(one.seed, one.about) for one in runs] == [(0, "the run"), (1, "the run")]
    assert all(re.fullmatch(r"KeyError 'j\d+x\d+\.\d+' \(test_run\.py, line \d+\)", one.what) for one in runs)


def test_what_is_violated_is_cut_down_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Judge.over
    monkeypatch.setattr(Judge, "over", lambda self, ran, code, signal=0: over(self, ran, 77, signal))
    shape = Shape(nodes=6, jobs=6, faults=4)
    seed = next(seed for seed in range(20) if run(seed, shape).what)
    out = shrink(seed, shape)
    left = make(seed, shape, out)
    assert (len(left.jobs), left.faults) == (1, ())
    lines = story(seed, shape, out)
    nodes = {word for line in lines for word in re.findall(r"\bn\d+\b", line)}
    assert len(nodes) == 1, "what has nothing to do with it is not told"
    assert "told to have exited with" in lines[-1] and any("is submitted as" in line for line in lines)


def test_the_command_counts_faults_and_says_how_fast_it_is() -> None:
    result = CliRunner().invoke(main, ["simulate", "--seed", "11", "--seeds", "2", "--jobs", "2", "-o", "json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.output[result.output.index("{") :])
    assert (said["seeds"], said["violations"]) == (2, [])
    assert said["seeds_per_second"] > 0 and said["fewest_events"] >= 200
    assert sum(said["faults"].values()) > 10


def test_a_violation_is_told_with_the_command_that_shows_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Judge.over
    monkeypatch.setattr(Judge, "over", lambda self, ran, code, signal=0: over(self, ran, 77, signal))
    seed = next(seed for seed in range(20) if run(seed, Shape(nodes=4)).what)
    result = CliRunner().invoke(main, ["simulate", "--seed", str(seed), "--nodes", "4"])
    assert result.exit_code == 1
    assert f"again: grid simulate --seed {seed} --nodes 4 " in result.output and "violations: 1" in result.output


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--seed", "x"], "not a valid integer"),
        (["--seeds", "0"], "not in the range"),
        (["--without", "lightning"], "there is no 'lightning' to leave out"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(asked: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *asked])
    assert result.exit_code == 2 and said in result.output
