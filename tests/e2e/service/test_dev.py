"""`grid dev`: a whole grid on this machine, up in seconds, mended by a second `up`, and gone without a trace."""

import itertools
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.cli.dev import processes as dev_processes
from tests import forked
from tests.e2e.reliability.test_disk import mounted
from tests.grid_fixture import GRID, reserved_port, until
from tests.people import as_user, lacking


class Dev:
    """Drives `grid dev` in a directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home / "dev"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
        self.environment["XDG_CONFIG_HOME"] = str(home / "config")

    def grid(self, *words: str) -> subprocess.CompletedProcess[str]:
        if forked.can(words, self.environment):
            return forked.with_text(forked.grid(words, self.environment, self.home.parent, 100))
        return subprocess.run(
            [*GRID, *words], env=self.environment, cwd=self.home.parent, capture_output=True, text=True, timeout=100
        )

    def up(self, *flags: str) -> subprocess.CompletedProcess[str]:
        # A loaded test machine must not look busy to it.
        done = self.grid("dev", "up", "--dir", str(self.home), "--cpu-percent-max", "100", *flags)
        if done.returncode == 0:
            self.environment["GRID_COORDINATOR"] = self.url
        return done

    @property
    def url(self) -> str:
        return f"unix://{self.home}/coordinator/coordinator.sock"

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.grid("dev", "down", "--dir", str(self.home))

    def json(self, *words: str) -> Any:
        return json.loads(self.grid("-o", "json", *words).stdout)

    def processes(self) -> dict[str, dev_processes.Process]:
        found = {}
        for name in ("coordinator.pid", "agent.pid", "supervisor.pid"):
            for path in self.home.glob(f"*/{name}"):
                if (process := dev_processes.read(path)) is not None:
                    found[f"{path.parent.name}/{name}"] = process
        return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    made = Dev(tmp_path)
    yield made
    made.down()


SEES = os.geteuid() == 0
"""Whether we see who listens where: the services hide their files in /proc from all but root."""


def listens(processes: dict[str, dev_processes.Process]) -> list[int]:
    """The ports that these processes listen on, as `lsof` finds them."""
    sockets = set()
    for process in processes.values():
        for fd in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(os.readlink(fd))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    own = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [int(address.rpartition(":")[2], 16) for address in own]


def test_up_gives_nodes_that_offer_without_a_port_and_down_leaves_nothing(dev: Dev) -> None:
    done = dev.up("--nodes", "3", "--fake-gpus", "2")
    assert done.returncode == 0, done.stderr
    assert "stand-in GPU (no real device)" in done.stdout and "cpu_percent_max 100" in done.stdout
    assert f"GRID_COORDINATOR={dev.url}" in done.stdout  # not in the default directory, so the way there is said
    assert len(dev.processes()) == 7
    assert not SEES or listens(dev.processes()) == [], "no port was asked for"
    nodes = {node["name"]: node for node in dev.json("nodes")["nodes"]}
    assert {name: len(node["gpus"]) for name, node in nodes.items()} == {"node1": 1, "node2": 1, "node3": 0}
    assert all(gpu["stand_in"] for node in nodes.values() for gpu in node["gpus"])
    few = len(os.sched_getaffinity(0)) < 3
    assert all(node["virtual"] == few for node in nodes.values())
    script = "echo $CUDA_VISIBLE_DEVICES"
    shown = dev.grid("run-shared", "-t", "gpu", "-a", "1", "--no-ship", "sh", "-c", script)
    assert shown.stdout.strip() in [gpu["uuid"] for node in nodes.values() for gpu in node["gpus"]]
    before = dev.processes()
    assert dev.down().returncode == 0
    assert not any(process.alive for process in before.values())


def test_it_listens_on_the_port_that_is_asked_for_and_comes_back_there(dev: Dev) -> None:
    done = dev.up("--nodes", "1", "--port", "0")
    assert done.returncode == 0, done.stderr
    port = int(done.stdout.partition("ws://127.0.0.1:")[2].split()[0])
    assert not SEES or listens(dev.processes()) == [port]
    assert dev.json("nodes", "--coordinator", f"ws://127.0.0.1:{port}")["nodes"][0]["name"] == "node1"
    coordinator = dev.processes()["coordinator/coordinator.pid"]
    coordinator.send(signal.SIGKILL)
    assert coordinator.wait(60)
    with reserved_port(port):  # nobody else gets it meanwhile
        assert dev.up("--nodes", "1", "--port", "0").returncode == 0
    nodes = dev.json("nodes", "--coordinator", f"ws://127.0.0.1:{port}")["nodes"]
    assert [node["name"] for node in nodes] == ["node1"], "it comes back where it was"
    assert not SEES or listens(dev.processes()) == [port]


def test_a_directory_that_others_can_write_to_is_refused(dev: Dev) -> None:
    dev.home.mkdir()
    dev.home.chmod(0o777)
    done = dev.up("--nodes", "1")
    assert done.returncode == 1 and "other users can write to it" in done.stderr
    assert not any(dev.home.iterdir())


@pytest.mark.root
def test_a_coordinator_that_takes_no_jobs_for_want_of_disk_is_told(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=16m", "none") as disk:
        dev = Dev(disk)
        try:
            done = dev.up("--nodes", "1")
            assert done.returncode == 0, done.stderr
            assert "no new jobs are taken" in done.stderr and "20 MiB are needed" in done.stderr
        finally:
            dev.down()


def nameless() -> Iterator[int]:
    """User ids that this machine has no name for."""
    named = {user.pw_uid for user in pwd.getpwall()}
    return (uid for uid in itertools.count(1001) if uid not in named)


class Person(Dev):
    """Somebody else of this machine, with a home of their own."""

    def __init__(self, home: Path, uid: int) -> None:
        super().__init__(home)
        self.uid = uid
        self.become = as_user(uid, home.parent)
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        self.home = home / "state/grid/dev"
        self.environment |= {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}

    def grid(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self.become, *GRID, *words]
        return subprocess.run(
            command, env=self.environment, cwd=self.environment["HOME"], capture_output=True, text=True, timeout=100
        )

    def up(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return self.grid("dev", "up", "--nodes", "1", "--cpu-percent-max", "100", *flags)

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.grid("dev", "down")


@pytest.fixture
def people() -> Iterator[list[Person]]:
    if why := lacking():
        pytest.skip(why)
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    two = [Person(place / name, uid) for name, uid in zip(("ann", "bob"), nameless(), strict=False)]
    try:
        yield two
    finally:
        for person in two:
            person.down()
        shutil.rmtree(place)


def test_the_dev_grids_of_two_users_live_side_by_side_and_each_is_its_users_alone(people: list[Person]) -> None:
    ann, bob = people
    for person, flags in ((ann, ("--port", "0")), (bob, ())):
        done = person.up(*flags)
        assert done.returncode == 0, done.stderr
        assert "export" not in done.stdout, "it is found without a word"
    for person in people:
        ran = person.grid("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "sh", "-c", "id -u")
        assert ran.returncode == 0, ran.stderr
        assert [job["user"] for job in person.json("jobs", "--all")["jobs"]] == [f"uid-{person.uid}"]
    other = bob.grid("status", "--coordinator", ann.url)
    assert other.returncode == 1 and "you may not open it" in other.stderr
    gets_nothing_unless_trusted(ann, bob)


def gets_nothing_unless_trusted(ann: Person, bob: Person) -> None:
    """A coordinator on a port that another user runs."""
    url = f"ws://127.0.0.1:{json.loads((ann.home / 'dev.json').read_text())['port']}"
    before = ann.json("jobs", "--all")["jobs"]
    refused = bob.grid("run-shared", "--coordinator", url, "-t", "cpu", "-a", "1", "true")
    assert refused.returncode == 125
    assert f"the coordinator at {url} is another user's" in refused.stderr
    assert ann.json("jobs", "--all")["jobs"] == before
    bob.environment["GRID_COORDINATOR__USER"] = str(ann.uid)
    drained = bob.grid("node", "drain", "node1", "--coordinator", url)
    assert drained.returncode == 1 and "operator" in drained.stderr, "who is let in is no operator"


def _named(word: str) -> list[int]:
    """The processes with this as their last argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().endswith(f"\0{word}\0".encode()):
                found.append(int(path.parent.name))
    return found


