"""A boost from an agent that runs under its hardened unit, on a machine of its own with a real Ray."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.walls import accounts
from tests.grid_fixture import CONFIG
from tests.systemd.booted import ENVIRONMENT, GRID, Machine, booted

pytestmark = [pytest.mark.long_ray, pytest.mark.systemd, pytest.mark.ray, pytest.mark.timeout(300)]
HEAD = "127.0.0.1:6399"
RAY, PYTHON = f"{ENVIRONMENT}/bin/ray", f"{ENVIRONMENT}/bin/python"
START = (
    "start", "--head", "--block", "--port=6399", "--node-ip-address=127.0.0.1", "--node-name=gpu-master",
    "--num-cpus=1", "--num-gpus=0", "--include-dashboard=false", "--disable-usage-stats",
    "--object-store-memory=80000000", "--memory=500000000",
)  # fmt: skip
TASK = f"""
import json, ray
ray.init(address="{HEAD}", logging_level="error", log_to_driver=False)
@ray.remote(resources={{"boost_gpu-master": 1}})
def looks():
    import os
    try:
        key = open("/var/lib/grid/agent-n1/identity/own.key").read()
    except OSError as error:
        key = error.strerror
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status"))
    rights = [status[name].strip() for name in ("CapEff", "NoNewPrivs", "Seccomp")]
    return os.getuid(), rights, key
print(json.dumps(ray.get(looks.remote(), timeout=60)))
"""


@pytest.fixture(scope="module")
def machine(installed: Path) -> Iterator[Machine]:
    """A machine with both services, one node, n1, and a Ray head."""
    with booted() as machine:
        machine.copy(installed)
        machine.put(RAY, f"#!{PYTHON}\nfrom ray.scripts.scripts import main\nmain()\n".encode())
        machine.told("chmod", "755", RAY)
        config = CONFIG + f"  nice: 0\nname: gpu-master\nray: {{address: '{HEAD}'}}\n"
        machine.put("/etc/grid/grid.yaml", config.encode())
        machine.grid("init")
        machine.grid("coordinator", "install")
        machine.put("/run/invitation", machine.grid("token", "create", "--role", "agent", "--node", "n1").encode())
        machine.grid("agent", "install", "--name", "n1", "--virtual", "--join", "/run/invitation")
        said = "--setenv=RAY_AUTH_MODE=disabled", "--setenv=HOME=/root"
        machine.told("systemd-run", "--unit=head", *said, RAY, *START)
        machine.until(lambda: "gpu-master" in names(machine), "Ray's head is there")
        yield machine


def names(machine: Machine) -> list[str]:
    """The nodes that Ray shows."""
    done = machine.run(GRID, "-o", "json", "cluster", "status")
    shown = json.loads(done.stdout)["ray"] if done.returncode == 0 else None
    return [one["name"] for one in shown["nodes"]] if shown else []


def test_a_raylet_joins_with_the_few_rights_of_a_job_and_its_tasks_cannot_read_the_nodes_key(machine: Machine) -> None:
    boost = machine.grid("boost", "request", "gpu-master", "cpu", "1", timeout=120.0).strip()
    told = json.loads(machine.told(PYTHON, "-c", TASK, timeout=120.0).splitlines()[-1])
    uid, *rest = told
    assert accounts.is_slot_uid(uid) and rest == [["0000000000000000", "1", "2"], "Permission denied"]
    machine.grid("boost", "release", boost)
    machine.run(GRID, "job", "wait", boost)
    machine.until(lambda: boost not in names(machine), "Ray has seen it end")
    machine.until(lambda: machine.run("pgrep", "--full", f"node-name={boost}").returncode == 1, "no process is left")
    left = ("sh", "-c", "ls -d /tmp/grid-r-*")
    machine.until(lambda: machine.run(*left).returncode == 2, "nor is its folder")
