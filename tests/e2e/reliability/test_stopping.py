"""`grid agent status` and `grid agent stop`: what becomes of an agent's jobs when it is ended."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid import __version__
from distributed_grid.cli.dev import processes
from tests.grid_fixture import PATIENCE, Grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A grid with one node, n1, of two virtual cores."""
    grid = Grid(tmp_path_factory.mktemp("stopping"))
    grid.start_coordinator()
    yield grid
    grid.close()


@pytest.fixture
def node(grid: Grid) -> Iterator[Grid]:
    """The same, and its agent runs and offers."""
    if "n1" not in grid.processes or grid.processes["n1"].poll() is not None:
        grid.start_agent("n1", "--virtual", "--cores", "0-1")
    grid.await_offers(1)
    yield grid


def begin(grid: Grid, *flags: str, code: int = 7) -> tuple[str, Path]:
    """Submit a job that runs until a file exists; returns its id and the file."""
    ending = grid.home / f"end-{len(list(grid.home.glob('begun-*')))}"
    begun = ending.with_name(ending.name.replace("end", "begun"))
    script = f"touch {begun}; while [ ! -e {ending} ]; do sleep 0.05; done; exit {code}"
    job = grid.shared("-d", *flags, "sh", "-c", script).stdout.strip()
    until(begun.exists, f"{job} runs{grid.log('n1')}")
    until(lambda: grid.job(job)["state"] == "running", "the agent knows, and has told")
    return job, ending


def offered(grid: Grid) -> int:
    """Return what the coordinator has to lend, in thousandths of a core."""
    return sum(offer["offered"]["cpu"] for offer in grid.json("shared-status")["offers"])


