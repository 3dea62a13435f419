"""What one call of `grid` was told: where the coordinator is, how much it says, and in which colours."""

import io
from pathlib import Path

import pytest

from distributed_grid.cli.attach.terminal import StatusLine
from distributed_grid.cli.attach.waiting import Count, Progress
from distributed_grid.cli.context import Invocation, client, grid_failed
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client.session import GridUnavailable
from distributed_grid.protocol.errors import BadValue
from tests.coordinator.client.test_connection import free_port


def test_the_coordinator_is_that_of_the_option_before_that_of_the_environment_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text('coordinator: {url: "ws://127.0.0.1:7001"}\n')
    said = Invocation(config_path=str(file))
    monkeypatch.delenv("GRID_COORDINATOR", raising=False)
    assert said.url() == "ws://127.0.0.1:7001"
    monkeypatch.setenv("GRID_COORDINATOR", "ws://127.0.0.1:7002")
    assert said.url() == "ws://127.0.0.1:7002"
    said.coordinator = "ws://127.0.0.1:7003"
    assert said.url() == "ws://127.0.0.1:7003"


def test_what_is_doubtful_in_the_configuration_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("resource_sharing: {offer_expiry: 1, check_interval: 30}\n")
    with pytest.raises(GridUnavailable, match="cannot reach"):
        Invocation(config_path=str(file), coordinator=f"ws://127.0.0.1:{free_port()}").connect()
    assert capsys.readouterr().err.count("warning: ") == 1


def test_a_coordinator_that_is_away_is_waited_for_and_that_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    with pytest.raises(GridUnavailable, match="cannot reach"):
        Invocation(coordinator=url).connect(patience=0.3)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and f"cannot reach the coordinator at {url}" in told and "waiting for it" in told


def test_a_command_does_not_wait_for_a_coordinator_that_it_has_lost() -> None:
    assert client("ws://127.0.0.1:1").session.patience == 0.0


def test_quiet_means_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    Invocation(quiet=True).say("a word")
    Invocation().say("a\x1b[31m word")
    told = capsys.readouterr().err
    assert told.startswith("grid: a") and told.count("word") == 1 and "\x1b" not in told


def test_colours_are_for_terminals_unless_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Invocation().colored(io.StringIO())
    assert Invocation(color="always").colored(io.StringIO())
    assert not Invocation(color="never").colored()


@pytest.mark.parametrize("words", [("run-shared", "--no-ship", "true"), ("job", "wait", "last")])
def test_a_failure_of_the_grid_exits_with_125_or_what_grid_exit_error_says(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRID_EXIT_ERROR", raising=False)
    where = ("--coordinator", f"ws://127.0.0.1:{free_port()}")
    assert main.main([*where, *words], standalone_mode=False) == 125
    monkeypatch.setenv("GRID_EXIT_ERROR", "99")
    assert main.main([*where, *words], standalone_mode=False) == 99


@pytest.mark.parametrize("text", ["0", "256", "-1", "many", "1e2", "9" * 5000])
def test_what_is_no_exit_code_is_refused_before_anything_runs(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRID_EXIT_ERROR", text)
    with pytest.raises(BadValue, match="is no exit code"):
        grid_failed()
    assert main.main(["run-shared", "--no-ship", "true"], standalone_mode=False) == 2
    assert "it is a number from 1 to 255" in capsys.readouterr().err


def test_a_line_is_written_over_only_where_a_terminal_can_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert Invocation().live() and not Invocation(quiet=True).live()
    monkeypatch.setenv("TERM", "dumb")
    assert not Invocation().live()
    progress = Progress(Invocation())
    progress.show(Count())
    progress.close()
    StatusLine(Invocation()).clear()
    assert terminal.getvalue() == "grid: 0 of 0 done\n"
