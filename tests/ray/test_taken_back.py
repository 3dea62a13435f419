"""Boosts that are taken back for an urgent job, and one for which others give way; in a real Ray cluster. One that its
source's owner takes back is in test_gpu_boosts."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, Aside, Cluster, of_allocation

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

TOLD = """
import os
@ray.remote(label_selector={{"grid-boost": {boost!r}}}, max_retries=0)
def told():
    import os, time
    open({began!r}, "w").close()
    while not os.path.exists(os.environ["GRID_RECALL_FILE"]):
        time.sleep(0.05)
    return json.loads(open(os.environ["GRID_RECALL_FILE"]).read())

print(json.dumps(ray.get(told.remote(), timeout=120)))
"""


@contextmanager
def a_task_on_it(cluster: Cluster, boost: str) -> Iterator[Aside]:
    """A task that runs on the boost until it is told that this is taken back, and prints that notice. If it was cut off
    before it could return, it would not run again."""
    began = cluster.place / "began"
    began.unlink(missing_ok=True)
    program = cluster.aside(TOLD.format(began=str(began), boost=boost))
    until(began.exists, "the task runs")
    yield program


def notice(program: Aside) -> dict[str, object]:
    found: dict[str, object] = json.loads(program.printed(120.0)[-1])
    return found


def ended(cluster: Cluster, boost: str) -> dict[str, dict[str, str]]:
    """How it ended, once it has; nothing of it is left."""
    until(lambda: cluster.master.job(boost)["state"] == "ended", "it has ended", 90.0)
    view: dict[str, dict[str, str]] = cluster.master.job(boost)
    until(lambda: not of_allocation(str(view["allocation"])), "nothing of it is left", 60.0)
    return view


def test_an_urgent_job_gets_the_cores_of_a_boost_when_nothing_of_it_is_left(guarded: Cluster) -> None:
    boost = guarded.boost("cpu", str(len(CORES)))
    held = guarded.master.job(boost)
    with a_task_on_it(guarded, boost) as program:
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
    boost = guarded.boost("cpu", "1", "--priority", "critical", "--wait")
    assert guarded.master.job(low)["state"] == "waiting"
    assert guarded.resources()["CPU"] >= 1 + 1
    guarded.master.run("cancel", low)
    guarded.adopt(boost)
