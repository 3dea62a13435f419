"""The agent's control groups under systemd: a group of its own, and those of jobs beside it, which outlive it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import CONFIG
from tests.systemd.booted import Machine, booted

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]
AGENT = "grid-agent.service"
INVITATION = "/run/invitation"
GROUP = f"/sys/fs/cgroup/{AGENT}"
CONTROLLER = "hugetlb"  # on machines that have all others in version 1, this one is left for version 2
UNIFIED = Path("/sys/fs/cgroup/unified")


@pytest.fixture(scope="module")
def machine(wheel: Path) -> Iterator[Machine]:
    """A machine with a grid of one node, and a controller of version 2 where there is one."""
    with handed_on(), booted() as machine:
        machine.install(wheel)
        machine.put("/etc/grid/grid.yaml", CONFIG.encode())
        machine.grid("init")
        machine.grid("coordinator", "install")
        machine.put(INVITATION, machine.grid("token", "create", "--role", "agent", "--node", "n1").encode())
        machine.grid("agent", "install", "--name", "n1", "--virtual", "--join", INVITATION)
        yield machine


@contextlib.contextmanager
def handed_on() -> Iterator[None]:
    """Machines that boot meanwhile can have that controller."""
    control = UNIFIED / "cgroup.subtree_control"
    if not control.exists() or CONTROLLER not in (UNIFIED / "cgroup.controllers").read_text().split():
        yield
        return
    before = control.read_text().split()
    control.write_text(f"+{CONTROLLER}")
    try:
        yield
    finally:
        if CONTROLLER not in before:
            with contextlib.suppress(OSError):  # another test has it as well
                control.write_text(f"-{CONTROLLER}")


def pid(machine: Machine) -> int:
    return int(machine.shown(AGENT, "MainPID"))


def group_of(machine: Machine, process: int) -> str:
    """The group of version 2 that a process is in, as systemd counts: from its root."""
    lines = machine.told("cat", f"/proc/{process}/cgroup").splitlines()
    return next(line for line in lines if line.startswith("0::")).removeprefix("0::")


def supervisor(machine: Machine) -> int:
    # The oldest: the others are its fork server and spawners.
    oldest = ("pgrep", "--oldest", "--full", "supervisor/main.py")
    return int(machine.until(lambda: machine.run(*oldest).stdout.strip(), "it runs"))


def new_agent(machine: Machine, before: int) -> int:
    """The agent that follows the one with this pid, once it is ready."""
    machine.until(lambda: pid(machine) not in (0, before), "systemd has started another")
    machine.until(lambda: machine.shown(AGENT, "ActiveState") == "active", "it is ready")
    return pid(machine)


def test_agent_and_supervisor_have_a_group_of_their_own_in_that_of_the_unit(machine: Machine) -> None:
    machine.until(lambda: machine.shown(AGENT, "ActiveState") == "active", "the agent is ready")
    mine = group_of(machine, pid(machine))
    assert mine in (f"/{AGENT}/main", f"/{AGENT}/agent")  # made by the agent; by systemd 254
    assert group_of(machine, supervisor(machine)) == mine
    assert machine.told("cat", f"{GROUP}/cgroup.procs") == ""


def test_a_job_keeps_its_group_while_its_agent_is_restarted_and_killed(machine: Machine) -> None:
    machine.grid("run-shared", "-d", "--no-ship", "sleep", "100321")
    job = int(machine.until(lambda: machine.run("pgrep", "--full", "^sleep 100321$").stdout.strip(), "the job runs"))
    agent = pid(machine)
    group = group_of(machine, job)
    if group == group_of(machine, agent):
        machine.told("sh", "-c", f"mkdir {GROUP}/j-0.1 && echo {job} > {GROUP}/j-0.1/cgroup.procs")
        group = f"/{AGENT}/j-0.1"
    if CONTROLLER in machine.told("cat", f"{GROUP}/../cgroup.controllers").split():
        # As with the controllers that the agent hands on: systemd cannot start a process in such a group.
        for at in ("/sys/fs/cgroup", GROUP):
            machine.told("sh", "-c", f"echo +{CONTROLLER} > {at}/cgroup.subtree_control")
    for signum in ("TERM", "KILL"):
        machine.told("systemctl", "kill", f"--signal={signum}", "--kill-whom=main", AGENT)
        agent = new_agent(machine, agent)
        assert group_of(machine, job) == group
        assert group_of(machine, agent) in (f"/{AGENT}/main", f"/{AGENT}/agent")
    machine.told("kill", str(job))
    failures = machine.told("journalctl", "--unit", AGENT, "--no-pager", "--output", "cat")
    assert "219/CGROUP" not in failures
