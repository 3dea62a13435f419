"""A life of a node's simulated agent: it comes back with what it knows, beats, offers, and has the owner come first."""

from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.nodes import NodeState
from tests.simulator.plans import fault, job, run_until, told, world


def test_an_agent_is_let_in_and_offers_what_its_node_has() -> None:
    of = world()
    run_until(of, lambda: "n0" in of.coordinator.ledger.state.nodes)
    run_until(of, lambda: of.coordinator.ledger.state.nodes["n0"].capacity is not None)
    node = of.coordinator.ledger.state.nodes["n0"]
    run_until(of, lambda: node.offer is not None and len(node.offer.cores) == 2)
    assert node.state is NodeState.UP and of.machines[0].agent.knows(1, "c1")


def test_one_that_was_killed_comes_back_and_its_job_has_run_on() -> None:
    of = world(job(seconds=10.0), faults=(fault("kill-agent", 8.0, seconds=3.0),))
    of.go()
    assert told(of).count("the agent of n0 starts") == 2 and of.machines[0].incarnation == 2
    assert len(of.judge.runs) == 1 and of.judge.ended["j0x1"].cause is Cause.EXITED


def test_an_end_that_came_while_nobody_could_hear_it_is_told_afterwards() -> None:
    of = world(job(seconds=3.0), faults=(fault("mute", 6.0, seconds=8.0),))
    run_until(of, lambda: "j0x1.1 on n0 exits 0" in told(of))
    run_until(of, lambda: of.engine.now > 13.0)
    assert "j0x1" not in of.judge.ended and of.machines[0].agent.table.unacknowledged()
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.EXITED


def test_one_that_has_no_answer_for_long_hangs_up_and_dials_again() -> None:
    of = world(faults=(fault("partition", 5.0, seconds=24.0),))
    of.go()
    lines = told(of)
    assert "n0 has no answer from the coordinator and hangs up" in lines
    assert sum(line.startswith("the coordinator lets n0 in") for line in lines) == 2


def test_what_an_owner_uses_is_not_offered() -> None:
    of = world(job(at=12.0), faults=(fault("owner", 5.0, seconds=20.0, how=1.0),))
    of.go()
    at = {text: when for when, text in of.engine.story}
    assert at["j0x1.1 runs on n0"] > 25.0


def test_where_measuring_hangs_a_launch_is_declined_and_tried_again() -> None:
    of = world(job(), faults=(fault("slow-measure", 3.0, seconds=20.0, how=1.0),))
    of.go()
    assert any("is not started on n0: measuring this node hangs" in line for line in told(of))
    assert of.judge.ended["j0x1"].cause is Cause.EXITED and len(of.judge.runs) == 1
