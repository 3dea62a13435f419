"""Arrays and dependencies, by the command line on a real grid."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.grid_fixture import Grid, running_grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def submitted(grid: Grid, *words: str) -> str:
    done = grid.run("run-shared", "-d", "--no-ship", "--cpus", "0.1", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_array_runs_once_for_each_index(grid: Grid) -> None:
    say = "echo $GRID_ARRAY_INDEX of $GRID_ARRAY_COUNT in $GRID_ARRAY_ID"
    array = submitted(grid, "--name", "sweep", "--array", "3-9:3%2", "sh", "-c", say)
    assert grid.run("job", "wait", array).returncode == 0
    assert grid.run("logs", f"{array}_6").stdout == f"6 of 3 in {array}\n"
    assert grid.run("logs", "sweep_9").stdout == f"9 of 3 in {array}\n"
    (row,) = [row for row in grid.json("jobs", "-a")["arrays"] if row["id"] == array]
    assert (row["count"], row["states"], row["failed"], row["indexes"]) == (3, {"ended": 3}, 0, "3-9:3")
    members = {row["id"]: row["index"] for row in grid.json("jobs", "-a", "--members")["jobs"] if row["array"] == array}
    assert members == {f"{array}_3": 3, f"{array}_6": 6, f"{array}_9": 9}


def test_an_array_is_one_line_and_ends_as_one(grid: Grid) -> None:
    array = submitted(grid, "--array", "0-499%2", "sleep", "600")
    until(lambda: grid.json("job", "show", array)["arrays"][0]["states"].get("running") == 2, "two of them run")
    assert grid.run("jobs").stdout.count(array) == 1
    shown = grid.json("job", "show", array)["arrays"][0]
    assert (shown["reason"], shown["states"]["waiting"]) == ("ArrayLimit", 498)
    assert grid.run("cancel", array[:9]).returncode == 0
    assert grid.run("job", "wait", f"{array}_0", f"{array}_499").returncode == 143
    assert grid.run("job", "wait", array).returncode == 143  # another one ran beside the first
    (ended,) = grid.json("job", "show", array)["arrays"]
    assert (ended["states"], ended["cancelled"]) == ({"ended": 500}, 500)


def test_a_list_is_cut_where_it_is_asked_to_be_whether_of_jobs_or_arrays(grid: Grid) -> None:
    older = submitted(grid, "--array", "0-1", "true")
    assert grid.run("job", "wait", older).returncode == 0
    newer = submitted(grid, "true")
    assert grid.run("job", "wait", newer).returncode == 0
    done = grid.run("-o", "quiet", "jobs", "--all", "--limit", "1")
    assert done.stdout == f"{newer}\n"
    assert grid.run("-o", "quiet", "jobs", "--all", "--limit", "2").stdout == f"{newer}\n{older}\n"
    cut = grid.json("jobs", "--all", "--limit", "1")
    assert ([row["id"] for row in cut["jobs"]], cut["arrays"], cut["more"]) == ([newer], [], True)


def test_an_array_gives_up_when_too_many_have_failed(grid: Grid) -> None:
    array = submitted(grid, "--array", "0-99%1", "--max-fails", "1", "false")
    until(lambda: grid.json("job", "show", array)["arrays"][0]["ended"], "it is over")
    (ended,) = grid.json("job", "show", array)["arrays"]
    assert (ended["failed"], ended["cancelled"], ended["exit_code"]) == (2, 98, 1)
    outcome = grid.json("job", "show", f"{array}_99")["jobs"][0]["outcome"]
    assert outcome["text"] == "2 of its array have failed, and --max-fails is 1"


def test_what_is_no_array_is_told(grid: Grid) -> None:
    done = grid.run("run-shared", "-d", "--no-ship", "--array", "9-1", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'9-1' ends before it begins" in done.stderr


def test_some_of_an_array_or_all_of_a_user_are_ended_at_once(grid: Grid) -> None:
    array = submitted(grid, "--array", "0-9%2", "sleep", "600")
    assert grid.run("cancel", f"{array}_3-5,8").returncode == 0
    assert grid.json("job", "show", array)["arrays"][0]["cancelled"] == 4
    done = grid.run("cancel", f"{array}_8-10")
    assert done.returncode == 1 and f"no job '{array}_10'" in done.stderr
    assert grid.run("cancel", "--mine", "--state", "waiting").returncode == 0
    assert grid.json("job", "show", array)["arrays"][0]["states"].get("waiting") is None
    assert grid.run("cancel", "--mine").returncode == 0
    until(lambda: grid.json("jobs")["arrays"] == [], "all is over")
    assert grid.run("cancel", "--mine").stderr.strip().endswith("there are none such")


def test_a_cancel_has_to_say_of_what(grid: Grid) -> None:
    for words in ((), ("--mine", "last"), ("--mine", "--all"), ("--state", "waiting")):
        done = grid.run("cancel", *words)
        assert done.returncode == 2 and "which jobs are to be ended?" in done.stderr


# --- dependencies -----------------------------------------------------------------------------------------------------


def shown(grid: Grid, job: str) -> dict[str, Any]:
    (found,) = grid.json("job", "show", job)["jobs"]
    return dict(found)


def test_a_job_waits_for_others_and_says_so(grid: Grid) -> None:
    first = submitted(grid, "--name", "prepare", "sh", "-c", "until [ -e go ]; do sleep 0.02; done")
    behind = submitted(grid, "--after-ok", "prepare", "echo", "behind")
    after_all = submitted(grid, "--after-any", behind, "--after", first, "true")
    assert shown(grid, behind)["reason_text"] == f"waits for {first} (prepare) to exit with 0"
    only_one = [{"on": behind, "kind": "after-any"}]
    until(lambda: shown(grid, after_all)["waits_for"] == only_one, "the first has started, and that is not waited for")
    assert f"waits for {first}" in grid.run("why", behind).stdout
    grid.run("cancel", first)
    done = grid.run("job", "wait", behind, after_all)
    assert done.returncode == 125
    assert f"{behind} was not run: {first} (prepare) was cancelled" in done.stderr
    assert shown(grid, behind)["outcome"]["cause"] == "dependency-failed"
    assert shown(grid, after_all)["exit_code"] == 0


def test_an_array_that_has_ended_can_be_waited_for(grid: Grid) -> None:
    array = submitted(grid, "--array", "1-3", "true")
    assert grid.run("job", "wait", array).returncode == 0
    done = grid.run("run-shared", "--no-ship", "--cpus", "0.1", "--after-ok", array, "echo", "after")
    assert done.stdout == "after\n"


def test_what_is_missing_is_told_at_once(grid: Grid) -> None:
    submitted(grid, "--name", "training", "true")
    done = grid.run("run-shared", "-d", "--no-ship", "--after-ok", "trainin", "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert "no job 'trainin'" in done.stderr and "did you mean training" in done.stderr


def test_jobs_of_a_file_wait_for_each_other_by_name(grid: Grid) -> None:
    text = """
    defaults: {cpus: 0.1, no_ship: true}
    jobs:
    - {name: first, command: "true"}
    - {name: many, command: "true", array: 0-3, after_ok: first}
    - {name: final, command: echo all, after_ok: [many, first]}
    """
    (grid.here / "jobs.yaml").write_text(text)
    rows = grid.json("submit", "-f", "jobs.yaml")["jobs"]
    assert grid.run("job", "wait", rows[2]["id"]).returncode == 0
    assert grid.run("logs", "final").stdout == "all\n"
    (array,) = grid.json("job", "show", rows[1]["id"])["arrays"]
    assert array["states"] == {"ended": 4}


def test_a_job_begins_later(grid: Grid) -> None:
    far = submitted(grid, "--begin", "+1h", "true")
    assert shown(grid, far)["reason"] == "Begin"
    grid.run("cancel", far)
    job = submitted(grid, "--begin", "+1.5s", "true")
    assert grid.run("job", "wait", job).returncode == 0
    view = shown(grid, job)
    assert view["started"] >= view["begin"]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_with_progress_counts_an_array_as_a_whole(grid: Grid) -> None:
    run = ("run-shared", "-d", "--no-ship", "--cpus", "0.2", "--array", "0-29")
    array = grid.run(*run, "sh", "-c", "exit $((GRID_ARRAY_INDEX == 7))").stdout.strip()
    done = grid.run("job", "wait", "--progress", array)
    assert done.returncode == 1
    assert "grid: 30 of 30 done (1 failed)" in done.stderr
    assert f"{array}: 30 ended (1 failed)" in done.stderr


def test_more_members_than_may_be_named_in_one_request_are_waited_for(grid: Grid) -> None:
    run = ("run-shared", "-d", "--no-ship", "--cpus", "0.1", "--array", "0-1999%1")
    array = grid.run(*run, "sleep", "600").stdout.strip()
    assert grid.run("job", "wait", "--timeout", "0.3", array).returncode == 124
    assert grid.run("cancel", array).returncode == 0
    assert grid.run("job", "wait", array).returncode == 1