def test_another_shape_needs_down_first_which_ends_running_jobs_and_their_daemons(dev: Dev) -> None:
    assert dev.up("--nodes", "1").returncode == 0
    other = dev.up("--nodes", "2")
    assert other.returncode == 1
    assert "--nodes 2" in other.stderr and "grid dev down first" in other.stderr
    word = f"down-{os.getpid()}"
    marker = dev.home.parent / "started"
    script = (
        f"trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$ > {marker}.new; mv {marker}.new {marker};"
        f" while :; do sleep 0.1; done' {word} &); "
        "while :; do sleep 0.1; done"
    )
    assert dev.grid("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "-d", "sh", "-c", script).returncode == 0
    until(marker.exists, "the job's daemon runs")
    assert _named(word), "the daemon is found by its name: its pid is one of its own namespace"
    assert dev.down().returncode == 0
    assert _named(word) == []


def test_up_again_starts_only_what_has_died_and_jobs_run_on(dev: Dev) -> None:
    assert dev.up("--nodes", "2").returncode == 0
    cores_are_dealt_out(dev)
    script = "while [ ! -e gate ]; do sleep 0.05; done; exit 5"
    ident = dev.grid(
        "run-shared", "-t", "cpu", "-a", "1", "--no-ship", "-d", "--workdir", str(dev.home.parent), "sh", "-c", script
    ).stdout.strip()
    until(lambda: dev.json("job", "show", ident)["jobs"][0]["state"] == "running", "it runs")
    before = dev.processes()
    for name in ("coordinator/coordinator.pid", "node1/agent.pid"):
        before[name].send(signal.SIGKILL)
        assert before[name].wait(60)
    done = dev.up("--nodes", "2")
    assert done.returncode == 0, done.stderr
    after = dev.processes()
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"coordinator/coordinator.pid", "node1/agent.pid"}
    (dev.home.parent / "gate").touch()
    assert dev.grid("job", "wait", ident).returncode == 5


