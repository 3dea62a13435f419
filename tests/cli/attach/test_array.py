"""`grid attach`, `grid logs` and `grid run-shared` of an array, in this process, against a real coordinator."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.cli.attach import array
from distributed_grid.cli.attach.attached import CLOSED_PIPE
from distributed_grid.cli.context import Invocation, client
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.output import Piece
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited, GroupUpdate, Launch, Started, Submit
from tests.cli.attach.test_attached import grid_aside


def by_index(launch: Launch) -> list[Any]:
    """Each member writes its index in two lines and exits with it, but for 8, which exits with 0."""
    index = int(launch.job.rpartition("_")[2])
    text = b"member %d\nends %d\n" % (index, index)
    outcome = Outcome(Cause.EXITED, code=index if index != 8 else 0, stdout_size=len(text), stdout_tail=text)
    return [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]


def lines(out: bytes) -> list[str]:
    return sorted(out.decode().splitlines())


EACH = sorted(f"[{index}] {what} {index}" for index in (0, 4, 6, 8) for what in ("member", "ends"))


def ran(url: str, *words: str) -> Any:
    with pytest.raises(SystemExit) as end:
        main.main(["--coordinator", url, *words], standalone_mode=False)
    return end.value.code


def test_all_members_are_printed_behind_their_index_and_the_highest_exit_code_is_ours(
    tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array, "AT_ONCE", 2)
    with grid_aside(tmp_path, runs=by_index) as url:
        assert ran(url, "run-shared", "--no-ship", "--name", "sweep", "--array", "0-8:4,6", "make") == 6
        captured = capfdbinary.readouterr()
        assert lines(captured.out) == EACH
        assert b"(sweep): 4 ended (2 failed)" in captured.err
        assert ran(url, "attach", "sweep") == 6
        assert lines(capfdbinary.readouterr().out) == EACH
        assert ran(url, "logs", "sweep") == 0
        assert lines(capfdbinary.readouterr().out) == EACH
        assert ran(url, "logs", "--failed", "sweep") == 0
        assert lines(capfdbinary.readouterr().out) == [one for one in EACH if one[1] in "46"]
        for words in (("logs", "--member", "4", "sweep"), ("logs", "sweep_4")):
            assert (ran(url, *words), capfdbinary.readouterr().out) == (0, b"member 4\nends 4\n")
        assert ran(url, "attach", "sweep", "--member", "4") == 4
        assert ran(url, "job", "wait", "sweep") == 6


def test_what_is_told_last_is_that_all_have_ended_also_where_the_news_of_that_comes_too_late(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = array.AttachedArray._handle

    def late(self: array.AttachedArray, event: Any) -> None:
        if not (isinstance(event, GroupUpdate) and event.group.ended):
            handle(self, event)

    monkeypatch.setattr(array.AttachedArray, "_handle", late)
    with grid_aside(tmp_path, runs=by_index) as url:
        assert ran(url, "run-shared", "--no-ship", "--array", "0,8", "make") == 0
        assert capfd.readouterr().err.splitlines()[-1].startswith("grid: 2 of 2 done")


def test_a_reader_of_stderr_alone_that_leaves_is_noticed(tmp_path: Path) -> None:
    with grid_aside(tmp_path, runs=by_index) as url, client(url) as grid:
        (sweep,) = grid.submit_many([describe_job("make", array="0-1")])
        attached = array.AttachedArray(
            Invocation(), grid, grid.show_array(sweep), owner=False, streams=("stderr",), until_now=True
        )
        attached.sinks["stderr"].closed = True
        assert attached.run() == CLOSED_PIPE


def test_members_that_are_not_wanted_are_not_watched_any_more(tmp_path: Path, capfdbinary: Any) -> None:
    with grid_aside(tmp_path, runs=by_index) as url, client(url) as grid:
        (sweep,) = grid.submit_many([describe_job("make", array="0,8")])
        attached = array.AttachedArray(
            Invocation(), grid, grid.show_array(sweep), owner=False, failed=True, reads_along=False
        )
        assert attached.run() == 0
        assert not attached._watches and capfdbinary.readouterr().out == b""


def test_an_interrupt_that_comes_before_the_array_is_known_by_its_id_ends_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = GridClient.ask

    def interrupted(self: GridClient, *messages: Any, repeatable: bool = True) -> int:
        number = ask(self, *messages, repeatable=repeatable)
        if any(isinstance(one, Submit) for one in messages):
            os.kill(os.getpid(), signal.SIGINT)
        return number

    monkeypatch.setattr(GridClient, "ask", interrupted)
    with grid_aside(tmp_path, runs=by_index) as url:
        assert ran(url, "run-shared", "--no-ship", "--begin", "+1h", "--array", "0-2", "make")
        assert "ending all of the array" in capfd.readouterr().err
        with client(url) as grid:
            (found,) = grid.arrays(ended=True)
            assert (found.cancelled, found.states) == (3, {"ended": 3})


def test_for_programs_there_is_json_alone_with_the_output_of_each(tmp_path: Path, capfdbinary: Any) -> None:
    with grid_aside(tmp_path, runs=by_index) as url:
        assert ran(url, "-o", "json", "run-shared", "--no-ship", "--array", "0-10:5", "make") == 10
        told = json.loads(capfdbinary.readouterr().out)
        assert [one["indexes"] for one in told["arrays"]] == ["0-10:5"] and told["schema"] == 1
        rows = [(one["index"], one["exit_code"], one["stdout"], one["stderr"]) for one in told["jobs"]]
        assert rows == [(index, index, f"member {index}\nends {index}\n", "") for index in (0, 5, 10)]
        assert [(one["truncated"], one["output_error"]) for one in told["jobs"]] == [(False, "")] * 3
        assert ran(url, "-o", "jsonl", "run-shared", "--no-ship", "--array", "1-2", "make") == 2
        assert [json.loads(line)["stdout"] for line in capfdbinary.readouterr().out.splitlines()] == [
            "member 1\nends 1\n", "member 2\nends 2\n"
        ]  # fmt: skip


@pytest.mark.parametrize("words", [("attach",), ("logs",), ("job", "events")])
def test_some_members_at_once_are_not_taken_for_the_first(
    words: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with grid_aside(tmp_path, runs=by_index) as url:
        with client(url) as grid:
            many = grid.submit("make", array="0-3")
        assert main.main(["--coordinator", url, *words, f"{many}_1-3,0"], standalone_mode=False) == 2
        told = capfd.readouterr()
        assert f"{many}_1-3,0 is 4 jobs" in told.err and f"such as {many}_0" in told.err and not told.out
        with client(url) as grid, pytest.raises(BadValue, match="is 4 jobs"):
            grid.show(f"{many}_1-3,0")


def test_of_much_output_json_has_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array, "KEPT_BYTES", 4)
    member = array.Collected(1, {})
    member._texts = {"stdout": bytearray()}
    for data in (b"abc", b"def", b"ghi"):
        member.put([Piece("stdout", data)])
    assert (member.json()["stdout"], member.json()["truncated"]) == ("fghi", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("logs", "--member", "3", "sweep"), "has no member 3"),
        (("attach", "--member", "3", "one"), "--member 3 of what"),
        (("logs", "--failed", "one"), "--failed is for an array"),
        (("logs", "--attempt", "1", "sweep"), "the attempts of a whole array"),
        (("logs", "--attempt", "2", "one"), "has no attempt 2"),
        (("logs", "one.2"), "has no attempt 2"),
        (("logs", "--attempt", "first", "one"), "is no attempt"),
        (("attach", "--get", "*", "sweep"), "--get cannot bring back"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    tmp_path: Path, words: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with grid_aside(tmp_path, runs=by_index) as url:
        with client(url) as grid:
            grid.submit_many([describe_job("make", name="sweep", array="0-1")])
            (one,) = grid.submit_many([describe_job("make", name="one", array="9")])
            (ended,) = grid.members(one)
        named = [ended.id if word == "one" else word.replace("one.", f"{ended.id}.") for word in words]
        assert main.main(["--coordinator", url, *named], standalone_mode=False)
        assert told in capfd.readouterr().err
