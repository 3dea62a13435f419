"""Machines as jobs of Slurm: by Debian's own daemons, with the program of a machine in the jobs."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.client import ProviderChild
from distributed_grid.coordinator.providers.slurm import SlurmProvider, jobs_of_json, jobs_of_text, kind_of
from distributed_grid.protocol.resources import Resources
from tests.coordinator.providers.leaks import leak_free
from tests.coordinator.providers.scene import LONGEST, SPEC
from tests.coordinator.providers.slurm_cluster import Cluster, missing, slurm_cluster
from tests.depth import tries
from tests.grid_fixture import until

COMMENT = '{"grid":"g1","machine":"a-1-1","pool":"a"}'
NUMBERS = count(1)
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing())


# --- what Slurm says, in any of its versions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        {"comment": COMMENT, "job_state": "RUNNING", "end_time": 1_800_000_000, "state_reason": "None"},
        {
            "comment": {"administrator": "", "job": COMMENT, "system": ""},
            "job_state": ["RUNNING"],
            "end_time": {"set": True, "infinite": False, "number": 1_800_000_000},
        },
    ],
    ids=["22.05", "23.11"],
)
def test_json_of_old_and_new_versions_is_read(words: dict[str, Any]) -> None:
    (job,) = jobs_of_json(json.dumps({"jobs": [{"job_id": 7, **words}, {"job_id": 8, "comment": "mine"}]}))
    assert (job.id, job.state, job.ends, job.comment.machine) == ("7", "RUNNING", 1_800_000_000.0, "a-1-1")


def test_json_with_errors_is_no_list_without_jobs() -> None:
    with pytest.raises(ProviderRefused, match="Failed while looking for jobs") as refused:
        jobs_of_json(json.dumps({"errors": [{"description": "Failed while looking for jobs"}], "jobs": []}))
    assert refused.value.answer is Answer.LOST


def test_lines_of_others_and_rubbish_are_no_machines() -> None:
    line = "\x1f".join(("7", "a-1-1", "PENDING", "Resources", "N/A", "N/A", COMMENT))
    found = jobs_of_text(f"{line}\nslurm_load_jobs: rubbish\n9\x1fx\x1fRUNNING\x1f\x1f\x1f\x1f{{}}\n")
    assert [(job.id, job.state, job.reason, job.ends) for job in found] == [("7", "PENDING", "Resources", 0.0)]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", Answer.LOST),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", Answer.LOST),
        ("slurm_load_jobs error: Protocol authentication error", Answer.CREDENTIALS),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit)", Answer.QUOTA),
        ("Batch job submission failed: Requested node configuration is not available", Answer.BAD_TYPE),
        ("Batch job submission failed: Invalid partition name specified", Answer.BAD_TYPE),
        ("Batch job submission failed: something new", Answer.REFUSED),
    ],
)
def test_refusals_are_told_apart(said: str, answer: Answer) -> None:
    assert kind_of(said) is answer


def test_without_slurm_the_provider_says_which_program_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProviderRefused, match="squeue cannot be run: there is no such program here") as refused:
        SlurmProvider("g1", {}).list_workers()
    assert refused.value.answer is Answer.CREDENTIALS


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster, with no job of an earlier test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    yield slurm
    if left := [job[0] for job in slurm.jobs()]:
        slurm.run("scancel", *left, check=False)
        until(lambda: not slurm.jobs(), f"no job is left{slurm.log()}")


def provider(cluster: Cluster, grid: str = "g1", **more: Any) -> SlurmProvider:
    return SlurmProvider(grid, {"partition": "p1", "directory": str(cluster.home), "notice": 1.0, **more})


def spec(**more: Any) -> WorkerSpec:
    """A machine of a new name: the cluster remembers the jobs of other tests for a while."""
    now = time.time()
    given: dict[str, Any] = {
        "name": f"a-1-{next(NUMBERS)}",
        "born": now,
        "ends_by": now + 600,
        "resources": Resources(1000, 64 << 20),
        "url": "ws://127.0.0.1:9",
    }
    return replace(SPEC, **(given | {"join_within": 100.0} | more))


def listed(of: SlurmProvider, asked: WorkerSpec) -> Listed:
    return next(one for one in of.list_workers() if one.name == asked.name)


def ended(of: SlurmProvider, asked: WorkerSpec, cluster: Cluster) -> Listed:
    until(lambda: listed(of, asked).ended, f"it is over{cluster.log()}")
    return listed(of, asked)


def runs(cluster: Cluster, asked: WorkerSpec) -> list[Path]:
    """Directories of this machine that say that it has begun. Those of other tests' machines may still be there."""
    return [one.parent for one in cluster.home.glob(f"g?-{asked.name}-*/ready")]


