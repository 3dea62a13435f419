"""Boosts that are taken back, by the source's owner or for an urgent job, and one for which others give way; in a real
Ray cluster."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, GPUS, Cluster, of_allocation

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

TOLD = """
import os
@ray.remote(resources={{"boost_gpu-master": 1}}, max_retries=0)
def told():
    import os, time
    open({began!r}, "w").close()
    while not os.path.exists(os.environ["GRID_RECALL_FILE"]):
        time.sleep(0.05)
    return json.loads(open(os.environ["GRID_RECALL_FILE"]).read())

print(json.dumps(ray.get(told.remote(), timeout=120)))
"""


@contextmanager
def a_task_on_it(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    """A program whose task runs on the boost until it is told that this is taken back, and which prints that notice. If
    it was cut off before it could return, it would not run again."""
    began = cluster.place / "began"
    began.unlink(missing_ok=True)
    program = cluster.begin(TOLD.format(began=str(began)))
    try:
        until(began.exists, "the task runs")
        yield program
    finally:
        program.kill()
        program.wait(60.0)


def notice(program: "subprocess.Popen[str]") -> dict[str, object]:
    said, _ = program.communicate(timeout=120)
    found: dict[str, object] = json.loads(said.splitlines()[-1])
    return found


def ended(cluster: Cluster, boost: str) -> dict[str, dict[str, str]]:
    """How it ended, once it has; nothing of it is left."""
    until(lambda: cluster.master.job(boost)["state"] == "ended", "it has ended", 90.0)
    view: dict[str, dict[str, str]] = cluster.master.job(boost)
    until(lambda: not of_allocation(str(view["allocation"])), "nothing of it is left", 60.0)
    return view


def strangers(cluster: Cluster, *uuids: str) -> None:
    """From now on there is somebody's process on these GPUs of the source, and on no other."""
    used = {"processes": [{"pid": 1, "memory": 2 << 30}]}
    gpus = [{"uuid": uuid, "memory": 8 << 30} | (used if uuid in uuids else {}) for uuid in GPUS]
    path = cluster.place / "gpus.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(gpus))
    os.replace(fresh, path)


def test_its_owner_takes_the_gpu_back_and_the_task_there_is_told_and_may_end(guarded: Cluster) -> None:
    """His policy is to suspend: a job so young would be frozen."""
    boost = guarded.boost("gpu", "1")
    lent = guarded.master.job(boost)["grant"]["gpus"][0]["uuid"]
    try:
        with a_task_on_it(guarded) as program:
            strangers(guarded, lent)
            said = notice(program)
        why = f"the owner is back (process 1 of root uses 2048 MiB of {lent})"
        assert (said["cause"], said["reason"], said["seconds"]) == ("recalled", why, 15.0)
        outcome = ended(guarded, boost)["outcome"]
        assert (outcome["cause"], outcome["text"]) == ("recalled", why)
        story = guarded.master.run("job", "events", boost).stdout
        assert "recalled: the owner of lab1 is back" in story and "suspended" not in story
        until(lambda: guarded.offered() == len(CORES), "the cores are offered again")
        until(lambda: "GPU" not in guarded.resources(), "Ray has it no more", 60.0)
    finally:
        strangers(guarded)


def test_an_urgent_job_gets_the_cores_of_a_boost_when_nothing_of_it_is_left(guarded: Cluster) -> None:
    boost = guarded.boost("cpu", str(len(CORES)))
    held = guarded.master.job(boost)
    with a_task_on_it(guarded) as program:
        words = "-d", "--no-ship", "--priority", "urgent", "-t", "cpu", "-a", str(len(CORES)), "sleep", "600"
        urgent = guarded.master.run("run-shared", *words).stdout.strip()
        said = notice(program)
    assert (said["cause"], said["reason"]) == ("preempted", f"gives way to {urgent} (urgent, root)")
    until(lambda: guarded.master.job(urgent)["state"] == "running", "the urgent job runs", 90.0)
    assert not of_allocation(held["allocation"])
    assert guarded.master.job(urgent)["grant"]["cores"] == held["grant"]["cores"]
    assert ended(guarded, boost)["outcome"]["cause"] == "preempted"
    assert guarded.master.json("receipts", urgent)["receipts"][0]["victims"][0]["job"] == boost
    guarded.master.run("cancel", urgent)
    until(lambda: guarded.offered() == len(CORES), "the cores are offered again")


def test_a_low_job_gives_way_to_a_critical_boost_that_waits(guarded: Cluster) -> None:
    words = "-d", "--no-ship", "--priority", "low", "-t", "cpu", "-a", str(len(CORES)), "sleep", "600"
    low = guarded.master.run("run-shared", *words).stdout.strip()
    until(lambda: guarded.master.job(low)["state"] == "running", "the job runs")
    boost = guarded.boost("cpu", str(len(CORES)), "--priority", "critical", "--wait")
    assert guarded.master.job(low)["state"] == "waiting"
    assert guarded.resources()["CPU"] >= 1 + len(CORES)
    guarded.master.run("cancel", low)
    guarded.release(boost)