def status(grid: Grid) -> Any:
    done = grid.run("-o", "json", "agent", "status", "--state-dir", str(grid.home / "n1"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["agent"]


def stop(grid: Grid, *words: str) -> str:
    done = grid.run("agent", "stop", "--state-dir", str(grid.home / "n1"), *words)
    assert done.returncode == 0, done.stderr
    assert grid.processes["n1"].wait(PATIENCE) == 0, grid.log("n1")
    return done.stdout


def test_the_status_of_an_agent_says_what_it_does(node: Grid) -> None:
    job, ending = begin(node)
    agent = status(node)
    assert (agent["node"], agent["software"], agent["supervisor"]["software"]) == ("n1", __version__, __version__)
    assert agent["connected_for"] is not None and agent["coordinator"] == node.url
    assert [one["allocation"].startswith(job) for one in agent["jobs"]] == [True]
    told = node.run("agent", "status", "--state-dir", str(node.home / "n1"))
    assert "connected  for" in told.stdout and "jobs       1" in told.stdout
    ending.touch()
    assert node.run("job", "wait", job).returncode == 7


def test_a_status_where_no_agent_runs_says_so(node: Grid) -> None:
    done = node.run("agent", "status", "--state-dir", str(node.home / "nowhere"))
    assert done.returncode == 1 and "no agent runs here" in done.stderr


def test_where_no_agent_ever_was_nothing_is_said_to_be_stopped(grid: Grid) -> None:
    done = grid.run("agent", "stop", "--state-dir", str(grid.home / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "no agent runs on" in done.stderr and "--name or --state-dir" in done.stderr


def test_jobs_run_on_when_the_agent_is_stopped(node: Grid) -> None:
    job, ending = begin(node)
    assert "1 job runs on" in stop(node)
    said = (node.home / "n1.log").read_text().rpartition("to be stopped")[2]
    assert "stopped; jobs go on" in said and "not stopped" not in said and "Traceback" not in said
    ending.touch()
    node.start_agent("n1", "--virtual", "--cores", "0-1")
    assert node.run("job", "wait", job).returncode == 7


def test_draining_waits_for_the_jobs_and_starts_no_other(node: Grid) -> None:
    job, ending = begin(node)
    stopping = node.begin("agent", "stop", "--state-dir", str(node.home / "n1"), "--jobs", "drain")
    assert stopping.stderr is not None and b"waiting for 1 job" in stopping.stderr.readline()
    until(lambda: "the agent is being stopped" in " ".join(status(node)["withheld"]), "it offers nothing")
    until(lambda: offered(node) == 0, "the coordinator knows")
    other = node.shared("--immediate", "true")
    assert other.returncode == 75, other.stderr
    ending.touch()
    assert stopping.wait(PATIENCE) == 0
    assert node.processes["n1"].wait(PATIENCE) == 0
    assert node.run("job", "wait", job).returncode == 7
    supervisor = node.home / "n1" / "supervisor.pid"
    until(lambda: processes.read(supervisor) is None, "the supervisor has left")


def test_who_gives_up_draining_leaves_the_agent_as_it_was(node: Grid) -> None:
    job, ending = begin(node)
    stopping = node.begin("agent", "stop", "--state-dir", str(node.home / "n1"), "--jobs", "drain")
    assert stopping.stderr is not None and stopping.stderr.readline()
    stopping.send_signal(signal.SIGINT)
    assert stopping.wait(PATIENCE) == 130
    node.await_offers(1)
    assert node.shared("true").returncode == 0
    ending.touch()
    assert node.run("job", "wait", job).returncode == 7


def test_jobs_that_are_taken_back_wait_again_unless_they_may_not(node: Grid) -> None:
    again, ending = begin(node)
    never, _ = begin(node, "--no-requeue")
    assert "no job runs here" in stop(node, "--jobs", "kill")
    until(lambda: node.job(again)["state"] == "waiting", "the job waits again")
    until(lambda: node.job(never)["state"] == "ended", "the other one has ended")
    ended = node.job(never)
    assert ended["outcome"]["cause"] == "recalled"
    assert "stops lending" in json.dumps(ended)
    ending.touch()
    node.start_agent("n1", "--virtual", "--cores", "0-1")
    assert node.run("job", "wait", again).returncode == 7


def test_a_deadline_takes_back_what_still_runs_then(node: Grid) -> None:
    job, ending = begin(node)
    assert "no job runs here" in stop(node, "--jobs", "drain", "--deadline", "1")
    until(lambda: node.job(job)["state"] == "waiting", "the job waits again")
    ending.touch()
    node.start_agent("n1", "--virtual", "--cores", "0-1")
    assert node.run("job", "wait", job).returncode == 7


def apart(node: Grid) -> bool:
    """Whether jobs are in another user namespace than this test, as those of an agent that is not root may be."""
    return node.shared("readlink", "/proc/self/ns/user").stdout.strip() != os.readlink("/proc/self/ns/user")


def test_a_job_may_not_order_its_own_node(node: Grid) -> None:
    """Also one whose parents have gone."""
    ask = (
        "import os, socket, sys, time\n"
        "parent = os.getpid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "while os.getppid() == parent: time.sleep(0.01)\n"
        "try:\n"
        "    door, here = socket.socket(socket.AF_UNIX), os.getcwd()\n"
        "    os.chdir(sys.argv[1]); door.connect('agent.sock')\n"
        "    print(door.recv(1000).decode(), flush=True)\n"
        "finally:\n"
        "    open(here + '/said', 'w').close()\n"
    )
    place = str(node.home / "n1")
    assert (node.home / "n1" / "agent.sock").is_socket()
    main = '"$1" -c "$2" "$3"; until [ -e said ]; do sleep 0.05; done'
    done = node.shared("sh", "-c", main, "sh", sys.executable, ask, place)
    refusal = "FileNotFoundError" if apart(node) else "a job may not order its own node"  # there it is hidden
    assert refusal in done.stdout + done.stderr, done
    assert status(node)["withheld"] == [] or node.processes["n1"].poll() is None


def test_a_job_on_the_coordinators_machine_does_not_submit_by_its_socket(node: Grid) -> None:
    """Also one whose parents have gone: it would be its node's service account to the grid, or an operator."""
    address = f"unix://{node.home / 'coordinator' / 'coordinator.sock'}"
    ask = [*node.command, "--coordinator", address, "nodes"]
    assert node.run("--coordinator", address, "nodes").returncode == 0
    refusal = "it is in another user namespace" if apart(node) else "a job may not come in by the coordinator's socket"
    for script in ('"$@"', '(setsid "$@" & ) ; sleep 5'):
        done = node.shared("--no-ship", "--env", f"HOME={node.home}", "sh", "-c", script, "sh", *map(str, ask))
        assert refusal in done.stdout + done.stderr, done


@pytest.mark.parametrize("words", [("--deadline", "5m"), ("--jobs", "keep", "--deadline", "5m")])
def test_a_deadline_without_draining_is_an_error(grid: Grid, words: tuple[str, ...]) -> None:
    done = grid.run("agent", "stop", "--state-dir", str(grid.home / "nowhere"), *words)
    assert done.returncode == 2 and "--deadline goes with --jobs drain" in done.stderr


def test_an_agent_on_a_copy_of_a_state_directory_in_use_is_refused_and_the_original_goes_on(node: Grid) -> None:
    job, ending = begin(node)
    copy = node.home / "copy"
    shutil.copytree(node.home / "n1", copy, ignore=shutil.ignore_patterns("*.sock", ".room"))  # .room comes and goes
    words = ("agent", "run", "--name", "n1", "--state-dir", str(copy), "--virtual", "--cores", "0-1")
    done = node.run(*words)
    assert done.returncode == 1 and "is a copy of the state directory of node 'n1'" in done.stderr, done.stderr
    assert node.processes["n1"].poll() is None and "the coordinator is gone" not in node.log("n1")
    assert node.job(job)["state"] == "running"
    ending.touch()
    assert node.run("job", "wait", job).returncode == 7
