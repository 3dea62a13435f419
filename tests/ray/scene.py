"""A Ray cluster with a grid around it: its head on one host, a node of the grid on another, each with an address of its
own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import CONFIG, Grid, until
from tests.network import MASTER, NODE, two_hosts

PORT = 6399
HEAD = f"{MASTER}:{PORT}"
START = (
    "start", "--head", "--block", f"--port={PORT}", f"--node-ip-address={MASTER}", "--node-name=gpu-master",
    "--num-cpus=1", "--num-gpus=0",
    "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000", "--memory=500000000",
    "--include-log-monitor=false", "--no-monitor",  # a second of a core each, and more as long as they run
)  # fmt: skip
ROOT = Path(__file__).parents[2]
CORES = sorted(os.sched_getaffinity(0))[:2]
BOOSTS = CONFIG.replace("resource_sharing:\n", "resource_sharing:\n  mode: share_and_offload\n")
"""Boosts are lent to who requests them, and by nobody else."""
QUIET = """
mount -t tmpfs none /proc/pressure
cat /proc/stat > /proc/pressure/stat
mount --bind /proc/pressure/stat /proc/stat
exec "$@"
"""
"""Starts a command that sees a machine on which nobody computes, or waits for anything."""
NODE_CONFIG = CONFIG + f"  cores: {CORES[0]}-{CORES[-1]}\n"
BY_NVML = "  gpu_backend: nvml\n"
"""For a node whose GPUs are stand-ins: there is no driver whose library would be found."""
JOINED = f"import json, ray\nray.init(address='{HEAD}', logging_level='error', log_to_driver=False)\n"
AS_GRID = JOINED.replace("'error',", "'error', namespace='grid',")
"""As the coordinator, whose placement groups have their names there."""
APART = """
import os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray writes there what it wants to be known
"""
LOOKS = """
import threading
from ray.util import placement_group_table
def groups():
    nodes = {node["NodeID"]: node["Labels"].get("grid-node", "") for node in ray.nodes()}
    there = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
    return {one["name"]: [one["state"], nodes.get(one["bundles_to_node_id"][0])] for one in there}
def boosts():
    return [node["Labels"]["grid-boost"] for node in ray.nodes() if node["Alive"] and "grid-boost" in node["Labels"]]
at = {"groups": groups, "boosts": boosts, "resources": ray.cluster_resources, "free": ray.available_resources}
class Aside(threading.Thread):
    def __init__(self, code):
        super().__init__(daemon=True)
        self.code, self.go, self.printed, self.error = code, threading.Event(), [], None
        self.start()
    def run(self):
        show = lambda *words: self.printed.append(" ".join(map(str, words)))
        try:
            exec(self.code, {"__name__": "__main__", "json": json, "ray": ray, "print": show, "go": self.go})
        except Exception as error:
            self.error = repr(error)
    def told(self):
        return None if self.is_alive() else {"printed": self.printed} if self.error is None else {"error": self.error}
aside = []
for line in sys.stdin:
    word, *more = json.loads(line)
    if word in at:
        answer = at[word]()
    elif word == "begin":
        aside.append(Aside(*more))
        answer = len(aside) - 1
    elif word == "go":
        answer = aside[more[0]].go.set()
    elif word == "told":
        answer = aside[more[0]].told()
    else:
        here = Aside(word)
        here.join()
        answer = here.told()
    print(json.dumps(answer), file=answers, flush=True)
"""
"""A program in the grid's namespace that looks at the cluster, or runs code in it, whenever it is told to: to begin one
each time takes two seconds of a core, with the worker that Ray starts for it."""
WHERE = """
@ray.remote
def where(seconds=0.0):
    import os, time
    time.sleep(seconds)
    node = ray.get_runtime_context().get_node_id()
    return node, sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES")
