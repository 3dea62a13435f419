"""What `grid replay` prints, and its exit codes."""

import json
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner, Result

from distributed_grid.cli.main import main
from tests.coordinator.eventlog.stories import SILENT, rewrite, written


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path, SILENT)


def grid(*words: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, words)])


def test_all_the_same_is_one_line(log: Path) -> None:
    for place in (log, log.parent):
        done = grid(place)
        assert (done.exit_code, done.stdout.count("\n"), done.stderr) == (0, 1, "")
        assert done.stdout.startswith("99 events, ") and done.stdout.endswith(": all the same\n")
    assert grid(log, "-o", "quiet").stdout == "same\n"


def test_a_difference_is_told_with_then_and_now_and_exits_with_1(log: Path) -> None:
    rewrite(log, lambda said: [one for one in said if one[0] != "start"])
    done = grid(log)
    assert done.exit_code == 1
    assert [line.strip() for line in done.stdout.splitlines()[1:-1]] == [
        "event: ann submitted j1",
        "then:  nothing more",
        "now:   start j1.1 on lab1 with cores 0",
    ]
    assert done.stdout.endswith("not the same\n")
    told = json.loads(grid(log, "-o", "json").stdout)
    assert not told["same"] and told["difference"]["now"] == ["start j1.1 on lab1 with cores 0"]
    assert grid(log, "-o", "quiet").stdout == "different\n"


def test_another_policy_is_told_line_by_line_and_counted(log: Path) -> None:
    done = grid(log, "--set", "lost_after=30")
    assert done.exit_code == 0
    first, summary = done.stdout.splitlines()
    assert first.endswith("lab1 would have been taken for lost 30s earlier, ending j1, j2")
    assert summary.endswith("; with lost_after=30 2 otherwise: 2 earlier")
    told = json.loads(grid(log, "--set", "lost_after=30", "-o", "json").stdout)
    assert told["otherwise"] == {"earlier": 2} and [one["after"] for one in told["differences"]] == [30.0, 30.0]
    rows = grid(log, "--set", "lost_after=30", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(row)["job"] for row in rows] == ["j1", "j2"]
    assert grid(log, "--set", "lost_after=60").stdout.endswith("; with lost_after=60 all the same\n")


def test_only_so_many_lines_are_printed_and_the_rest_is_counted(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.cli.grid.history.LINES", 1)
    done = grid(log, "--set", "disconnected_after=7", "--set", "lost_after=30")
    assert "and 1 more such lines; -o json has them" in done.stdout


def test_a_job_is_followed_and_one_that_is_not_there_is_said(log: Path) -> None:
    assert "start j1.1 on lab1 with cores 0" in grid(log, "--job", "j1").stdout
    assert "there is nothing about j9" in grid(log, "--job", "j9").stdout


def test_what_is_missing_at_the_end_is_said_on_stderr(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-3])
    done = grid(log)
    assert done.exit_code == 0 and "are no whole record" in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--set", "tactic=pack"], "there is no setting 'tactic' to replay with", 2),
        (["--set", "strategy=pak"], "unknown strategy 'pak'", 2),
        (["--set", "lost_after"], "'lost_after' sets nothing", 2),
        (["--until", "noon"], "'noon' is no moment", 2),
        (["--until", "nan"], "'nan' is no moment", 2),
    ],
)
def test_what_cannot_be_asked_is_refused(log: Path, words: list[str], said: str, code: int) -> None:
    done = grid(log, *words)
    assert (done.exit_code, done.stdout) == (code, "") and said in done.stderr


def test_a_damaged_log_is_told_without_a_traceback(log: Path) -> None:
    values = list(msgpack.Unpacker(log.open("rb"), strict_map_key=False))
    values[3][7][1] = "no events"
    log.write_bytes(b"".join(msgpack.packb(value) for value in values))
    done = grid(log)
    assert done.exit_code == 1 and "record 4, which begins at byte" in done.stderr and "Traceback" not in done.stderr
    assert grid(log.parent / "nothing").exit_code == 1


def test_until_takes_local_time_and_seconds(log: Path) -> None:
    assert grid(log, "--until", "50.5").stdout != grid(log).stdout
    assert grid(log, "--until", "2001-01-01 00:00:00").stdout == grid(log).stdout


def test_a_time_that_no_calendar_has_is_told_as_the_latest_one(log: Path) -> None:
    values = list(msgpack.Unpacker(log.open("rb"), strict_map_key=False))
    values[-1][-1][0] = 1e30
    log.write_bytes(b"".join(msgpack.packb(value) for value in values))
    assert " to 9999-01-01 " in grid(log).stdout or " to 9998-12-31 " in grid(log).stdout  # by the local time zone
    assert json.loads(grid(log, "-o", "json").stdout)["to"].startswith("9999-01-01T00:00:00")
