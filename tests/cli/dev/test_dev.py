"""`grid dev` says why a service did not start, and leaves a directory without a dev grid alone."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.dev.dev import _not_started, _tell
from distributed_grid.cli.dev.plan import make_plan
from distributed_grid.cli.main import main


def test_the_error_of_a_service_is_told_before_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\nsome line\nerror: port 1 is taken\n  why: by another\n  try: 2\nlater\n")
    told = _not_started("the coordinator", log, len("before\n"))
    assert told.lines() == [
        "error: the coordinator did not start: port 1 is taken", "  why: by another", "  try: 2"
    ], "one error, not one within another"  # fmt: skip
    log.write_text("error: port 1 is taken\nlater\n")
    assert _not_started("n1", log, 0).lines()[1:] == [f"  try: see {log}"]
    log.write_text("one\ntwo\n")
    assert _not_started("n1", log, 0).why == "one | two" and "in time" in _not_started("n1", log, 0).what
    assert _not_started("n1", log, 8).why == "it said nothing"


def test_what_is_to_be_typed_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "a b"
    _tell(Invocation(), make_plan(home, {"nodes": 1}, []), f"unix://{home}/socket", [], 1.0)
    typed = [shlex.split(line) for line in capsys.readouterr().out.partition("try:\n")[2].splitlines()]
    assert typed[0] == ["export", f"GRID_COORDINATOR=unix://{home}/socket"]
    assert typed[-1] == ["grid", "dev", "down", "--dir", str(home)]


def test_a_file_is_no_place_for_a_dev_grid(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = CliRunner().invoke(main, ["dev", "up", "--dir", str(file)])
    assert done.exit_code == 1 and "  why: it is no directory\n" in done.stderr


def test_down_without_a_dev_grid_does_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["dev", "down", "--dir", str(tmp_path)])
    assert done.exit_code == 0 and "there is no dev grid" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_configuration_that_a_dev_grid_would_not_read_is_refused(tmp_path: Path) -> None:
    config, home = tmp_path / "grid.yaml", tmp_path / "dev"
    config.write_text("resource_sharing: {policy: aggressive}\n")
    done = CliRunner().invoke(main, ["-c", str(config), "dev", "up", "--dir", str(home)])
    assert done.exit_code == 2 and f"a dev grid does not read {config}" in done.stderr
    assert not home.exists()
