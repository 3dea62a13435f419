"""Backup, restore and check refuse what is none; tests/e2e/test_restore.py has a real coordinator."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.main import main


@pytest.mark.parametrize("words", [["check"], ["backup", "there"], ["accept-loss", "--yes"]])
def test_without_a_coordinators_state_nothing_is_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["coordinator", *words, "--state-dir", "none"])
    assert done.exit_code == 1 and "error: " in done.stderr, done.output
    assert list(tmp_path.iterdir()) == []


def test_a_restore_needs_a_backup(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["coordinator", "restore", str(tmp_path), "--state-dir", str(tmp_path / "new")])
    assert done.exit_code == 1 and "error: " in done.stderr and not (tmp_path / "new" / "grid.db").exists()
