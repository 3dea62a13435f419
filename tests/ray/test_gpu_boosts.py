"""Boosts of GPUs and of memory in a real Ray cluster. The GPUs are stand-ins for the NVML library:
there is nothing to compute on, and who sees which of them is what is looked at."""

import json
import os

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, GPUS, WHERE, Cluster
from tests.ray.test_taken_back import a_task_on_it, ended, notice

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def test_a_boost_of_cores_on_a_node_with_gpus_brings_and_sees_none(guarded: Cluster, core: str) -> None:
    assert "GPU" not in guarded.resources()
    named = """where.options(resources={"boost_gpu-master": 1})"""
    assert guarded.compute(WHERE + f"print(json.dumps(ray.get({named}.remote(), timeout=60)))")[2] == ""


def test_a_plain_program_with_num_gpus_runs_on_the_lent_gpu_and_sees_no_other(
    guarded: Cluster, core: str, gpu: str
) -> None:
    view = guarded.master.job(gpu)
    (lent,) = view["grant"]["gpus"]
    during = guarded.resources()
    assert (during["GPU"], during["CPU"], during["boost_gpu-master"]) == (1, 1 + 1 + 1, 1 + 1)
    node, cores, visible = guarded.compute(
        WHERE + "print(json.dumps(ray.get(where.options(num_gpus=1).remote(), timeout=60)))"
    )
    (listed,) = (one for one in guarded.lent() or [] if one["id"] == gpu)
    assert listed["in_ray"].split()[-1] == node[:12]
    assert (visible, cores) == (lent["uuid"], view["grant"]["cores"]) and lent["uuid"] in GPUS


def strangers(cluster: Cluster, *uuids: str) -> None:
    """From now on there is somebody's process on these GPUs of the source, and on no other."""
    used = {"processes": [{"pid": 1, "memory": 2 << 30}]}
    gpus = [{"uuid": uuid, "memory": 8 << 30} | (used if uuid in uuids else {}) for uuid in GPUS]
    path = cluster.place / "gpus.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(gpus))
    os.replace(fresh, path)


def test_its_owner_takes_the_gpu_back_and_the_task_there_is_told_and_may_end(
    guarded: Cluster, core: str, gpu: str
) -> None:
    """His policy is to suspend: a job so young would be frozen."""
    lent = guarded.master.job(gpu)["grant"]["gpus"][0]["uuid"]
    try:
        with a_task_on_it(guarded, gpu) as program:
            strangers(guarded, lent)
            said = notice(program)
        why = f"the owner is back (process 1 of root uses 2048 MiB of {lent})"
        assert (said["cause"], said["reason"], said["seconds"]) == ("recalled", why, 15.0)
        outcome = ended(guarded, gpu)["outcome"]
        assert (outcome["cause"], outcome["text"]) == ("recalled", why)
        story = guarded.master.run("job", "events", gpu).stdout
        assert "recalled: the owner of lab1 is back" in story and "suspended" not in story
        until(lambda: guarded.offered() == len(CORES) - 1, "its core is offered again")
        until(lambda: "GPU" not in guarded.resources(), "Ray has no GPU any more", 60.0)
        assert [one["id"] for one in guarded.lent() or []] == [core], "what has no GPU is not taken back"
    finally:
        strangers(guarded)


@pytest.mark.long_ray
def test_tasks_on_two_lent_gpus_see_one_each(guarded: Cluster) -> None:
    until(lambda: guarded.offered() == len(CORES), "all its cores are offered")
    boost = guarded.boost("gpu", "2")
    told = guarded.compute(
        WHERE + "print(json.dumps(ray.get([where.options(num_gpus=1).remote(1.0) for _ in range(2)], timeout=60)))"
    )
    assert {visible for _, _, visible in told} == set(GPUS)
    guarded.release(boost)


def test_a_boost_of_memory_shows_in_ray_and_ends_where_a_task_takes_more(guarded: Cluster, core: str) -> None:
    before = guarded.resources()
    boost = guarded.boost("memory", "0.125")
    during = guarded.resources()
    assert during["memory"] == before["memory"] + (1 << 27) and during["CPU"] == before["CPU"] + 1
    code = f"""
@ray.remote(max_retries=0, label_selector={{"grid-boost": "{boost}"}})
def greedy():
    import time
    held = b"x" * (5 << 27)
    time.sleep(60)

try:
    print(json.dumps(ray.get(greedy.remote(), timeout=60)))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""
    assert guarded.compute(code) == "NodeDiedError"
    guarded.master.run("job", "wait", boost, timeout=60.0)
    ended = guarded.master.job(boost)["outcome"]
    assert ended["cause"] == "out-of-memory" and "more memory than its limit of 640M" in ended["text"]
    assert [one["id"] for one in guarded.lent() or []] == [core]
    until(lambda: guarded.resources()["CPU"] == before["CPU"], "Ray's head has noticed", 60.0)