"""


NO_WORKERS = {"RAY_prestart_worker_first_driver": "0"}
"""For raylets that are to start a worker for a task, and not one for each core when the first program comes."""

OPEN: list["Cluster"] = []
"""Those there are now."""


class Aside:
    """Code that runs in a program of the cluster while the test goes on."""

    def __init__(self, cluster: "Cluster", code: str) -> None:
        self._cluster = cluster
        self._number: int = cluster._look("begin", code)

    def go(self) -> None:
        """Let it go on from its `go.wait()`."""
        self._cluster._look("go", self._number)

    def printed(self, seconds: float = 60.0) -> list[str]:
        """The lines that it has printed, once it has ended."""
        told = until(lambda: self._cluster._look("told", self._number), "the program has ended", seconds)
        assert "printed" in told, told["error"]
        found: list[str] = told["printed"]
        return found


class Cluster:
    """A Ray head on the master, and the grid around it."""

    def __init__(self, master: Grid, node: Grid, place: Path, token: Path | None = None, keeps: bool = False) -> None:
        self.master = master
        self.node = node
        self.place = place
        self.folder = short_folder()
        self.beside = Path()
        """Where the raylet of `a_raylet` has its sockets."""
        self._enter = master.command[:-3]
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)} if token else {"RAY_AUTH_MODE": "disabled"}
        # Ray asks each node so often; five times in vain, and it is gone. With 3000, as it is, a killed one stays 16 s.
        self.environment = master.environment | auth | NO_WORKERS
        self.environment |= {"HOME": str(place), "RAY_health_check_period_ms": "500"}
        self.environment["RAY_raylet_start_wait_time_s"] = "60"  # its own 30 s are too few beside other tests
        self._looks: subprocess.Popen[str] | None = None
        self._looking = threading.Lock()
        self._kept: dict[str, str] = {}
        """The boosts that tests share, by what they are of."""
        self.start_head(place / "kept" if keeps else None)
        OPEN.append(self)

    def start_head(self, kept: Path | None = None) -> None:
        """Start it, with a memory that outlives it in the folder `kept`, or with none."""
        remembers = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(kept)} if kept is not None else {}
        ray = str(Path(sys.executable).with_name("ray"))
        with (self.place / "head.log").open("ab") as log:
            command = [*self._enter, ray, *START, f"--temp-dir={self.folder}"]
            self.head = subprocess.Popen(command, env=self.environment | remembers, stdout=log, stderr=log)
        until(lambda: self.lent() is not None, "the head answers", 60.0)
        until(self._has_node, "the head has a node of its own", 60.0)
        until(self._can_look, "a program of the cluster runs", 60.0)

    def kill_head(self) -> None:
        """Kill all of it with -9."""
        self.look_no_more()
        doomed = [pid for pid in processes() if f"{self.folder}/" in command_of(pid)]
        for pid in [*doomed, self.head.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.head.wait(60.0)
        # With it there, and a raylet of this cluster on the same machine, Ray would not start another head.
        (self.folder / "ray_current_cluster").unlink(missing_ok=True)

    def kill_bridges(self) -> None:
        """Kill the processes with which this cluster's coordinator asks Ray, with -9."""
        for bridge in self.master.processes_with("distributed_grid.coordinator.ray.bridge"):
            with suppress(ProcessLookupError):
                os.kill(bridge, signal.SIGKILL)

    def lent(self) -> list[dict[str, Any]] | None:
        """What `boost status` shows of boosts; None: Ray is not there."""
        answer = self.master.json("boost", "status", timeout=60.0)
        return None if answer["trouble"] else answer["boosts"]

    def compute(self, code: str) -> Any:
        """What code prints last, as JSON, that runs in the program of the cluster that looks at it. It is to leave
        nothing there."""
        answer = self._look(code)
        assert "printed" in answer, answer["error"]
        return json.loads(answer["printed"][-1])

    def aside(self, code: str) -> "Aside":
        """Run code in the program of the cluster that looks at it, not waited for. It is to leave nothing there."""
        return Aside(self, code)

    def drive(self, code: str) -> Any:
        """What a program of the cluster prints last, as JSON; Ray prints its own warnings to stdout, too."""
        done = self.python(JOINED + code)
        assert done.returncode == 0, done.stderr[-3000:]
        for line in reversed(done.stdout.splitlines()):
            with contextlib.suppress(ValueError):
                return json.loads(line)
        raise AssertionError(f"it printed no JSON: {done.stdout[-3000:]}")

    def resources(self) -> dict[str, float]:
        """What the cluster has in all, for a program of it."""
        found: dict[str, float] = self._look("resources")
        return found

    def free(self) -> dict[str, float]:
        """What of it nobody uses or has reserved."""
        found: dict[str, float] = self._look("free")
        return found

    def groups(self) -> dict[str, list[str]]:
        """The placement groups there are: the state of each, and on which node of ours."""
        found: dict[str, list[str]] = self._look("groups")
        return found

    def raylets(self) -> list[str]:
        """The boosts whose raylets Ray shows."""
        found: list[str] = self._look("boosts")
        return found

    def _look(self, *at: str | int) -> Any:
        with self._looking:
            if self._looks is None:
                command = [*self._enter, sys.executable, "-c", APART + AS_GRID + LOOKS]
                pipe = subprocess.PIPE
                self._looks = subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, text=True)
            asked, answers = self._looks.stdin, self._looks.stdout
            assert asked is not None and answers is not None
            print(json.dumps(at), file=asked, flush=True)
            told = answers.readline()
        assert told, "the program that looks at the cluster has ended"
        return json.loads(told)

    def _has_node(self) -> bool:
        """Before, each program that is to look would start in vain, and take a second of the cores that Ray wants."""
        told = self.master.json("cluster", "status")["ray"]
        return any(node["name"] == "gpu-master" for node in told["nodes"])

    def _can_look(self) -> bool:
        with suppress(AssertionError, OSError):
            self._look("resources")
            return True
        self.look_no_more()
        return False

    def look_no_more(self) -> None:
        """End the program that looks at the cluster: without a head it would keep a core busy."""
        if self._looks is not None:
            self._looks.kill()
            self._looks.communicate()
            self._looks = None

    def begin(self, code: str) -> subprocess.Popen[str]:
        """A program of the cluster, not waited for."""
        command = [*self._enter, sys.executable, "-c", JOINED + code]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        """A program on the head's host, where RAY_ADDRESS says where the cluster is."""
        command = [*self._enter, sys.executable, "-c", code]
        environment = self.environment | {"RAY_ADDRESS": HEAD}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)

    def offered(self) -> float:
        """Cores that the node offers."""
        return sum(float(offer["offered"]["cpu"]) for offer in self.master.json("shared-status")["offers"])

    def left_alone(self) -> list[str]:
        """The nodes to which no boost goes for now, since a raylet did not join from there."""
        nodes = self.master.json("cluster", "status")["nodes"]
        return [one["name"] for one in nodes if any("boosts for" in why["what"] for why in one["withheld"])]

    def boost(self, *words: str) -> str:
        """Request one; its id."""
        done = self.master.run("boost", "request", "gpu-master", *words, timeout=120.0)
        assert done.returncode == 0, done.stderr + self.master.log("coordinator")
        return done.stdout.strip()

    def keep(self, *words: str, kind: str = "cpu") -> str:
        """A boost of one core, or one of another kind, for all tests that leave it as it is, requested so if there is
        none; its id."""
        if kind not in self._kept or self.master.job(self._kept[kind])["state"] != "running":
            self._kept[kind] = self.boost(kind, "1", *words)
        return self._kept[kind]

    def adopt(self, boost: str) -> None:
        """Keep this boost of one core, which a test has requested and does not need any more; none is kept now."""
        assert "cpu" not in self._kept or self.master.job(self._kept["cpu"])["state"] == "ended"
        self._kept["cpu"] = boost

    def keep_only(self, *kinds: str) -> None:
        """Release the boosts that were kept, but for those of these kinds."""
        for kind in self._kept.keys() - set(kinds):
            boost = self._kept.pop(kind)
            if self.master.job(boost)["state"] != "ended":
                self.release(boost)

    def release(self, boost: str) -> None:
        """Release it, and wait for its end, also in Ray."""
        assert self.master.run("boost", "release", boost).returncode == 0
        assert self.master.run("job", "wait", boost, timeout=60.0).returncode is not None
        until(lambda: boost not in self.raylets(), "Ray has seen it end", 60.0)

    def close(self) -> None:
        OPEN.remove(self)
        self.look_no_more()
        self.head.terminate()
        self.head.wait(60.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def forgive() -> None:
    """Boosts may go again to each node, whatever has failed there: the agent of one that they leave alone is started
    anew."""
    for cluster in OPEN:
        with suppress(Exception, pytest.fail.Exception):  # what is not as it was left belongs to the test that failed
            for name in cluster.left_alone():
                cluster.node.kill(name)
                cluster.node.start_agent(name)
            until(lambda: not cluster.left_alone(), "boosts may go everywhere")  # noqa: B023


def short_folder() -> Path:
    """A new one for Ray, which makes sockets deep below it: their paths may have 107 bytes, and those of the tests'
    own folders grow with each run."""
    return Path(tempfile.mkdtemp(prefix="gr", dir="/tmp"))


def command_of(pid: int) -> str:
    """Its command line; empty: it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def of_allocation(allocation: str) -> dict[int, str]:
    """All processes that were started for it, whatever became of them since, with their command lines."""
    word = f"GRID_ALLOCATION_ID={allocation}".encode()
    found = {}
    for pid in processes():
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = command_of(pid)
    return found


def lean_ray(place: Path) -> str:
    """What an agent's configuration says so that its raylets have no process that brings what tasks print to their
    program, which no test looks at, and no workers before there is a task: each process takes a second of a core to
    start. Nothing where the path of the interpreter is none for a first line."""
    if " " in sys.executable or len(sys.executable) > 120:
        return ""
    place.mkdir(parents=True, exist_ok=True)
    ray = place / "ray"
    lines = (
        f"#!{sys.executable}",
        "import os, sys",
        "from ray.scripts.scripts import main",
        f"os.environ |= {NO_WORKERS}",
        'sys.argv.append("--include-log-monitor=false")',
        "main()",
    )
    ray.write_text("\n".join(lines) + "\n")
    ray.chmod(0o755)
    return f"  ray: '{ray}'\n"


@contextmanager
def a_cluster(place: Path, nice: int = 0) -> Iterator[Cluster]:
    """One of your own, for what would spoil it for others. `nice`: the niceness of what its source runs for the
    grid."""
    environment = {"GRID_AGENT__NICE": str(nice)}
    config = BOOSTS + f"ray: {{address: '{HEAD}'}}\nname: gpu-master\n"
    with two_hosts(place, config, NODE_CONFIG + lean_ray(place), environment) as (master, node):
        made = Cluster(master, node, place)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def a_balancing_cluster(place: Path) -> Iterator[Cluster]:
    """One whose grid may rebalance, with passes in short turn, once it is ordered to. Its source has eight virtual
    cores, and sees a quiet machine, however busy this one is."""
    kinds = ("cpu", "memory", "gpu")
    marks = "".join(f"    {kind}_pressure_high: 1.0\n    {kind}_pressure_low: 0.8\n" for kind in kinds)
    more = "  rebalance_interval_seconds: 2\n  policy: aggressive\n"
    config = BOOSTS.replace("  mode:", f"{more}  mode:").replace("  thresholds:\n", f"  thresholds:\n{marks}")
    config += f"ray: {{address: '{HEAD}'}}\nname: gpu-master\n"
    quiet = ("unshare", "--mount", "sh", "-ec", QUIET, "sh")
    source = CONFIG + "  cores: 0-7\n  virtual: true\n" + lean_ray(place)
    with two_hosts(place, config, source, {"GRID_AGENT__NICE": "0"}, quiet) as (master, node):
        made = Cluster(master, node, place)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def a_raylet(cluster: Cluster, place: Path, gpus: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A node of Ray on the host of lab1, with just the cores that lab1 has, and so many GPUs."""
    ports = "dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export"
    words = (
        "start", "--block", f"--address={HEAD}", f"--node-ip-address={NODE}", f"--num-cpus={len(CORES)}",
        f"--num-gpus={gpus}", "--memory=1000000000", "--object-store-memory=80000000", "--labels=grid-node=lab1",
        "--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={(folder := short_folder())}",
        *(f"--{name}-port={9100 + number}" for number, name in enumerate(ports)),
    )  # fmt: skip
    cluster.beside = folder
    ray = str(Path(sys.executable).with_name("ray"))
    pinned = ["taskset", "-c", ",".join(map(str, CORES))]
    with (place / "raylet.log").open("wb") as log:
        command = [*cluster.node.command[:-3], *pinned, ray, *words]
        raylet = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)
    try:
        yield raylet
    finally:
        raylet.send_signal(signal.SIGINT)  # it is not to be drained
        raylet.wait(60.0)
        shutil.rmtree(folder, ignore_errors=True)


