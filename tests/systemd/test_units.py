"""The units that ship with the grid are what systemd understands, and leave jobs alone."""

import configparser
import shutil
import subprocess
from importlib.resources import files

import pytest

UNITS = ("grid-agent.service", "grid-coordinator.service")


@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    path = str(files("distributed_grid.systemd") / name)
    done = subprocess.run([analyze, "verify", path], capture_output=True, text=True, timeout=60)
    newer = "DelegateSubgroup"  # than systemd 253, which says that it ignores it
    wrong = [line for line in done.stderr.splitlines() if name in line and newer not in line]
    assert (done.returncode, wrong) == (0, [])


def test_stopping_the_agent_leaves_its_jobs_alone() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((files("distributed_grid.systemd") / "grid-agent.service").read_text())
    service = unit["Service"]
    assert (service["KillMode"], service["Delegate"], service["Type"]) == ("process", "yes", "notify")


def test_the_unit_keeps_the_agent_beside_the_groups_of_its_jobs() -> None:
    assert "DelegateSubgroup=agent" in (files("distributed_grid.systemd") / "grid-agent.service").read_text().split()
