"""What both services say of themselves, and with which configuration they are started."""

from pathlib import Path

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.services import service

UNIT = {
    "state": "active", "detail": "running", "since": "", "restarts": 0, "path": "/u", "enabled": True, "pid": 7,
    "says": "",
}  # fmt: skip


def test_a_service_is_told_in_lines() -> None:
    assert service.lines(UNIT) == ["service    active (running) since never", "unit       /u", "process    7"]
    odd = service.lines({**UNIT, "restarts": 2, "enabled": False, "pid": 0, "says": "hello"})
    assert "restarted 2 times" in odd[0] and "not enabled" in odd[1] and odd[2:] == ["says       hello"]


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
