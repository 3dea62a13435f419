"""The program that runs on a host, as far as it needs no agent; tests/push/test_ssh.py runs all of it on one."""

import ast
import json
import os
import sys
from pathlib import Path

import pytest

from distributed_grid.config.settings import state_dir
from distributed_grid.push import remote


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ROOT", tmp_path / "grid")
    monkeypatch.setattr(remote, "BUILDS", tmp_path / "grid" / "builds")
    monkeypatch.setattr(remote, "LINK", tmp_path / "grid" / "venv")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_it_needs_nothing_but_python() -> None:
    tree = ast.parse(Path(remote.__file__).read_text())
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in named} <= set(sys.stdlib_module_names)


def test_an_agents_state_lies_where_the_agent_looks_for_it() -> None:
    assert remote.state_dir("n1") == state_dir("agent-n1")


def test_a_build_is_switched_in_one_step_and_the_last_folder_goes(tmp_path: Path) -> None:
    (remote.BUILDS / "2-b").mkdir(parents=True)
    remote.switch("2-b")
    assert remote.LINK.resolve() == remote.BUILDS / "2-b"
    remote.switch("")
    remote.discard("2-b")
    assert not remote.ROOT.exists()


def test_an_identity_from_before_comes_back_when_joining_is_undone() -> None:
    identity = remote.state_dir("n1") / "identity"
    aside = identity.with_name("identity.before")
    aside.mkdir(parents=True)
    (aside / "own.crt").touch()
    identity.mkdir()
    remote.unjoin("n1", member=True, state_there=True)
    assert (identity / "own.crt").exists() and not aside.exists()
    remote.remove("n1")
    assert not remote.state_dir("n1").exists()


LOGINCTL = """#!/bin/sh
test "$*" = enable-linger || exit 2
$ALLOWED || { echo "Interactive authentication required." >&2; exit 1; }
touch "$LINGER/$(id -un)"
"""


def test_lingering_is_asked_for_and_it_is_told_whether_it_is_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LINGER", tmp_path / "linger")
    monkeypatch.setenv("LINGER", str(tmp_path / "linger"))
    (tmp_path / "linger").mkdir()
    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))  # not this machine's own
    assert remote.linger() is False, "there may be no loginctl"
    monkeypatch.setenv("PATH", f"{tmp_path}:{usual}")
    (tmp_path / "loginctl").write_text(LOGINCTL)
    (tmp_path / "loginctl").chmod(0o755)
    for allowed in (False, True):
        monkeypatch.setenv("ALLOWED", str(allowed).lower())
        assert remote.linger() is allowed
    monkeypatch.setenv("ALLOWED", "false")
    assert remote.linger() is True, "it is asked for once"


def test_what_came_of_a_call_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    staged = remote.stage("push-1")
    assert Path(staged).stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        remote.stage("push-1")
    remote.unstage("push-1")
    assert not Path(staged).exists()
    print(json.dumps(sorted(remote.CALLS)))
    assert "survey" in json.loads(capsys.readouterr().out)
