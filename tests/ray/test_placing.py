"""Placement by Ray, with a real one that has a node of its own where lab1 is. The last test ends its head."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, GPUS, HEAD, Cluster, a_placing_cluster, a_raylet, command_of

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

LEFT_BEHIND = """
from ray.util.placement_group import placement_group
group = placement_group([{"CPU": 0.5}], name="grid-job-j-gone.1", lifetime="detached")
assert group.wait(30)
print(json.dumps(1))
"""
TASK = """
import time
from pathlib import Path
@ray.remote(num_cpus=1, label_selector={"grid-node": "lab1"})
def work(number):
    import os
    began = time.monotonic()
    %s
    return began, time.monotonic(), sorted(os.sched_getaffinity(0))
"""
RECORD = """
import json, os, sys, time
began = time.monotonic()
time.sleep(0.5)
with open(sys.argv[1] + "/" + os.environ["GRID_ALLOCATION_ID"], "w") as out:
    json.dump([began, time.monotonic(), sorted(os.sched_getaffinity(0))], out)
"""
JOBS, TASKS = 6, 12


class Held:
    """A job, or a task of Ray's, that goes on until this is let go of."""

    def __init__(self, place: Path) -> None:
        self.path = place / "go"
        self.path.unlink(missing_ok=True)
        self.argv = ("sh", "-c", f"until [ -e {self.path} ]; do sleep 0.1; done")

    def go(self) -> None:
        self.path.touch()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_placing_cluster(Path(tmp_path_factory.mktemp("p", numbered=True))) as made:
        until(lambda: runs(made, "true"), "Ray has a node on lab1", 60.0)
        yield made


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    made.go()


def runs(cluster: Cluster, *argv: str) -> bool:
    return cluster.master.shared("--immediate", *argv).returncode == 0


