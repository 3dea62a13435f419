"""What both services say of themselves, and with which configuration they are started."""

from pathlib import Path

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.services import service, systemd
from distributed_grid.config.settings import load

UNIT = {
    "state": "active", "detail": "running", "since": "", "restarts": 0, "path": "/u", "enabled": True, "pid": 7,
    "says": "", "why": "",
}  # fmt: skip


def test_a_service_is_told_in_lines() -> None:
    assert service.lines(UNIT) == ["service    active (running) since never", "unit       /u", "process    7"]
    odd = service.lines({**UNIT, "restarts": 2, "enabled": False, "pid": 0, "says": "hello"})
    assert "restarted 2 times" in odd[0] and "not enabled" in odd[1] and odd[2:] == ["says       hello"]
    fails = service.lines({**UNIT, "state": "activating", "detail": "auto-restart", "pid": 0, "why": "no such host"})
    assert fails[0] == "service    activating (auto-restart) since never" and fails[2:] == ["why        no such host"]


def test_a_service_gets_the_configuration_and_coordinator_of_who_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.touch()
    monkeypatch.delenv("GRID_COORDINATOR", raising=False)
    invocation = Invocation(config_path=str(file))
    assert service.config_options(invocation) == ["--config", str(file)] == service.common_options(invocation)
    monkeypatch.setenv("GRID_COORDINATOR", "ws://m:1")
    assert service.common_options(invocation)[2:] == ["--coordinator", "ws://m:1"]


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the units of this machine are, as root sees it who sets nothing."""
    monkeypatch.setattr(systemd, "MACHINE", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path


def test_the_state_is_where_the_installed_service_keeps_it_unless_something_else_is_said(
    units: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, host = load(environment={}), load(environment={}).node_name()

    def places() -> tuple[Path, str, Path]:
        return service.coordinator_place(usual), service.agent_name(usual), service.agent_place(usual)

    assert places() == (systemd.STATE / "coordinator", host, systemd.STATE / f"agent-{host}")
    (units / "grid-coordinator.service").write_text(
        "ExecStart=/g/grid coordinator run --state-dir /var/lib/elsewhere --host ::\n"
    )
    (units / "grid-agent.service").write_text('ExecStart=/g/grid agent run --name lab1 --state-dir "/var/lib/a b"\n')
    assert places() == (Path("/var/lib/elsewhere"), "lab1", Path("/var/lib/a b"))
    said = load(environment={}, flags={"coordinator.state_dir": "/x", "agent.name": "lab2"})
    assert service.coordinator_place(said) == Path("/x")
    assert (service.agent_name(said), service.agent_place(said)) == ("lab2", systemd.STATE / "agent-lab2")
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    assert places()[0] == Path("/elsewhere/grid/coordinator")
