"""Each invariant that the judge holds is broken once on purpose, and it says so; what is allowed passes."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import RecordJob, RecordOrders
from distributed_grid.coordinator.core.model import Active, Attempt, Ended, Job
from distributed_grid.protocol.jobs import After, Cause, JobSpec, Outcome, Request, State
from distributed_grid.protocol.messages.rights import Rights, Whose
from distributed_grid.protocol.nodes import Drain, NodeOrders
from distributed_grid.protocol.placement import Constraints, Walls
from distributed_grid.protocol.resources import GIB, GpuShare, Grant, Resources
from distributed_grid.simulator.disk import Disk, snapshot
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run
from distributed_grid.simulator.plan import GPU_MEMORY
from distributed_grid.simulator.workload import JobPlan
from tests.simulator.plans import job, node

CORES, GPUS, MEMORY = 2, 1, 8 * GIB


class Court:
    """A judge with a disk, to whom things are reported by their ids."""

    def __init__(self, *jobs: JobPlan, **of_node: Any) -> None:
        self.judge = Judge(jobs or (job(),), (node(0, **of_node), node(1)))
        self.disk = self.judge.disk = Disk()

    def begins(self, key: str, on: str = "n0", grant: Grant | None = None) -> Run:
        run = Run(key, on, grant or Grant(memory=GIB), 1.0)
        self.judge.spawned(run, CORES, GPUS, MEMORY)
        return run

    def ran(self, key: str, code: int = 0, on: str = "n0") -> Run:
        run = self.begins(key, on)
        self.judge.over(run, code)
        return run

    def stores(self, name: str, outcome: Outcome | None = None, state: State = State.RUNNING, attempt: int = 1) -> None:
        """The disk takes this of a job."""
        request = self.judge.plans[int(name[1:].partition("x")[0])].request
        made = Job(id=name, key=name, user="u", spec=JobSpec(("true",)), request=request, submitted=0.0)
        made.allocation = f"{name}.{attempt}"
        if outcome is not None:
            made.phase = Ended(outcome=outcome, at=2.0)
        elif state is not State.WAITING:
            made.phase = Active(state=state, attempt=Attempt("n0", None))
        taken = snapshot([RecordJob(made, new=True)], 1.0)
        self.disk.apply(taken)
        for row in taken.rows:
            self.judge.stored(row)
        self.judge.ends_as_one(self.disk, taken.rows)


EXITED = Outcome(Cause.EXITED)


def test_a_job_that_runs_and_is_told_as_it_was_breaks_nothing() -> None:
    court = Court()
    court.stores("j0x1", state=State.STARTING)
    court.judge.accepted(0, "j0x1")
    court.judge.launched("j0x1.1", "n0")
    court.ran("j0x1.1")
    court.stores("j0x1", EXITED)
    court.judge.acknowledged("j0x1.1")


# --- what really runs -------------------------------------------------------------------------------------------------


def test_an_allocation_is_not_started_twice() -> None:
    court = Court()
    court.ran("j0x1.1")
    with pytest.raises(Violation, match="j0x1.1 is started twice"):
        court.begins("j0x1.1")


def test_two_attempts_do_not_run_at_once() -> None:
    court = Court()
    court.begins("j0x1.1")
    with pytest.raises(Violation, match="j0x1.2 starts on n1, j0x1.1 runs on n0"):
        court.begins("j0x1.2", "n1")


def test_who_did_not_fail_is_not_run_again() -> None:
    court = Court()
    court.ran("j0x1.1")
    with pytest.raises(Violation, match="starts after j0x1.1 did not fail"):
        court.begins("j0x1.2")


def test_who_failed_is_run_again_as_often_as_its_owner_said_and_not_once_more() -> None:
    court = Court(job(request=Request(Resources(1000), retries=1)))
    court.ran("j0x1.1", code=1)
    court.ran("j0x1.2", code=1)
    with pytest.raises(Violation, match="it is started 3 times .* 1 retries allowed"):
        court.begins("j0x1.3")


def test_what_was_taken_back_does_not_count_as_a_try() -> None:
    court = Court()
    run = court.begins("j0x1.1")
    court.judge.told_to_stop("j0x1.1", Cause.RECALLED)
    court.judge.over(run, None, 15)
    court.begins("j0x1.2")


def test_what_never_started_never_does() -> None:
    court = Court()
    court.stores("j0x1", Outcome(Cause.CANCELLED, started=False))
    with pytest.raises(Violation, match="after the job ended as cancelled, never started"):
        court.begins("j0x1.1")


def test_what_a_node_said_never_to_run_starts_only_where_the_coordinator_did_not_take_that_answer() -> None:
    court = Court()
    court.stores("j0x1", state=State.STARTING)
    court.judge.never_runs("j0x1.1")
    court.ran("j0x1.1")
    court.judge.never_runs("j0x1.2")
    with pytest.raises(Violation, match="j0x1.2 starts on n0, which said that it never would"):
        court.begins("j0x1.2")


@pytest.mark.parametrize(
    ("grant", "what"),
    [
        (Grant((0,)), "a core is used twice"),
        (Grant(shared_core=0, shared_milli=1), "a core is used twice"),
        (Grant((1, 2)), "a core is used twice"),
        (Grant(gpus=(GpuShare("gpu0", 1, 0),)), "a GPU is used twice"),
        (Grant(memory=MEMORY), "bytes are given to"),
    ],
)
def test_nothing_of_a_node_is_given_twice(grant: Grant, what: str) -> None:
    court = Court(job(0), job(1))
    whole = Grant((0,), memory=GIB, gpus=(GpuShare("gpu0", 1000, GIB),))
    court.begins("j0x1.1", grant=whole)
    with pytest.raises(Violation, match=what):
        court.begins("j1x1.1", grant=grant)


def test_what_is_over_leaves_its_place_to_another() -> None:
    court = Court(job(0), job(1))
    everything = Grant((0, 1), memory=MEMORY, gpus=(GpuShare("gpu0"),))
    run = court.begins("j0x1.1", grant=everything)
    court.judge.over(run, 0)
    court.begins("j1x1.1", grant=everything)


def test_more_than_the_memory_of_a_gpu_is_not_given() -> None:
    court = Court(job(0), job(1))
    half = GPU_MEMORY // 2
    court.begins("j0x1.1", grant=Grant(gpus=(GpuShare("gpu0", 500, half),)))
    with pytest.raises(Violation, match="more than the memory of a GPU"):
        court.begins("j1x1.1", grant=Grant(gpus=(GpuShare("gpu0", 500, half + 1),)))


@pytest.mark.parametrize(
    ("asked", "of_node", "what"),
    [
        (Constraints(only=("n1",)), {}, "not what was asked for"),
        (Constraints(exclude=("n0",)), {}, "not what was asked for"),
        (Constraints(walls=Walls.USER), {"walls": "namespace"}, "asked for user"),
        (Constraints(gpu_memory=GIB), {}, "less GPU memory than it asked for"),
        (None, {"walls": "none", "owners": ("ann",)}, "runs jobs of .* only"),
    ],
)
def test_a_job_runs_only_where_it_may(asked: Constraints | None, of_node: dict[str, Any], what: str) -> None:
    court = Court(job(request=Request(Resources(1000), constraints=asked)), **of_node)
    with pytest.raises(Violation, match=what):
        court.begins("j0x1.1", grant=Grant(gpus=(GpuShare("gpu0", 500, 1),)))


def test_the_members_of_a_gang_run_on_different_nodes() -> None:
    court = Court(job(request=Request(Resources(1000), gang=2)))
    court.begins("j0x1_0.1", "n0")
    with pytest.raises(Violation, match="where another one of its gang did"):
        court.begins("j0x1_1.1", "n0")
    court.judge.runs.pop("j0x1_1.1")
    court.begins("j0x1_1.1", "n1")


def test_no_more_members_of_an_array_run_at_once_than_it_says() -> None:
    court = Court(job(members=2, most=1))
    run = court.begins("j0x1_0.1")
    court.judge.over(run, 0)
    run.alive = True
    with pytest.raises(Violation, match="run at once, and 1 may"):
        court.begins("j0x1_1.1")


@pytest.mark.parametrize(
    ("kind", "before", "what"),
    [
        (After.ENDED, None, "starts before the end of j0x1 is on disk"),
        (After.OK, Outcome(Cause.EXITED, code=1), "it is not on disk that j0x1 exited with 0"),
        (After.STARTED, Outcome(Cause.CANCELLED, started=False), "starts before j0x1"),
    ],
)
def test_who_waits_for_another_does_not_begin_before(kind: After, before: Outcome | None, what: str) -> None:
    court = Court(job(0), job(1, after=((0, kind),)))
    court.stores("j0x1", state=State.WAITING)
    court.judge.accepted(0, "j0x1")
    if before is not None:
        if before.started:
            court.ran("j0x1.1", code=before.code)
        court.stores("j0x1", before)
    with pytest.raises(Violation, match=what):
        court.begins("j1x1.1")


# --- what is made durable, and said -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (Outcome(Cause.EXITED, code=1), "told to have exited with 1, it did with 0"),
        (Outcome(Cause.NOT_PLACED, started=False), "told never to have run"),
    ],
)
def test_a_result_is_the_truth(told: Outcome, what: str) -> None:
    court = Court()
    court.ran("j0x1.1")
    with pytest.raises(Violation, match=what):
        court.stores("j0x1", told)


def test_who_never_ran_has_not_exited_and_who_runs_is_not_over() -> None:
    with pytest.raises(Violation, match="j0x1.1 never ran"):
        Court().stores("j0x1", EXITED)
    court = Court()
    court.begins("j0x1.1")
    with pytest.raises(Violation, match="it is told to be over"):
        court.stores("j0x1", Outcome(Cause.TIME_LIMIT))


def test_a_result_is_not_changed() -> None:
    court = Court()
    court.ran("j0x1.1")
    court.stores("j0x1", EXITED)
    court.stores("j0x1", EXITED)
    with pytest.raises(Violation, match="its result was exited and becomes cancelled"):
        court.stores("j0x1", Outcome(Cause.CANCELLED))
    with pytest.raises(Violation, match="its result was exited and becomes running"):
        court.stores("j0x1")


def test_who_ended_by_its_dependencies_had_one_that_failed() -> None:
    court = Court(job(0), job(1, after=((0, After.OK),)))
    court.stores("j0x1", state=State.WAITING)
    court.judge.accepted(0, "j0x1")
    with pytest.raises(Violation, match="none of them has failed"):
        court.stores("j1x1", Outcome(Cause.DEPENDENCY_FAILED, started=False))


def test_an_end_is_acknowledged_once_it_is_on_disk() -> None:
    court = Court()
    court.stores("j0x1")
    with pytest.raises(Violation, match="the end of j0x1.1 is acknowledged and not on disk"):
        court.judge.acknowledged("j0x1.1")


def test_a_submit_is_acknowledged_once_it_is_on_disk_and_a_key_stands_for_one_job() -> None:
    court = Court()
    with pytest.raises(Violation, match="acknowledged and not on disk"):
        court.judge.accepted(0, "j0x1")
    for name in ("j0x1", "j0x2"):
        court.stores(name, state=State.WAITING)
    court.judge.accepted(0, "j0x1")
    with pytest.raises(Violation, match="its key stood for j0x1 before"):
        court.judge.accepted(0, "j0x2")


def test_a_launch_leaves_once_it_is_on_disk() -> None:
    court = Court()
    court.stores("j0x1", state=State.STARTING)
    with pytest.raises(Violation, match="j0x1.2 is launched before that is on disk"):
        court.judge.launched("j0x1.2", "n0")


def test_rights_are_acknowledged_once_they_were_on_disk_whatever_another_operator_did_since() -> None:
    court, rights = Court(), Rights(cores=500)
    with pytest.raises(Violation, match="u: its rights are acknowledged and not on disk"):
        court.judge.granted(Whose.USER, "u", rights)
    court.judge.rights_stored("user/u")  # with what another one in the same commit made of them
    court.judge.granted(Whose.USER, "u", rights)


def test_a_drained_node_gets_no_new_job_until_it_is_open_again() -> None:
    court = Court()
    with pytest.raises(Violation, match="its drain is acknowledged and not on disk"):
        court.judge.drain_acknowledged("n0")
    drained = NodeOrders(drain=Drain(since=1.0))
    court.disk.apply(snapshot([RecordOrders("n0", drained)], 1.0))
    court.judge.ordered("n0", drained)
    court.judge.drain_acknowledged("n0")
    court.stores("j0x1", state=State.STARTING)
    with pytest.raises(Violation, match="launched on n0, which gets no new job"):
        court.judge.launched("j0x1.1", "n0")
    court.judge.ordered("n0", NodeOrders())
    court.judge.launched("j0x1.1", "n0")
