"""`grid submit -f`: all jobs of a file or none."""

from collections.abc import Iterator

import pytest

from tests.grid_fixture import Grid, running_grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def test_every_job_of_a_file_is_submitted_and_runs(grid: Grid) -> None:
    (grid.here / "given.txt").write_text("shipped")
    (grid.here / "jobs.yaml").write_text(
        """
        defaults: {cpus: 0.1}
        jobs:
        - {name: one, command: cat given.txt}
        - {name: other, command: [sh, -c, "echo $WHO; exit 3"], env: {WHO: me}, no_ship: true}
        """
    )
    rows = grid.json("submit", "-f", "jobs.yaml")["jobs"]
    assert [row["name"] for row in rows] == ["one", "other"]
    assert grid.run("job", "wait", *(row["id"] for row in rows)).returncode == 3
    assert [grid.run("logs", row["id"]).stdout for row in rows] == ["shipped", "me\n"]


def test_one_job_that_can_never_run_takes_all_with_it(grid: Grid) -> None:
    before = grid.json("jobs", "-a")["jobs"]
    text = '{"command": "true", "no_ship": true}\n{"command": "true", "no_ship": true, "gpus": 99}\n'
    done = grid.run("submit", "-f", "-", input=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: job 2 of 2: asks 99 gpu on one node" in done.stderr
    assert grid.json("jobs", "-a")["jobs"] == before
    named = '{"command": "true", "name": "one"}\n{"command": "true", "name": "\\u0007"}\n'
    done = grid.run("submit", "-f", "-", input=named)
    assert done.returncode == 1 and "error: job 2 of 2 (\\x07): the name" in done.stderr
    assert grid.json("jobs", "-a")["jobs"] == before


def test_a_mistake_in_the_file_is_told_with_its_line(grid: Grid) -> None:
    done = grid.run("submit", "-f", "-", input="jobs:\n- command: a\n  gpu: 1\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[:2] == [
        "error: standard input:3: unknown key 'gpu' in a job",
        "  try: did you mean 'gpus'?",
    ]