def submit(cluster: Cluster, *argv: str) -> str:
    done = cluster.master.shared("-d", *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(cluster: Cluster, job: str) -> str:
    return str(cluster.master.job(job)["state"])


def why(cluster: Cluster, job: str) -> str:
    """Why it waits; empty: it does not."""
    return cluster.master.job(job)["reason_text"] or ""


def ends_well(cluster: Cluster, job: str) -> None:
    waited = cluster.master.run("job", "wait", job, timeout=200.0)
    assert waited.returncode == 0, waited.stderr + cluster.master.log("coordinator")


def test_a_job_runs_where_ray_reserved_it_and_the_group_is_there_just_as_long(cluster: Cluster, held: Held) -> None:
    job = submit(cluster, *held.argv)
    until(lambda: state(cluster, job) == "running", "it runs", 60.0)
    assert cluster.groups() == {f"grid-job-{job}.1": ["CREATED", "lab1"]}
    assert any("Ray reserved it on its node" in event["text"] for event in cluster.master.job(job)["events"])
    held.go()
    ends_well(cluster, job)
    until(lambda: cluster.groups() == {}, "nothing is reserved any more", 60.0)


def test_a_job_with_a_gpu_has_the_one_its_agent_chose_and_rays_programs_have_none_there_meanwhile(
    cluster: Cluster, held: Held
) -> None:
    script = f"echo $CUDA_VISIBLE_DEVICES; {held.argv[-1]}"
    done = cluster.master.run("run-shared", "-d", "--no-ship", "--cpus", "1", "--gpus", "1", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    until(lambda: state(cluster, job) == "running", "it runs", 60.0)
    (lent,) = cluster.master.job(job)["grant"]["gpus"]
    assert lent["uuid"] in GPUS and cluster.groups() == {f"grid-job-{job}.1": ["CREATED", "lab1"]}
    until(lambda: "GPU" not in cluster.free(), "Ray has none left to give", 60.0)
    held.go()
    ends_well(cluster, job)
    assert cluster.master.run("logs", job).stdout == lent["uuid"] + "\n"
    until(lambda: cluster.free().get("GPU") == len(GPUS), "Ray has all of them again", 60.0)


def test_where_rays_programs_have_all_a_job_waits_and_says_so_and_starts_when_they_end(
    cluster: Cluster, held: Held
) -> None:
    wait = f"while not Path('{held.path}').exists(): time.sleep(0.05)"
    code = TASK % wait + f"print(len(ray.get([work.remote(number) for number in range({len(CORES)})])))"
    program = cluster.aside(code)
    until(lambda: not runs(cluster, "true"), "Ray's program has all cores", 60.0)

    def refused() -> bool:
        """Before Ray has told what is used there, its refusal of a moment ago is the reason."""
        done = cluster.master.shared("--immediate", "true")
        assert done.returncode == 75, done.stderr
        return "used by Ray's programs; 1 cpu needed" in done.stderr

    until(refused, "it is refused for what Ray's programs use", 60.0)
    job = submit(cluster, "true")
    until(lambda: "lab1 has 2 cpu in Ray, 2 cpu of it used" in why(cluster, job), "it says why it waits", 60.0)
    assert "used by Ray's programs" in cluster.master.run("why", job).stdout
    held.go()
    ends_well(cluster, job)
    assert program.printed() == [str(len(CORES))]


def test_jobs_and_rays_tasks_compete_for_a_node_and_never_use_more_than_its_cores(
    cluster: Cluster, tmp_path: Path
) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    done.mkdir()
    wait = f"Path('{begun}').touch(); time.sleep(1.0)"
    asked = f"ray.get([work.remote(number) for number in range({TASKS})])"
    program = cluster.aside(TASK % wait + f"print(json.dumps({asked}))")
    until(begun.exists, "Ray's tasks are at work", 60.0)
    jobs = submit(cluster, "--array", f"0-{JOBS - 1}", sys.executable, "-c", RECORD, str(done))
    ends_well(cluster, jobs)
    by_ray = json.loads(program.printed(200.0)[-1])
    by_grid = [json.loads(path.read_text()) for path in done.iterdir()]
    assert (len(by_ray), len(by_grid)) == (TASKS, JOBS)
    spans = by_ray + by_grid
    for began, _, _ in spans:
        at_once = [one for one in spans if one[0] <= began < one[1]]
        assert len(at_once) <= len(CORES), at_once
        cores = [core for one in by_grid if one[0] <= began < one[1] for core in one[2]]
        assert len(cores) == len(set(cores)), "each job has a core of its own"
    assert all(set(cores) <= set(CORES) for _, _, cores in spans)
    assert all(len(cores) == 1 for _, _, cores in by_grid)
    until(lambda: cluster.groups() == {}, "nothing is reserved any more", 60.0)


def test_a_coordinator_that_was_killed_finds_its_groups_again_and_lets_go_of_those_of_nobody(
    cluster: Cluster, held: Held
) -> None:
    job = submit(cluster, *held.argv)
    until(lambda: state(cluster, job) == "running", "it runs", 60.0)
    cluster.master.kill("coordinator", signal.SIGKILL)
    cluster.compute(LEFT_BEHIND)
    assert set(cluster.groups()) == {f"grid-job-{job}.1", "grid-job-j-gone.1"}
    cluster.master.start_coordinator()
    until(lambda: set(cluster.groups()) == {f"grid-job-{job}.1"}, "what is nobody's is let go of", 60.0)
    until(lambda: state(cluster, job) == "running", "it is adopted", 60.0)
    held.go()
    ends_well(cluster, job)
    until(lambda: cluster.groups() == {}, "nothing is reserved any more", 60.0)


def test_a_node_of_ray_that_ends_and_comes_back_reserves_once_more_what_runs_there(
    cluster: Cluster, held: Held, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = submit(cluster, *held.argv)
    until(lambda: state(cluster, job) == "running", "it runs", 60.0)
    for pid in cluster.master.processes_with(f"{cluster.beside}/"):
        if "raylet/raylet" in command_of(pid):
            os.kill(pid, signal.SIGKILL)
    lost = {f"grid-job-{job}.1": ["RESCHEDULING", None]}
    until(lambda: cluster.groups() == lost, "Ray has noticed", 60.0)
    with a_raylet(cluster, Path(tmp_path_factory.mktemp("q", numbered=True))):
        again = {f"grid-job-{job}.1": ["CREATED", "lab1"]}
        until(lambda: cluster.groups() == again, "it is reserved once more", 90.0)
        assert state(cluster, job) == "running"
        held.go()
        ends_well(cluster, job)
        until(lambda: cluster.groups() == {}, "nothing is reserved any more", 60.0)


def test_where_ray_is_down_a_job_waits_and_says_so_and_nobody_hangs(cluster: Cluster) -> None:
    cluster.look_no_more()
    cluster.head.kill()
    cluster.head.wait(60.0)
    job = submit(cluster, "true")
    until(lambda: "cannot be asked" in why(cluster, job), "it says why it waits", 90.0)

    def refused() -> bool:
        """Until its connection has ended, a Ray that is down is one that does not answer."""
        done = cluster.master.shared("--immediate", "true")
        assert done.returncode == 75, done.stderr
        return f"there is no Ray at {HEAD}" in done.stderr

    until(refused, "it is refused since there is no Ray", 60.0)
    assert cluster.master.run("cancel", job).returncode == 0
