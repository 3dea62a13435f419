"""`grid jobs`, `job show`, `why` and `cancel` in this process."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.cli.context import client
from distributed_grid.cli.jobs.jobs import _head, _precedence
from distributed_grid.cli.main import main
from distributed_grid.protocol.jobs import Cause, LimitBy, Outcome, Precedence, Reason, State
from distributed_grid.protocol.messages import Why
from distributed_grid.protocol.resources import GIB
from tests.cli.attach.test_attached import grid_aside
from tests.coordinator.client.test_aio import ends_with
from tests.coordinator.client.test_output import view
from tests.coordinator.ends import runs_on


def test_a_job_is_listed_shown_explained_and_ended(tmp_path: Path, capfd: Any) -> None:
    def said(*words: str) -> str:
        capfd.readouterr()
        main.main(["--coordinator", url, *words], standalone_mode=False)
        return str(capfd.readouterr().out)

    with grid_aside(tmp_path, runs=runs_on) as url:
        with client(url) as grid:
            job = grid.submit("sleep 60", name="train")
            waits = grid.submit("sleep 60", cpus=4)
        assert [row["name"] for row in json.loads(said("-o", "json", "jobs"))["jobs"]] == ["", "train"]
        assert said("-o", "quiet", "jobs").split() == [waits, job]
        assert "sleep 60" in said("job", "show", "train")
        assert said("-o", "quiet", "job", "show", "train", waits).splitlines() == [job, waits]
        assert said("-o", "quiet", "jobs", "--state", "failed") == ""
        assert "asks 1 cpu" in said("why", job)
        assert json.loads(said("-o", "json", "why", waits))["job"]["id"] == waits
        said("cancel", job, waits)
        assert "cancelled" in said("jobs", "--all")


def test_the_wasteful_jobs_of_mine_are_mine_alone(tmp_path: Path, capfd: Any) -> None:
    outcome = Outcome(Cause.EXITED, seconds=3600.0, cpu_seconds=3600.0, peak_memory=GIB)
    with grid_aside(tmp_path, runs=ends_with(outcome)) as url:
        with client(url, user="eve") as other:
            other.wait(other.submit("make", memory="4G"))
        with client(url) as grid:
            grid.wait(mine := grid.submit("make", memory="4G"))
        main.main(["--coordinator", url, "-o", "quiet", "jobs", "--wasteful", "--mine"], standalone_mode=False)
        assert capfd.readouterr().out.split() == [mine]


def test_a_list_that_is_cut_says_so_also_if_only_arrays_are_left_out(tmp_path: Path, capfd: Any) -> None:
    def listed(limit: int) -> dict[str, Any]:
        capfd.readouterr()
        words = ["-o", "json", "jobs", "-a", "--limit", str(limit)]
        main.main(["--coordinator", url, *words], standalone_mode=False)
        return dict(json.loads(capfd.readouterr().out))

    with grid_aside(tmp_path) as url:
        with client(url) as grid:
            for _ in range(3):
                grid.submit("true", array="0-1")
        assert (len(listed(2)["arrays"]), listed(2)["more"]) == (2, True)
        assert (len(listed(3)["arrays"]), listed(3)["more"]) == (3, False)


@pytest.mark.parametrize("words", [["jobs", "-a"], ["job", "show", "one", "many"], ["job", "wait", "one", "many"]])
def test_jobs_and_arrays_are_lines_of_jsonl_told_apart_by_their_kind(
    words: list[str], tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.cli.attach.waiting.MEMBERS_TOLD", 1)
    with grid_aside(tmp_path) as url:
        with client(url) as grid:
            both = grid.submit("true", name="one"), grid.submit("true", name="many", array="0-1")
        capfd.readouterr()
        with contextlib.suppress(SystemExit):
            main.main(["--coordinator", url, "-o", "jsonl", *words], standalone_mode=False)
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert [(row["kind"], row["id"]) for row in rows] == [*zip(("job", "array"), both, strict=True)]


def test_jobs_of_mine_and_of_a_user_are_not_listed_at_once(capfd: Any) -> None:
    assert main.main(["jobs", "--mine", "--user", "eve"], standalone_mode=False) == 2
    assert "--mine and --user name two users" in capfd.readouterr().err


def test_which_jobs_are_to_be_ended_has_to_be_said(capfd: Any) -> None:
    assert main.main(["cancel"], standalone_mode=False) == 2
    assert "which jobs are to be ended?" in capfd.readouterr().err


def test_why_says_how_long_ago_a_job_was_submitted_also_if_it_has_ended() -> None:
    submitted = time.time() - 7200.0
    ended = view(state=State.ENDED, submitted=submitted, ended=submitted + 100.0, outcome=Outcome(Cause.EXITED))
    assert "submitted 2h00m ago" in _head(Why(id=1, reason=Reason("Ended"), job=ended), None)[0]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (
            Precedence(waited=7500.0, limit=2400.0, by=LimitBy.LIMIT, value=12.345, overdue_in=16_500.0),
            "waited 2h05m, 3.12 times 40m00s (its time limit and grace); precedence 12.3; overdue in 4h35m",
        ),
        (
            Precedence(waited=90.0, limit=60.0, by=LimitBy.USER, value=0.5),
            "waited 1m30s, 1.50 times 1m00s (the median run time of its user's last jobs, as it has no time limit); "
            "precedence 0.5; overdue: it comes first",
        ),
    ],
)
def test_why_says_how_a_job_stands_in_the_order(one: Precedence, text: str) -> None:
    assert _precedence(one) == text
