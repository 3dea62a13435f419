"""A unit as it is installed: the shipped one with this installation's paths, user and options."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from distributed_grid.cli.services.systemd import UNDER_HOME, Unit, quoted, reason, render, unquoted

ARGV = ["/usr/local/lib/grid/bin/grid", "agent", "run", "--name", "lab1"]


def setting(text: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]


def test_a_unit_of_the_machine_runs_the_command_as_a_user_of_its_own() -> None:
    text = render(Unit("agent", ARGV, Path("/var/lib/grid/agent-lab1"), "grid-agent"))
    assert setting(text, "ExecStart") == ["/usr/local/lib/grid/bin/grid agent run --name lab1"]
    assert setting(text, "User") == ["grid-agent"]
    assert setting(text, "StateDirectory") == ["grid/agent-lab1"]
    assert setting(text, "WantedBy") == ["multi-user.target"]


def test_a_state_directory_elsewhere_may_be_written_to() -> None:
    text = render(Unit("coordinator", ARGV, Path("/var/the grid"), "grid-coordinator"))
    assert setting(text, "ReadWritePaths") == ['"/var/the grid"']
    assert setting(text, "StateDirectory") == setting(text, "StateDirectoryMode") == []
    assert setting(text, "ExecStartPre") == ['+-chown -hRf grid-coordinator: "/var/the grid"']


def test_a_program_in_a_home_directory_can_be_seen_by_its_service_and_not_be_changed() -> None:
    argv = [f"{UNDER_HOME[0]}/ann/venv/bin/grid", "coordinator", "run"]
    text = render(Unit("coordinator", argv, Path("/var/lib/grid/coordinator"), "grid-coordinator"))
    assert setting(text, "ProtectHome") == ["read-only"]


def test_an_agent_that_is_root_keeps_the_rights_to_become_who_submitted_and_no_others() -> None:
    text = render(Unit("agent", ARGV, Path("/var/lib/grid/agent-lab1"), "root"))
    assert setting(text, "User") == []
    (rights,) = setting(text, "CapabilityBoundingSet")
    assert {"CAP_SETUID", "CAP_KILL"} <= {*rights.split()} and "CAP_SYS_ADMIN" not in rights
    assert setting(text, "StateDirectoryMode") == ["0711"]  # a restart does not shut jobs out of their directories


def test_a_unit_of_ones_own_asks_for_nothing_that_takes_rights() -> None:
    text = render(Unit("agent", ARGV, Path(UNDER_HOME[0]) / "ann/.local/state/grid/agent-lab1"))
    names = {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}
    assert not names & {"User", "StateDirectory", "ProtectSystem", "OOMScoreAdjust", "CapabilityBoundingSet", "Wants"}
    assert (setting(text, "WantedBy"), setting(text, "Slice")) == (["default.target"], [])
    assert setting(text, "CPUWeight") == ["10"]  # beside its user's other services
    assert (setting(text, "KillMode"), setting(text, "Delegate")) == (["process"], ["yes"])


@pytest.mark.parametrize("word", ["plain", "with space", "50%", "$HOME", 'a"b', "a\\b", "a;b", "it's", ""])
def test_a_word_of_a_command_comes_back_as_it_was(word: str) -> None:
    assert unquoted(quoted(word)) == [word]


def test_the_reason_why_it_does_not_start_is_one_line_of_its_own_words() -> None:
    log = "grid-agent.service: Scheduled restart job.\nerror: :7433 is in use\n  why: another program\n" * 2
    assert reason(log, "grid-agent.service") == ":7433 is in use; why: another program"
    assert reason("", "grid-agent.service") == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)")
@pytest.mark.parametrize("user", ["", "grid-agent", "root"])
def test_systemd_takes_it(user: str, tmp_path: Path) -> None:
    argv = [shutil.which("true") or "", "--label", 'odd=%n "$x" \\']
    unit = Unit("agent", argv, Path("/var/the grid"), user)
    path = tmp_path / unit.name
    path.write_text(render(unit))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line and "DelegateSubgroup" not in line]
    assert (done.returncode, said) == (0, []), shlex.join(argv)
