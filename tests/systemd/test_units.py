"""The units that ship with the grid are what systemd understands, give the services no right that they do not need, and
leave jobs alone."""

import configparser
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from distributed_grid.agent.cgroups.hierarchies import LEAF
from distributed_grid.cli.services.systemd import Unit, render

UNITS = ("grid-agent.service", "grid-coordinator.service")
analyze = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(analyze is None, reason="needs systemd-analyze (Debian: systemd)")


def shipped(name: str) -> str:
    return (files("distributed_grid.systemd") / name).read_text()


def settings(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(shipped(name))
    return unit["Service"]


def exposure(path: Path) -> float:
    """systemd's own score of what a service that is taken over could do: 0 nothing, 10 anything."""
    argv = [analyze or "", "security", "--offline=yes", "--no-pager", str(path)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found, said
    return float(found[1])


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(name: str) -> None:
    path = str(files("distributed_grid.systemd") / name)
    done = subprocess.run([analyze or "", "verify", path], capture_output=True, text=True, timeout=60)
    newer = "DelegateSubgroup"  # than systemd 253, which says that it ignores it
    wrong = [line for line in done.stderr.splitlines() if name in line and newer not in line]
    assert (done.returncode, wrong) == (0, [])


@needs_systemd
@pytest.mark.parametrize(("name", "most"), [("grid-agent.service", 3.4), ("grid-coordinator.service", 1.5)])
def test_a_service_that_is_taken_over_can_do_little(name: str, most: float) -> None:
    assert exposure(Path(str(files("distributed_grid.systemd") / name))) <= most


@needs_systemd
@pytest.mark.parametrize("kind", ["agent", "coordinator"])
def test_what_is_installed_is_as_safe_as_what_is_shipped(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment that runs the tests may be in a home, which is then not hidden.
    monkeypatch.setattr("sys.prefix", "/usr/local/lib/grid")
    monkeypatch.setattr("sys.base_prefix", "/usr")
    unit = Unit(kind, ["/usr/local/lib/grid/bin/grid", kind, "run"], Path(f"/var/lib/grid/{kind}"), f"grid-{kind}")
    path = tmp_path / unit.name
    path.write_text(render(unit))
    assert exposure(path) <= {"agent": 3.4, "coordinator": 1.5}[kind]


def test_stopping_the_agent_leaves_its_jobs_alone() -> None:
    service = settings("grid-agent.service")
    assert (service["KillMode"], service["Delegate"], service["Type"]) == ("process", "yes", "notify")
    # It would be emptied, under the jobs that are still there, whenever the agent is started again.
    assert "PrivateTmp" not in service


@pytest.mark.parametrize("name", UNITS)
def test_a_service_that_hangs_or_ends_is_started_again(name: str) -> None:
    service = settings(name)
    assert service["Restart"] == "always" and int(service["WatchdogSec"]) > 0
    assert service["WatchdogSignal"] == "SIGKILL"  # a stopped process hears no other


def test_the_unit_keeps_the_agent_beside_the_groups_of_its_jobs() -> None:
    assert "DelegateSubgroup=agent" in shipped("grid-agent.service").split()


def test_the_unit_takes_back_the_controllers_of_an_agent_that_made_its_group_itself() -> None:
    service = settings("grid-agent.service")
    assert service["Environment"] == f"GRID_CGROUP_LEAF={LEAF}"
    assert f'"$$g/{LEAF}"' in service["ExecStopPost"]
