"""Runs: the same trace and seed give the same figures; arrivals fill a cluster."""

import itertools

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.simulator.lab import run as runs
from distributed_grid.simulator.lab.run import Setup, arrivals, by_chance, parse_policies, result, whole_words
from distributed_grid.simulator.lab.trace import Machine
from tests.simulator.lab.scene import job

MACHINES = [Machine("a", 4, gpus=2), Machine("b", 4, gpus=2)]
JOBS = [job(at, 20 + at % 7, 1 + at % 3, gpu=(0, 500, 1000)[at % 3], user=str(at % 2)) for at in range(40)]
SETUP = Setup(machines=MACHINES, jobs=JOBS)


def clock() -> float:
    return next(TICKS)


TICKS = map(float, itertools.count())


@pytest.mark.parametrize("policy", [*runs.POLICIES, "grid:pack", "grid:share", "grid:fit"])
def test_the_same_seed_gives_the_same_figures(policy: str) -> None:
    first, second = (runs.run(SETUP, policy, 7, clock) for _ in range(2))
    assert (first.figures, first.points) == (second.figures, second.points)
    assert first.figures.jobs == first.decisions == len(JOBS) and first.seconds == 1.0


def test_another_seed_gives_random_another_schedule() -> None:
    assert runs.run(SETUP, "random", 1, clock).points != runs.run(SETUP, "random", 2, clock).points
    assert by_chance("random", SETUP) and not by_chance("easy", SETUP)


def test_arrivals_are_drawn_until_they_ask_for_the_part() -> None:
    found = arrivals(JOBS, MACHINES, 2.0, seed=3)
    asked = [one.resources.gpu for one in found]
    assert sum(asked) >= 8000 > sum(asked[:-1]) and found == arrivals(JOBS, MACHINES, 2.0, seed=3)
    assert [one.submit for one in found] == [float(at) for at in range(len(found))]
    assert sorted(one.resources.gpu for one in arrivals(JOBS, [Machine("a", 20)], 3.9, 1)[: len(JOBS)]) == sorted(
        one.resources.gpu for one in JOBS
    ), "first each of them once"


def test_a_cluster_that_no_job_asks_for_cannot_be_filled() -> None:
    with pytest.raises(BadValue, match="cannot be filled"):
        arrivals([job(0, 1, 1)], MACHINES, 1.0, seed=1)


@pytest.mark.parametrize("policy", ["grid", "easy", "best-effort", "random"])
def test_filling_allocates_at_most_all_and_says_what_is_fragmented(policy: str) -> None:
    machines = [Machine("a", 16, gpus=4), Machine("b", 16, gpus=4)]
    found = runs.run(Setup(machines=machines, jobs=JOBS, fill=1.3), policy, 1, clock).figures
    assert 0.5 < found.gpus_allocated <= 1 and 0 <= found.gpus_fragmented <= 1 - found.gpus_allocated + 1e-9


def test_seeds_are_summed_up() -> None:
    found = result([runs.run(SETUP, "random", seed, clock) for seed in (1, 2)])
    assert (found.seeds, found.decisions_a_second, found.mean["jobs"]) == (2, 40.0, 40.0)
    assert found.interval["makespan"] != 0.0


def test_policies_are_named_with_commas_and_unknown_ones_refused() -> None:
    assert parse_policies("easy, grid:pack,easy") == ["easy", "grid:pack"]
    assert parse_policies("grid:predictive,grid:share") == ["grid:predictive", "grid:share"]
    for text in ("eazy", "grid:sideways", ","):
        with pytest.raises(BadValue):
            parse_policies(text)


def test_a_cluster_in_words() -> None:
    assert (
        whole_words(MACHINES) == "2 machines, 8 cores, 4 GPUs" and whole_words([Machine("a", 1)]) == "1 machine, 1 core"
    )