@needs_slurm
def test_a_machine_is_one_job_however_often_it_is_asked_for_and_ends_whole(cluster: Cluster) -> None:
    slurm, asked = provider(cluster), spec(invitation="grid://x/secret")
    job = slurm.create_worker(asked)
    assert slurm.create_worker(asked) == provider(cluster).create_worker(asked) == job
    (folder,) = until(lambda: runs(cluster, asked), f"it runs{cluster.log()}")
    told = json.loads((folder / "machine.json").read_text())
    assert abs(told["ends_by"] - time.time() - 600) < 30 and folder.stat().st_mode & 0o77 == 0
    found = listed(slurm, asked)
    assert (found.handle, found.pool, found.queued, found.ended) == (job, "a", False, False)
    assert abs(time.time() + found.left - told["ends_by"]) < 10, "its time limit is its life"
    assert slurm.terminate_worker(asked.name, job) is True
    until(lambda: not cluster.jobs(), "the job is over")
    assert not folder.exists(), "nothing of it is left"
    assert slurm.terminate_worker(asked.name, job) is False
    over = listed(slurm, asked)
    assert over.ended and not over.failed and "CANCELLED" in over.why
    with pytest.raises(ProviderRefused, match="has ended"):
        slurm.create_worker(asked)


@needs_slurm
def test_the_longest_name_of_a_machine_is_that_of_its_job(cluster: Cluster) -> None:
    slurm, asked = provider(cluster, "0123456789abcdef"), spec(name=LONGEST)
    job = slurm.create_worker(asked)
    assert slurm.create_worker(asked) == job and listed(slurm, asked).handle == job
    assert slurm.terminate_worker(asked.name) is True


@needs_slurm
def test_json_and_text_say_the_same_of_what_waits_and_what_runs(cluster: Cluster) -> None:
    by_json, by_text = provider(cluster), provider(cluster)
    by_text._json = False
    one, other = spec(), spec(options={"partition": "none"})
    by_json.create_worker(one)
    by_json.create_worker(other)
    until(lambda: runs(cluster, one), f"one runs{cluster.log()}")
    found = by_json.list_workers()
    by_words = by_text.list_workers()[-2:]
    without = [[replace(one, left=0.0) for one in many] for many in (found[-2:], by_words)]
    assert by_json._json and without[0] == without[1]
    assert [one.left for one in found[-2:]] == pytest.approx([one.left for one in by_words], abs=20.0)
    assert [(each.name, each.queued) for each in found[-2:]] == [(one.name, False), (other.name, True)]
    assert found[-1].why == "PartitionDown"


@needs_slurm
def test_two_grids_of_one_user_do_not_see_each_other(cluster: Cluster) -> None:
    mine, theirs = provider(cluster), provider(cluster, "g2")
    asked = spec()
    assert mine.create_worker(asked) != theirs.create_worker(asked)
    assert mine.terminate_worker(asked.name) is True
    assert ended(mine, asked, cluster)
    left = listed(theirs, asked)
    assert not left.ended and not left.ending


