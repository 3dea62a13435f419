"""Backup, restore and check refuse what is none; tests/e2e/reliability/test_restore.py has a real coordinator."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.main import main
from distributed_grid.cli.services.coordinator import _contexts_of
from distributed_grid.identity.credentials import AUTHORITY
from distributed_grid.identity.member import Member, contexts, write_member
from distributed_grid.protocol.identity import Role


@pytest.mark.parametrize("words", [["check"], ["backup", "there"], ["accept-loss", "--yes"]])
def test_without_a_coordinators_state_nothing_is_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["coordinator", *words, "--state-dir", "none"])
    assert done.exit_code == 1 and "error: " in done.stderr, done.output
    assert list(tmp_path.iterdir()) == []


def test_a_refused_configuration_ends_a_coordinator_as_its_service_is_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("bogus: 1\n")
    words = ["-c", str(tmp_path / "grid.yaml"), "coordinator", "run", "--state-dir", str(tmp_path / "state")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 78 and "unknown key 'bogus'" in done.stderr and not (tmp_path / "state").exists()


def test_a_restore_needs_a_backup(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["coordinator", "restore", str(tmp_path), "--state-dir", str(tmp_path / "new")])
    assert done.exit_code == 1 and "error: " in done.stderr and not (tmp_path / "new" / "grid.db").exists()


def test_the_contexts_of_a_grid_are_those_with_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "state" / "pki").mkdir(parents=True)
    (tmp_path / "state" / "pki" / AUTHORITY).write_text("this one")
    for name, authority in (("mine", "this one"), ("another", "another"), ("none", "")):
        (contexts() / name).mkdir(parents=True)
        write_member(contexts() / name, Member("wss://master.example.org:7433", "g", Role.CLIENT, "ann"))
        if authority:
            (contexts() / name / AUTHORITY).write_text(authority)
    assert _contexts_of(tmp_path / "state") == [contexts() / "mine"]
