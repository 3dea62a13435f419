"""Files to the grid and back, with what is said of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.cli.attach.attached import Attached
from distributed_grid.cli.attach.results import fetch_results, here, ship
from distributed_grid.cli.context import AWAY_SECONDS, Invocation, client
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client.session import GridUnavailable
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import GridError
from tests.cli.attach.test_attached import ENDED, grid_aside
from tests.coordinator import ends
from tests.coordinator.client.test_aio import FilesData, ends_with


def test_results_come_back_below_the_current_directory(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    with grid_aside(tmp_path, runs=ends_with(ENDED)) as url:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        (tmp_path / "here" / "input").write_text("x")
        said = Invocation(verbose=True)
        grid = client(url).connect()
        bundle = ship(said, grid)
        attached = Attached(said, grid, submission=describe_job("make", bundle=bundle))
        assert attached.run() == 7
        assert fetch_results(attached, ("**",), force=False, executable=False, code=7) == 7
        assert (tmp_path / "here" / "out" / "a.bin").read_bytes() == FilesData.contents["out/a.bin"]
        told = capfd.readouterr().err
        assert "1 entries, 1 bytes, 1 files sent" in told and "brought back 2 files" in told


def test_what_cannot_be_brought_back_makes_a_success_a_failure(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    with grid_aside(tmp_path, runs=ends_with(ENDED)) as url:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        attached = Attached(Invocation(), client(url).connect(), submission=describe_job("make"))
        attached.run()
        (tmp_path / "here" / "run.sh").write_text("mine, since then")
        assert fetch_results(attached, ("**",), force=False, executable=False, code=0) == 125
        assert "run.sh" in capfd.readouterr().err and (tmp_path / "here" / "run.sh").read_text() == "mine, since then"
        assert fetch_results(attached, ("**",), force=True, executable=False, code=0) == 0


def test_a_directory_that_was_removed_is_no_place_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(GridError, match="not there any more"):
        here()


@pytest.mark.parametrize("words", [("run-shared", "--no-ship"), ("attach",)])
@pytest.mark.parametrize(
    ("globs", "why"), [(["\udcff*"], "patterns must be UTF-8"), (["x"] * 1001, "1000 are the most")]
)
def test_patterns_that_cannot_be_sent_are_refused_before_the_job_runs(
    words: tuple[str, ...], globs: list[str], why: str, capfd: Any
) -> None:
    asked = [word for glob in globs for word in ("--get", glob)]
    assert main.main(["--coordinator", "ws://127.0.0.1:1", *words, *asked, "x"], standalone_mode=False) == 2
    assert why in capfd.readouterr().err


def test_a_coordinator_that_goes_away_while_a_directory_is_shipped_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    patience: list[float] = []

    class Grid:
        session = SimpleNamespace(patience=0.0)

        def number(self) -> int:
            return 1

        def do(self, steps: Any) -> Any:
            patience.append(self.session.patience)
            raise GridUnavailable("it is away for longer")

    grid: Any = Grid()
    invocation: Any = SimpleNamespace(config=lambda: None, verbose=0)
    with pytest.raises(GridUnavailable):
        ship(invocation, grid)
    assert patience == [AWAY_SECONDS] and grid.session.patience == 0.0