@needs_slurm
def test_a_notice_of_slurm_ends_the_machine_and_is_no_failure_of_one_that_joined(cluster: Cluster) -> None:
    slurm = provider(cluster)
    asked = spec()
    job = slurm.create_worker(asked)
    until(lambda: runs(cluster, asked), f"it runs{cluster.log()}")
    shown = cluster.run("scontrol", "show", "job", job)
    assert "TimeLimit=00:10:00" in shown and "Requeue=0" in shown
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert "COMPLETED" in ended(slurm, asked, cluster).why


@needs_slurm
def test_a_preempted_machine_is_over_and_has_not_failed(cluster: Cluster) -> None:
    slurm, asked = provider(cluster), spec()
    slurm.create_worker(asked)
    until(lambda: runs(cluster, asked), f"it runs{cluster.log()}")
    cluster.run(
        "sbatch", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", stdin="#!/bin/sh\nsleep 60\n"
    )
    over = ended(slurm, asked, cluster)
    assert not over.failed and "PREEMPTED" in over.why


@needs_slurm
def test_a_job_whose_python_is_not_there_has_failed(cluster: Cluster) -> None:
    slurm, asked = provider(cluster, python="/nowhere/python"), spec()
    slurm.create_worker(asked)
    over = ended(slurm, asked, cluster)
    assert over.failed and "FAILED" in over.why


