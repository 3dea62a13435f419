"""Clients submit under one key until they hear an answer, and cancel until that is heard; the operator drains and
undrains."""

import pytest
from msgspec.structs import replace

from distributed_grid.protocol.jobs import After, Cause
from distributed_grid.protocol.placement import Constraints, parse_label
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.plan import LabelPlan
from distributed_grid.simulator.workload import ENDLESS
from tests.simulator.plans import fault, job, node, run_until, told, world


def test_a_client_whose_answers_get_lost_submits_again_and_has_one_job() -> None:
    of = world(job(unheard=2))
    of.go()
    assert [line for line in told(of) if "job 0" in line] == [
        "job 0 is submitted as j0x1",
        "job 0 is submitted as j0x2",
        "job 0 is submitted as j0x3",
        "job 0 is j0x1",
    ]
    assert [*of.judge.ended] == ["j0x1"] and len(of.judge.runs) == 1


def test_a_client_waits_for_a_coordinator_that_is_down() -> None:
    of = world(job(at=5.0), faults=(fault("kill-coordinator", 4.0, seconds=6.0),))
    of.go()
    (submitted,) = [when for when, text in of.engine.story if text.startswith("job 0 is submitted")]
    assert 10.0 <= submitted < 11.0 and len(of.judge.ended) == 1


def test_a_job_that_is_cancelled_ends_by_that() -> None:
    of = world(job(seconds=20.0, cancel_at=8.0))
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.CANCELLED and of.clients[0].cancelled


def test_a_job_that_would_run_for_ever_is_not_wanted_any_more_at_peace() -> None:
    of = world(job(seconds=ENDLESS, cancel_at=8.0), faults=(fault("kill-coordinator", 7.0, seconds=2.0),))
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.CANCELLED


def test_who_waits_for_another_is_submitted_once_that_has_a_name() -> None:
    of = world(job(0, at=9.0), job(1, at=5.0, after=((0, After.OK),)))
    of.go()
    lines = told(of)
    assert lines.index("job 0 is j0x1") < lines.index("job 1 is submitted as j1x1")
    assert lines.index("j0x1.1 on n0 exits 0") < lines.index("j1x1.1 runs on n0")


def test_who_would_wait_for_a_job_that_is_not_planned_is_not_submitted() -> None:
    of = world(job(1, after=((9, After.OK),)))
    of.go()
    assert "job 1 has nobody to wait for" in told(of) and of.clients[0].refused and not of.judge.promised


def test_a_drained_node_starts_nothing_until_it_is_undrained() -> None:
    of = world(job(), faults=(fault("drain", 1.0, seconds=15.0, how=0.5),))
    of.go()
    at = {text: when for when, text in of.engine.story}
    assert at["j0x1.1 runs on n0"] > at["n0 is to be undrained"] >= 16.0
    assert of.operators[0].done


def test_at_the_deadline_of_a_drain_what_runs_is_told_to_end() -> None:
    of = world(job(seconds=25.0), faults=(fault("drain", 7.0, seconds=12.0, how=0.5),))
    of.go()
    assert "j0x1.1" in of.judge.evicted and of.judge.runs["j0x1.1"].signal == 15


@pytest.mark.parametrize("stopped", [8.0 + part / 4 for part in range(8)])
def test_a_coordinator_that_was_suspended_has_its_time_to_see_that_a_drain_is_due(stopped: float) -> None:
    """A look that was due while it was suspended happens at the moment of its return, before anything else."""
    suspended = fault("stop-coordinator", stopped, seconds=13.0)
    of = world(job(seconds=25.0), faults=(fault("drain", 7.0, seconds=20.0, how=0.65), suspended))
    of.go()
    assert "j0x1.1" in of.judge.evicted


def test_an_acknowledged_drain_that_is_forgotten_is_a_violation() -> None:
    of = world(faults=(fault("drain", 1.0, seconds=20.0, how=0.1),))
    run_until(of, lambda: of.judge.closed)
    run_until(of, lambda: of.engine.now > 5.0)
    node = of.coordinator.ledger.state.nodes["n0"]
    node.orders = type(node.orders)()
    with pytest.raises(Violation, match="n0: it was acknowledged to be drained, and is not any more"):
        of.go()


def test_a_job_waits_until_its_node_has_the_label_again() -> None:
    asked = replace(job().request, constraints=Constraints(labels=(parse_label("zone=a"),)))
    grid = world(
        job(0, cpu=2000, seconds=10.0),
        job(1, at=6.0, request=asked),
        nodes=(node(labels={"zone": "a"}),),
        labels=(LabelPlan(at=8.0, node=0, zone=None), LabelPlan(at=25.0, node=0, zone="a")),
    )
    grid.go()
    ((began, _),) = [one for one in grid.engine.story if one[1] == "j1x1.1 runs on n0"]
    assert 25.0 < began < 26.0