TOKEN = "0123456789abcdef" * 4
GPUS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")


def stand_ins(place: Path) -> dict[str, str]:
    """What an agent has in its environment that is to find these GPUs, at the vendor's library (cli/dev/standins)."""
    (place / "gpus.json").write_text(json.dumps([{"uuid": uuid, "memory": 8 << 30} for uuid in GPUS]))
    return {"PYTHONPATH": str(ROOT / "cli/dev/standins/nvml"), "GRID_STANDIN_GPUS": str(place / "gpus.json")}


@contextmanager
def a_placing_cluster(place: Path) -> Iterator[Cluster]:
    """One where Ray reserves what jobs are granted. It has a node of its own on lab1, whose two GPUs are stand-ins."""
    config = BOOSTS + f"ray: {{address: '{HEAD}'}}\nplacement: ray\nname: gpu-master\n"
    with two_hosts(place, config, NODE_CONFIG + BY_NVML, stand_ins(place)) as (master, node):
        made = Cluster(master, node, place)
        try:
            with a_raylet(made, place, len(GPUS)):
                yield made
        finally:
            made.close()


@contextmanager
def a_guarded_cluster(place: Path) -> Iterator[Cluster]:
    """One whose head wants a token, and whose source has two GPUs: stand-ins.
    Master and source have the token in a file each, `master.token` and `node.token`. Its head has a memory that
    outlives it."""
    files = {name: place / f"{name}.token" for name in ("master", "node")}
    for path in files.values():
        path.touch(0o600)
        path.write_text(TOKEN)
    config = BOOSTS + f"ray: {{address: '{HEAD}', auth: token, token: '{files['master']}'}}\nname: gpu-master\n"
    config += "preemption: {min_hold: 0}\n"
    node_config = NODE_CONFIG + lean_ray(place) + BY_NVML + f"  ray_token: '{files['node']}'\n"
    with two_hosts(place, config, node_config, stand_ins(place)) as (master, node):
        made = Cluster(master, node, place, files["master"], keeps=True)
        try:
            yield made
        finally:
            made.close()