def cores_are_dealt_out(dev: Dev) -> None:
    """To two nodes, each core once where there are enough."""
    machine = sorted(os.sched_getaffinity(0))
    nodes = dev.json("nodes")["nodes"]
    assert len(nodes) == 2 and all(node["virtual"] == (len(machine) < 2) for node in nodes)
    assert len(machine) < 2 or sorted(core for node in nodes for core in node["cores"]) == machine


def test_two_that_come_up_at_once_start_one_grid(dev: Dev) -> None:
    words = [*GRID, "-o", "quiet", "dev", "up", "--dir", str(dev.home), "--nodes", "2", "--cpu-percent-max", "100"]
    dev.home.parent.mkdir(exist_ok=True)
    both = [
        subprocess.Popen(words, env=dev.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [one.communicate(timeout=100) for one in both]
    assert said == [(f"{dev.url}\n", "")] * 2 and [one.returncode for one in both] == [0, 0]
    assert dev.down().stderr.startswith("grid: ended 5 processes")


@pytest.mark.parametrize("name", ["coordinator", "node1"])
def test_what_an_interrupted_up_has_started_is_ended_although_it_has_no_pid_file_yet(dev: Dev, name: str) -> None:
    words = [*GRID, "dev", "up", "--dir", str(dev.home), "--nodes", "1", "--cpu-percent-max", "100"]
    begun = subprocess.Popen(words, env=dev.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def coming() -> dev_processes.Process | None:
        for about in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                line, pid = about.read_bytes(), int(about.parent.name)
                began = int((about.parent / "stat").read_text().rpartition(")")[2].split()[19])
                if f"--state-dir\0{dev.home}/{name}\0".encode() in line:
                    return dev_processes.Process(pid, began)
        return None

    service = until(coming, f"{name} is started")
    service.send(signal.SIGSTOP)
    begun.send_signal(signal.SIGINT)
    assert begun.wait(60) == 130 and service.alive
    ended = dev.down()
    assert not service.alive, ended.stderr
    assert not dev.processes()


def test_a_node_that_ends_at_once_is_told_of_at_once_with_what_it_said(dev: Dev) -> None:
    (dev.home / "node2").mkdir(parents=True)
    (dev.home / "node2" / "agent.sock").mkdir()  # nobody can listen there
    done = dev.up("--nodes", "2")
    assert done.returncode == 1
    assert "node2 did not start" in done.stderr and "agent.sock" in done.stderr


def test_a_stranger_with_a_recorded_pid_is_left_alone(dev: Dev) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (dev.home / "node1").mkdir(parents=True)
        (dev.home / "dev.json").write_text("{}")
        (dev.home / "node1" / "agent.pid").write_text(json.dumps({"pid": stranger.pid, "start": 1}))
        assert dev.down().returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
