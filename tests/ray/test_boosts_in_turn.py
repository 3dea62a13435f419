"""Boosts come and go, and leave nothing behind: neither what they started themselves, nor anything of others ended."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributed_grid.agent.launch.raylet import folder
from tests.depth import DEEP
from tests.grid_fixture import until
from tests.network import NODE
from tests.ray.scene import CORES, Cluster, command_of, of_allocation, processes, short_folder

pytestmark = [pytest.mark.long_ray, pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(600)]

PAIRS = 10 if DEEP else 2
FOREIGN = f"{NODE}:6500"
THEIRS = f"""
import ray, sys, time
ray.init(address="{FOREIGN}", logging_level="error", log_to_driver=False)
@ray.remote(max_retries=0)
def undisturbed(gate):
    import os, time
    open(gate + ".waits", "w").close()
    while not os.path.exists(gate):
        time.sleep(0.1)
    return "undisturbed"
work = undisturbed.remote(sys.argv[1])
print("began", flush=True)
print(ray.get(work), flush=True)
"""


@contextmanager
def a_foreign_cluster(cluster: Cluster, place: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Somebody's own Ray on the host of lab1, and a program of theirs whose task runs until there is a file `gate`."""
    enter, pipe = cluster.node.command[:-3], subprocess.PIPE
    ray = str(Path(sys.executable).with_name("ray"))
    words = [
        "start", "--head", "--block", "--port=6500", f"--node-ip-address={NODE}", "--num-cpus=1", "--num-gpus=0",
        "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000",
        "--memory=500000000", "--include-log-monitor=false", "--no-monitor", f"--temp-dir={folder}",
    ]  # fmt: skip
    with (place / "foreign.log").open("wb") as log:
        head = subprocess.Popen([*enter, ray, *words], env=cluster.environment, stdout=log, stderr=log)
    try:
        ask = [*enter, sys.executable, "-c", f"import ray; ray.init('{FOREIGN}', log_to_driver=False)"]

        def there() -> bool:
            return subprocess.run(ask, env=cluster.environment, capture_output=True, timeout=90).returncode == 0

        until(there, "the foreign cluster is there", 60.0)
        command = [*enter, sys.executable, "-c", THEIRS, str(place / "gate")]
        program = subprocess.Popen(command, env=cluster.environment, stdout=pipe, text=True)
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "began\n"
            until((place / "gate.waits").exists, "its task is at work", 60.0)
            yield program
        finally:
            program.kill()
            program.wait(60.0)
    finally:
        head.terminate()
        head.wait(60.0)
        shutil.rmtree(folder, ignore_errors=True)


def of_cluster(folder: Path) -> set[int]:
    """The services of a cluster of Ray. Its workers come and go as it likes."""
    named = {pid: command_of(pid) for pid in processes()}
    return {pid for pid, command in named.items() if f"{folder}/" in command and "_worker.py" not in command}


def test_boosts_in_turn_leave_nothing_and_a_foreign_cluster_beside_them_is_untouched(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place, theirs = Path(tmp_path_factory.mktemp("f", numbered=True)), short_folder()
    until(lambda: cluster.offered() == len(CORES), "the node offers all its cores", 60.0)
    base = cluster.resources()
    offers = cluster.master.json("shared-status")["offers"][0]["offered"]
    boosts: list[str] = []
    with a_foreign_cluster(cluster, place, theirs) as program:
        before = of_cluster(theirs)
        assert before
        with ThreadPoolExecutor(2) as two:
            for _ in range(PAIRS):
                pair = [one.result() for one in [two.submit(cluster.boost, "cpu", "1") for _ in range(2)]]
                lent = [cluster.master.job(one)["grant"]["cores"] for one in pair]
                assert sorted(lent) == [[core] for core in CORES], "each has a core of its own, as the first ones had"
                for done in [two.submit(cluster.release, one) for one in pair]:
                    done.result()
                boosts += pair
        assert of_cluster(theirs) >= before, "the foreign cluster has all the processes that it had"
        assert program.poll() is None
        (place / "gate").touch()
        assert program.communicate(timeout=60)[0] == "undisturbed\n"
    assert len(set(boosts)) == 2 * PAIRS
    until(lambda: cluster.offered() == len(CORES), "the node offers all its cores again")
    until(lambda: cluster.master.json("shared-status")["allocations"] == [], "nothing is lent", 60.0)
    assert cluster.master.json("shared-status")["offers"][0]["offered"]["gpu"] == offers["gpu"]
    until(lambda: cluster.resources() == base, "Ray has just what it had", 60.0)
    assert cluster.groups() == {}
    allocations = [cluster.master.job(one)["allocation"] for one in boosts]
    until(lambda: not [pid for one in allocations for pid in of_allocation(one)], "no process of them is left", 60.0)
    until(lambda: not [one for one in allocations if folder(one).exists()], "nor a folder", 60.0)


def test_what_a_task_left_in_a_session_of_its_own_ends_with_the_boost_too(cluster: Cluster) -> None:
    boost = cluster.boost("cpu", "1")
    code = f"""
@ray.remote(label_selector={{"grid-boost": "{boost}"}})
def leave():
    import subprocess
    # Not its own child, which Ray would end with it.
    return int(subprocess.check_output(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]))
print(json.dumps(ray.get(leave.remote(), timeout=60)))
"""
    left = cluster.compute(code)
    assert "sleep" in command_of(left)
    allocation = cluster.master.job(boost)["allocation"]
    cluster.release(boost)
    until(lambda: cluster.offered() == len(CORES), "the node offers all its cores again")
    until(lambda: of_allocation(allocation) == {} and not command_of(left), "it has ended", 60.0)
