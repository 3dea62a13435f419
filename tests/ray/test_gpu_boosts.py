"""Boosts of GPUs and of memory in a real Ray cluster. The GPUs are stand-ins for the NVML library:
there is nothing to compute on, and who sees which of them is what is looked at."""

import pytest

from tests.grid_fixture import until
from tests.ray.scene import GPUS, WHERE, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def test_a_plain_program_with_num_gpus_runs_on_the_lent_gpu_and_sees_no_other(guarded: Cluster) -> None:
    before = guarded.resources()
    boost = guarded.boost("gpu", "1")
    view = guarded.master.job(boost)
    (lent,) = view["grant"]["gpus"]
    during = guarded.resources()
    assert (during["GPU"], during["CPU"], during["boost_gpu-master"]) == (1, before["CPU"] + 1, 1)
    node, cores, visible = guarded.compute(
        WHERE + "print(json.dumps(ray.get(where.options(num_gpus=1).remote(), timeout=60)))"
    )
    listed = guarded.lent()
    assert listed is not None and listed[0]["in_ray"].split()[-1] == node[:12]
    assert (visible, cores) == (lent["uuid"], view["grant"]["cores"]) and lent["uuid"] in GPUS
    guarded.release(boost)
    until(lambda: "GPU" not in guarded.resources(), "Ray has no GPU, as before", 60.0)


@pytest.mark.long_ray
def test_tasks_on_two_lent_gpus_see_one_each(guarded: Cluster) -> None:
    boost = guarded.boost("gpu", "2")
    told = guarded.compute(
        WHERE + "print(json.dumps(ray.get([where.options(num_gpus=1).remote(1.0) for _ in range(2)], timeout=60)))"
    )
    assert {visible for _, _, visible in told} == set(GPUS)
    guarded.release(boost)


def test_a_boost_of_memory_shows_in_ray_and_ends_where_a_task_takes_more(guarded: Cluster) -> None:
    before = guarded.resources()
    boost = guarded.boost("memory", "0.5")
    during = guarded.resources()
    assert during["memory"] == before["memory"] + (1 << 29) and during["CPU"] == before["CPU"] + 1
    code = f"""
@ray.remote(max_retries=0, label_selector={{"grid-boost": "{boost}"}})
def greedy():
    import time
    held = b"x" * (3 << 29)
    time.sleep(60)

try:
    print(json.dumps(ray.get(greedy.remote(), timeout=60)))
except Exception as error:
    print(json.dumps(type(error).__name__))
"""
    assert guarded.compute(code) == "NodeDiedError"
    guarded.master.run("job", "wait", boost, timeout=60.0)
    ended = guarded.master.job(boost)["outcome"]
    assert ended["cause"] == "out-of-memory" and "more memory than its limit of 1G" in ended["text"]
    assert guarded.lent() == []
    until(lambda: guarded.resources()["CPU"] == before["CPU"], "Ray's head has noticed", 60.0)


def test_a_boost_of_cores_on_a_node_with_gpus_brings_and_sees_none(guarded: Cluster, core: str) -> None:
    assert "GPU" not in guarded.resources()
    named = """where.options(resources={"boost_gpu-master": 1})"""
    assert guarded.compute(WHERE + f"print(json.dumps(ray.get({named}.remote(), timeout=60)))")[2] == ""
