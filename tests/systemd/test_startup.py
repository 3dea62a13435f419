"""The script that a machine of a cloud runs first, run by a systemd of its own that boots in namespaces: the machine
joins, runs jobs, and is powered off when its program ends, however it does."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.coordinator.providers.base import WorkerSpec
from distributed_grid.coordinator.providers.startup import startup_script
from tests.grid_fixture import CONFIG
from tests.systemd.booted import ENVIRONMENT, Machine, booted

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]
SCRIPT = "/run/startup"
UNIT = "grid-machine.service"


@pytest.fixture(scope="module")
def machine(installed: Path) -> Iterator[Machine]:
    """A machine with a coordinator, which has run the script."""
    with booted() as machine:
        machine.copy(installed)
        machine.put("/etc/grid/grid.yaml", CONFIG.encode())
        machine.grid("init")
        machine.grid("coordinator", "install")
        spec = WorkerSpec(
            name="x-1",
            pool="x",
            ends_by=time.time() + 3600,
            invitation=machine.grid("token", "create", "--role", "agent", "--node", "x-1").strip(),
            options={"python": f"{ENVIRONMENT}/bin/python", "trust": "everyone", "install": "echo hi >/run/installed"},
        )
        machine.put(SCRIPT, startup_script(spec, 16_384, "").encode())
        machine.told("sh", SCRIPT)
        yield machine


def test_it_joins_runs_jobs_as_nobody_special_and_is_powered_off_whatever_becomes_of_its_program(
    machine: Machine,
) -> None:
    assert machine.told("cat", "/run/installed") == "hi\n"
    said = machine.grid("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "sh", "-c", "id -u; echo on $HOSTNAME")
    assert said.splitlines()[0] != "0", "no job is root"
    assert machine.run("test", "-e", "/var/lib/grid-machine/invitation").returncode == 1, "it was used"
    assert machine.told("systemctl", "is-active", "grid-machine-over.timer").strip() == "active"
    assert machine.run("systemctl", "is-active", "grid-machine-setup.timer").stdout.strip() != "active"
    before = machine.shown(UNIT, "MainPID")
    machine.told("sh", SCRIPT)  # as at each boot of Compute Engine
    assert machine.shown(UNIT, "MainPID") == before, "it goes on"
    assert machine.run("test", "-e", "/var/lib/grid-machine/invitation").returncode == 1, "and has joined already"
    machine.told("systemctl", "kill", "--signal=KILL", "--kill-whom=main", UNIT)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{machine.pid}").exists():
        assert time.monotonic() < deadline, "it is powered off"
        time.sleep(0.2)
