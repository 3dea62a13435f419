"""The services on a machine of their own, whose systemd boots in namespaces: what is installed there runs, and whatever
happens to an agent, its jobs go on, in groups of their own."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.walls import accounts
from tests.grid_fixture import CONFIG
from tests.systemd.booted import GRID, Machine, another_version, booted

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(300)]
INVITATION, NODE = "/run/invitation", ("--name", "n1", "--virtual")
LOOKS = "id -u; sed -n 's/^CapEff:\t//p; s/^NoNewPrivs:\t//p' /proc/self/status"
AGENT, COORDINATOR = "grid-agent.service", "grid-coordinator.service"
GROUP = f"/sys/fs/cgroup/{AGENT}"
CONTROLLER = "hugetlb"  # on machines that have all others in version 1, this one is left for version 2
UNIFIED = Path("/sys/fs/cgroup/unified")


@pytest.fixture(scope="module")
def machine(installed: Path) -> Iterator[Machine]:
    """A machine with a founded grid, both services, and one node, n1, that has joined it; and with a controller of
    version 2 where there is one."""
    with handed_on(), booted() as machine:
        machine.copy(installed)
        machine.put("/etc/grid/grid.yaml", CONFIG.encode())
        machine.grid("init")
        machine.grid("coordinator", "install")
        machine.put(INVITATION, machine.grid("token", "create", "--role", "agent", "--node", "n1").encode())
        machine.grid("agent", "install", *NODE, "--join", INVITATION)
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


def begin(machine: Machine, ending: str) -> tuple[str, int]:
    """Submit a job that runs until the file `ending` is there and exits with 7; its id and its process."""
    marker = f"waits-for-{Path(ending).name}"
    script = f"echo begun; while [ ! -e {ending} ]; do sleep 0.1; done; exit 7"
    job = machine.grid("run-shared", "-d", "--no-ship", "sh", "-c", script, marker).strip()
    # The oldest: what it forks is called so as well, until it has become something else.
    oldest = ("pgrep", "--oldest", "--full", f"^sh -c .*{marker}$")
    return job, int(machine.until(lambda: machine.run(*oldest).stdout.strip(), f"{job} runs"))


def ended(machine: Machine, job: str) -> int:
    """How a job ends."""
    return machine.run(GRID, "job", "wait", job).returncode


def node(machine: Machine) -> dict[str, object]:
    done = machine.run(GRID, "-o", "json", "nodes")
    found: list[dict[str, object]] = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
    return found[0] if found else {}


def software(machine: Machine) -> tuple[str, str]:
    """The versions of the agent and of its supervisor; empty where it is just being started."""
    agent = json.loads(machine.run(GRID, "-o", "json", "agent", "status").stdout)["agent"]
    return (agent["software"], agent["supervisor"]["software"]) if agent else ("", "")


def test_what_was_installed_runs_with_few_rights_and_starts_with_the_machine(machine: Machine) -> None:
    for unit, user in ((AGENT, "grid-agent"), (COORDINATOR, "grid-coordinator")):
        assert machine.told("systemctl", "is-active", unit).strip() == "active"
        assert machine.told("systemctl", "is-enabled", unit).strip() == "enabled"
        status = machine.told("cat", f"/proc/{machine.shown(unit, 'MainPID')}/status")
        assert re.search(r"^CapEff:\s+0+$", status, re.M), status
        owner = machine.told("ps", "-o", "user:32=", "-p", machine.shown(unit, "MainPID"))
        assert owner.strip() == user


def test_an_agent_and_its_jobs_stand_back_for_users_sessions_and_other_services(machine: Machine) -> None:
    assert (machine.shown(AGENT, "ControlGroup"), machine.shown(AGENT, "CPUWeight")) == (f"/{AGENT}", "10")
    assert machine.shown(COORDINATOR, "ControlGroup") == f"/system.slice/{COORDINATOR}"


def test_installing_again_changes_nothing_and_other_options_start_it_anew(machine: Machine) -> None:
    before = pid(machine)
    again = json.loads(machine.grid("-o", "json", "agent", "install", *NODE, "--join", INVITATION))
    assert (again["changed"], again["started"], pid(machine)) == (False, False, before)
    other = ("agent", "install", *NODE, "--label", "room=b")
    changed = json.loads(machine.grid("-o", "json", *other))
    assert (changed["changed"], changed["started"]) == (True, True)
    assert pid(machine) != before
    machine.until(lambda: node(machine).get("labels") == {"room": "b"}, "the node has its label")


def test_no_secret_is_in_the_unit_or_the_log_and_no_job_can_read_the_nodes_key(machine: Machine) -> None:
    secret = machine.told("cat", INVITATION).strip().rpartition(".")[2]
    assert secret not in machine.told("cat", f"/etc/systemd/system/{AGENT}") + machine.journal()
    key = "/var/lib/grid/agent-n1/identity/own.key"
    assert machine.told("stat", "--format=%a %U", key).strip() == "600 grid-agent"
    read = machine.run(GRID, "run-shared", "--no-ship", "cat", key)
    assert (read.returncode, read.stdout) == (1, "") and "Permission denied" in read.stderr


def test_a_job_has_a_user_of_its_own_that_has_no_rights(machine: Machine) -> None:
    assert node(machine)["walls"] == "user"
    uid, *rights = machine.grid("run-shared", "--no-ship", "sh", "-c", LOOKS).split()
    assert accounts.is_slot_uid(int(uid)) and rights == ["0000000000000000", "1"]


def test_a_job_has_a_name_that_the_machine_does_not_know(machine: Machine) -> None:
    assert node(machine)["nameless"] == ""
    # Root is who submits here, and no job is called so.
    done = machine.grid(
        "run-shared", "--no-ship", "sh", "-c", "whoami; id -gn; echo $USER; getent passwd $(id -u); id -u"
    )
    *names, entry, uid = done.splitlines()
    assert names == ["job", "job", "job"]
    fields = entry.replace(" ", "").split(":")
    assert fields[:5] == ["job", "x", uid, uid, "job"] and fields[5].startswith("/var/lib/grid/agent-n1/jobs/")
    assert machine.run("getent", "passwd", uid).returncode == 2
    assert "job:" not in machine.told("cat", "/etc/passwd")
    written = machine.run(GRID, "run-shared", "--no-ship", "sh", "-c", "echo x >>/etc/passwd || rm -f /etc/passwd")
    assert written.returncode != 0 and "ermission denied" in written.stderr + written.stdout


def test_a_job_logs_in_elsewhere_by_ssh(machine: Machine) -> None:
    sshd = machine.run("which", "sshd").stdout.strip()
    if not sshd:
        pytest.skip("needs sshd (Debian: openssh-server)")
    machine.told("mkdir", "-p", "/run/sshd", "/run/keys")
    for what in ("host", "user"):
        machine.told("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"/run/keys/{what}")
    settings = ("ListenAddress=127.0.0.1:2022", "HostKey=/run/keys/host", "AuthorizedKeysFile=/run/keys/user.pub",
                "UsePAM=no", "StrictModes=no", "PidFile=none")  # fmt: skip
    options = [word for setting in settings for word in ("-o", setting)]
    machine.told("systemd-run", "--unit", "test-sshd", sshd, "-D", "-e", "-f", "none", *options)
    log = ("journalctl", "--unit", "test-sshd", "--no-pager", "--output", "cat")
    machine.until(lambda: "listening" in machine.told(*log), "sshd listens")
    key = machine.told("cat", "/run/keys/user")
    known = "[127.0.0.1]:2022 " + " ".join(machine.told("cat", "/run/keys/host.pub").split()[:2])
    script = (
        f"umask 077; mkdir -p ~/.ssh; printf '%s' '{key}' >~/.ssh/id_ed25519; echo '{known}' >~/.ssh/known_hosts;"
        " ssh -o BatchMode=yes -p 2022 root@127.0.0.1 'id -u; echo there'"
    )
    assert machine.grid("run-shared", "--no-ship", "sh", "-c", script) == "0\nthere\n"
    machine.told("systemctl", "stop", "test-sshd")


def test_a_service_of_ones_own_runs_without_rights_and_without_a_login(machine: Machine) -> None:
    machine.told("useradd", "--create-home", "gridtest")
    if machine.run("loginctl", "enable-linger", "gridtest").returncode != 0:
        pytest.skip("needs systemd-logind and libpam-systemd")
    bus = f"/run/user/{machine.told('id', '-u', 'gridtest').strip()}/bus"
    machine.until(lambda: machine.run("test", "-S", bus).returncode == 0, "their own systemd runs")
    mine = ("agent", "install", "--user", "--name", "n2", "--virtual", "--coordinator", "ws://127.0.0.1:9")
    done = machine.run("su", "gridtest", "--login", "--command", " ".join((GRID, *mine)))
    assert done.returncode == 0, done.stderr
    assert "as gridtest" in done.stdout and "linger" not in done.stderr
    told = machine.run("su", "gridtest", "--login", "--command", f"{GRID} agent status --user")
    assert "active (running)" in told.stdout and "node       n2" in told.stdout
    gone = machine.run("su", "gridtest", "--login", "--command", f"{GRID} agent uninstall --user --purge")
    assert gone.returncode == 0, gone.stderr
    left = ("pgrep", "--full", "--uid", "gridtest", "supervisor/main.py")
    machine.until(lambda: machine.run(*left).returncode == 1, "its supervisor has left")


def test_a_service_that_does_not_start_says_why_and_leaves_what_was(machine: Machine) -> None:
    unit = f"/etc/systemd/system/{AGENT}"
    before = machine.told("cat", unit)
    done = machine.run(GRID, "agent", "install", "--name", "n1", "--cores", "4000")
    assert done.returncode == 1 and "does not start" in done.stderr and "4000" in done.stderr
    assert machine.told("cat", unit) == before
    machine.until(lambda: machine.run("systemctl", "is-active", AGENT).returncode == 0, "it runs as before")


def test_a_job_lives_through_a_restart_a_kill_and_an_upgrade_of_its_agent(
    machine: Machine, wheel: Path, tmp_path: Path
) -> None:
    job, process = begin(machine, "/tmp/end-1")
    machine.told("systemctl", "restart", AGENT)

    before = pid(machine)
    machine.told("systemctl", "kill", "--signal=KILL", "--kill-who=main", AGENT)
    machine.until(lambda: pid(machine) not in (0, before), "systemd has started it again")

    machine.install(another_version(wheel, "0.1.1", tmp_path))
    machine.told("systemctl", "restart", COORDINATOR, AGENT)
    machine.until(lambda: node(machine).get("software") == "0.1.1", "the new version is there")

    assert machine.run("kill", "-0", str(process)).returncode == 0
    # Who watches the job is as old as the job.
    machine.until(lambda: software(machine) == ("0.1.1", "0.1.0"), "the agent is new, and its supervisor is not")
    assert "the supervisor of its jobs is of 0.1.0" in machine.grid("agent", "status")
    machine.told("touch", "/tmp/end-1")
    assert ended(machine, job) == 7
    assert machine.grid("logs", job) == "begun\n"
    machine.until(lambda: software(machine) == ("0.1.1", "0.1.1"), "the supervisor is replaced when its jobs are over")
    assert machine.run(GRID, "run-shared", "--no-ship", "sh", "-c", "exit 3").returncode == 3


@pytest.mark.parametrize("victim", ["supervisor", "fork server"])
def test_a_job_lives_through_the_end_of_those_who_look_after_it(machine: Machine, victim: str) -> None:
    ending = f"/tmp/end-of-{victim.split()[0]}"
    job, process = begin(machine, ending)
    agent, (supervisor, server) = pid(machine), keepers(machine)
    for one in (agent, supervisor):
        status = machine.told("cat", f"/proc/{one}/status", *tasks(machine, one))
        held = re.findall(r"^Cap(?:Inh|Prm|Eff|Amb):\t(\w+)$", status, re.M)
        assert len(held) >= 8 and {int(bits, 16) for bits in held} == {0}
    machine.told("kill", "-KILL", str(supervisor if victim == "supervisor" else server))
    machine.until(lambda: pid(machine) not in (0, agent), "systemd has started an agent with the rights to start them")
    log = machine.told("journalctl", "--unit", AGENT, "--no-pager", "--output", "cat")
    assert "the supervisor of this node's jobs is gone" in log and "Traceback" not in log
    assert machine.run("kill", "-0", str(process)).returncode == 0
    machine.told("touch", ending)
    assert ended(machine, job) == 7
    assert machine.run(GRID, "run-shared", "--no-ship", "sh", "-c", "exit 3").returncode == 3
    assert not {supervisor, server} & {*keepers(machine)}


def keepers(machine: Machine) -> tuple[int, int]:
    """The supervisor and its fork server."""
    oldest = ("pgrep", "--oldest", "--full", "supervisor/main.py")
    supervisor = int(machine.until(lambda: machine.run(*oldest).stdout.strip(), "it runs"))
    for child in machine.told("pgrep", "--parent", str(supervisor)).split():
        status = machine.run("cat", f"/proc/{child}/status").stdout
        if re.search(r"^CapEff:\t0*[1-9a-f]", status, re.M):
            return supervisor, int(child)
    pytest.fail("it has no fork server")


def tasks(machine: Machine, process: int) -> list[str]:
    """What tells of each of its threads."""
    return [f"/proc/{process}/task/{one}/status" for one in machine.told("ls", f"/proc/{process}/task").split()]


def test_a_job_has_a_name_again_after_the_machines_accounts_were_changed(machine: Machine) -> None:
    before = pid(machine)
    machine.told("useradd", "later")
    whoami = ("run-shared", "--no-ship", "sh", "-c", "whoami; getent passwd later | cut -d: -f1")
    machine.grid("run-shared", "--no-ship", "--pids-limit", "77", "true")  # in a slot of its own
    machine.until(lambda: pid(machine) not in (0, before), "agent and supervisor are replaced when no job runs")
    assert machine.grid(*whoami) == "job\nlater\n"


def test_an_agent_that_hangs_is_replaced_and_its_jobs_go_on(machine: Machine) -> None:
    machine.put(f"/run/systemd/system/{AGENT}.d/test.conf", b"[Service]\nWatchdogSec=5\n")
    machine.told("systemctl", "daemon-reload")
    machine.told("systemctl", "restart", AGENT)
    job, process = begin(machine, "/tmp/end-2")
    before = machine.until(lambda: pid(machine), "the agent runs")
    machine.told("kill", "-STOP", str(before))
    machine.until(lambda: pid(machine) not in (0, before), "the watchdog has it started again")
    log = ("journalctl", "--unit", AGENT, "--no-pager", "--output", "cat")
    machine.until(lambda: "Watchdog timeout" in machine.told(*log), "the log says why")
    assert machine.run("kill", "-0", str(process)).returncode == 0
    machine.told("touch", "/tmp/end-2")
    assert ended(machine, job) == 7


def test_the_status_of_a_service_that_fails_says_why(machine: Machine) -> None:
    record, aside = "/var/lib/grid/coordinator/pki/identities.db", "/run/identities.db"
    machine.told("systemctl", "stop", COORDINATOR)
    machine.told("mv", record, aside)
    assert machine.run("systemctl", "start", COORDINATOR).returncode != 0
    status = machine.run(GRID, "coordinator", "status")
    machine.told("mv", aside, record)
    machine.told("systemctl", "start", COORDINATOR)
    assert status.returncode == 3 and f"{record} is missing" in status.stdout, status.stdout + status.stderr
    machine.until(lambda: node(machine).get("state") == "up", "its node is back")


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


def test_uninstalling_leaves_nothing_but_what_was_to_be_kept(machine: Machine) -> None:
    job, process = begin(machine, "/tmp/end-3")
    refused = machine.run(GRID, "agent", "uninstall", "--purge")
    assert refused.returncode == 1 and "jobs run here" in refused.stderr
    machine.grid("agent", "uninstall", "--jobs", "kill", "--purge")
    machine.until(lambda: machine.run("kill", "-0", str(process)).returncode == 1, "the job is ended, and buried")
    show = ("-o", "json", "job", "show", job)
    machine.until(lambda: json.loads(machine.grid(*show))["jobs"][0]["state"] == "waiting", "it is to run again")
    assert machine.run("getent", "passwd", "grid-agent").returncode == 2
    machine.grid("coordinator", "uninstall")
    assert machine.told("ls", "/var/lib/grid").split() == ["coordinator"]
    assert machine.run("getent", "passwd", "grid-coordinator").returncode == 0
    for kind in ("agent", "coordinator"):
        assert machine.run(GRID, kind, "status").returncode == 1
    assert machine.run("test", "-e", "/run/grid-agent.accounts").returncode == 1
    assert machine.shown(AGENT, "LoadState") == machine.shown(COORDINATOR, "LoadState") == "not-found"
    ours = "distributed_grid|bin/grid "
    machine.until(lambda: machine.run("pgrep", "-f", ours).returncode == 1, "no process is left")
    assert machine.run("systemctl", "--failed", "--quiet").stdout == ""


def test_a_purge_asks_first_and_leaves_no_state_and_no_user_that_was_made(machine: Machine) -> None:
    machine.told("useradd", "--system", "somebody")
    machine.grid("coordinator", "install")
    machine.grid("agent", "install", *NODE, "--as", "somebody")
    refused = machine.run(GRID, "coordinator", "uninstall", "--purge")
    assert refused.returncode == 1 and "try: grid coordinator uninstall --purge --yes" in refused.stderr
    machine.grid("agent", "uninstall", "--jobs", "kill", "--purge")
    machine.grid("coordinator", "uninstall", "--purge", "--yes")
    users = [line.split(":")[0] for line in machine.told("getent", "passwd").splitlines()]
    assert "somebody" in users and not [one for one in users if one.startswith("grid-")]
    assert machine.run("test", "-e", "/var/lib/grid").returncode == 1
    assert json.loads(machine.grid("-o", "json", "context", "list"))["contexts"] == []  # root founded that grid