@needs_slurm
def test_the_job_gets_none_of_the_coordinators_secrets(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    script, found = cluster.home / "python", cluster.home / "environment"
    script.write_text(f"#!/bin/sh\nenv >{found}.new\nmv {found}.new {found}\n")
    script.chmod(0o700)
    provider(cluster, python=str(script)).create_worker(spec())
    until(found.exists, f"it runs{cluster.log()}")
    said = found.read_text()
    assert "hunter2" not in said and "GRID_MACHINE=" in said


@needs_slurm
def test_a_directory_of_somebody_else_is_not_used(cluster: Cluster) -> None:
    link = cluster.home / "link"
    link.symlink_to(cluster.home)
    slurm, asked = provider(cluster, directory=str(link)), spec()
    slurm.create_worker(asked)
    assert ended(slurm, asked, cluster).failed and not runs(cluster, asked)


@needs_slurm
def test_wrong_partitions_and_sizes_are_refused_as_such(cluster: Cluster) -> None:
    slurm = provider(cluster)
    for more in ({"options": {"partition": "p9"}}, {"resources": Resources(1000, 64 << 30)}):
        with pytest.raises(ProviderRefused) as refused:
            slurm.create_worker(spec(**more))
        assert refused.value.answer is Answer.BAD_TYPE, refused.value.text
    assert not cluster.jobs()


@needs_slurm
def test_what_slurm_takes_and_never_begins_is_told(cluster: Cluster) -> None:
    slurm, asked = provider(cluster), spec(resources=Resources(64_000, 64 << 20))
    slurm.create_worker(asked)
    until(lambda: listed(slurm, asked).failed, f"it never begins{cluster.log()}")
    assert listed(slurm, asked).queued and listed(slurm, asked).why == "PartitionConfig"


@needs_slurm
def test_a_controller_that_is_down_is_a_lost_answer_and_nothing_is_submitted_twice(cluster: Cluster) -> None:
    slurm, asked = provider(cluster), spec()
    job = slurm.create_worker(asked)
    cluster.stop("slurmctld")
    try:
        with pytest.raises(ProviderRefused) as refused:
            slurm.list_workers()
        assert refused.value.answer is Answer.LOST, refused.value.text
    finally:
        cluster.start_controller()
    until(lambda: cluster.run("squeue", "--noheader", check=False), f"the controller is back{cluster.log()}")
    assert slurm.create_worker(asked) == job


@pytest.fixture
def slow_sbatch(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's own sbatch, for which one waits before and after the controller is asked; the file says that it runs."""
    begun = tmp_path / "begun"
    script = tmp_path / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\ntouch {begun}\nsleep 0.4\n{shutil.which("sbatch")} "$@" || exit\nsleep 0.4\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return begun


@needs_slurm
@pytest.mark.parametrize("late", [0.0, 0.6], ids=["before the controller is asked", "after it has answered"])
async def test_a_provider_that_is_killed_while_it_submits_is_followed_by_one_that_submits_nothing_twice(
    cluster: Cluster, slow_sbatch: Path, late: float
) -> None:
    asked, settings = spec(), {"partition": "none", "directory": str(cluster.home)}
    first, second = (ProviderChild("slurm", "g1", settings) for _ in range(2))
    await second.ask("list", list[Listed])  # it is there, and does not take its time to begin
    asking = asyncio.create_task(first.ask("create", str, spec=asked))
    await asyncio.to_thread(until, slow_sbatch.exists, "sbatch runs")
    await asyncio.sleep(late)
    assert first._process is not None
    os.kill(first._process.pid, signal.SIGKILL)
    with pytest.raises(ProviderRefused) as refused:
        await asking
    assert refused.value.answer is Answer.LOST
    job = await second.ask("create", str, spec=asked)
    await asyncio.gather(first.close(), second.close())
    assert cluster.made()[asked.name] == {job}


@needs_slurm
def test_another_submission_that_does_not_end_is_a_lost_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, asked = provider(cluster), spec()
    monkeypatch.setattr("distributed_grid.coordinator.providers.slurm.SECONDS", 0.0)
    monkeypatch.setattr("distributed_grid.coordinator.providers.slurm.LATEST", 0.2)
    with slurm._alone(), pytest.raises(ProviderRefused, match="another sbatch of this grid is not over") as refused:
        provider(cluster).create_worker(asked)
    assert refused.value.answer is Answer.LOST and asked.name not in cluster.made()


@needs_slurm
def test_a_job_that_only_the_accounting_remembers_is_not_submitted_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no database of Slurm here: this sacct says what one says, by the fields that it is asked for."""
    ahead = time.time() + 1_000_000.0  # grid time may be far from the clock here
    asked = spec(born=ahead, ends_by=ahead + 600.0, age=400.0)
    line = "\x1f".join(("77", "CANCELLED by 0", "", f"sbatch --comment={COMMENT.replace('a-1-1', asked.name)} --x"))
    sacct = tmp_path / "sacct"
    sacct.write_text(
        f'#!/bin/sh\ncase "$*" in *--name={asked.name}*--starttime=now-420seconds*) printf "%s\\n" \'{line}\' ;; esac\n'
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ProviderRefused, match="job 77 has ended: Slurm says CANCELLED of job 77"):
        provider(cluster).create_worker(asked)
    provider(cluster, "g2").create_worker(asked)  # the same name in another grid
    sacct.write_text("#!/bin/sh\necho 'sacct: error: Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(ProviderRefused) as refused:
        provider(cluster).create_worker(asked)
    assert refused.value.answer is Answer.LOST and len(cluster.made()[asked.name]) == 1
    provider(cluster).create_worker(spec())  # a first call does not ask it


@needs_slurm
def test_without_an_accounting_squeue_alone_is_asked(cluster: Cluster) -> None:
    asked = spec(age=400.0)
    job = provider(cluster).create_worker(asked)
    assert provider(cluster).create_worker(asked) == job and cluster.made()[asked.name] == {job}


@needs_slurm
@pytest.mark.parametrize("seed", range(tries(3, 1)))
async def test_no_machine_is_lost_or_made_twice_whatever_is_killed(
    cluster: Cluster, slow_sbatch: Path, seed: int
) -> None:
    before = {id for ids in cluster.made().values() for id in ids}
    script = cluster.home / "sleeps"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o700)
    settings = {"partition": "p1", "directory": str(cluster.home), "python": str(script)}
    there = lambda: sorted(name for _, name, said in cluster.jobs() if said != "COMPLETING")  # noqa: E731
    made = lambda: [name for name, ids in cluster.made().items() for _ in ids - before]  # noqa: E731
    await leak_free("slurm", settings, there, seed, made, longest=1.5)
