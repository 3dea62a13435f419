"""What the judge says of holds: each promise is broken once, and what is allowed passes."""

import pytest

from distributed_grid.coordinator.core.commands import RecordAllocation, RecordJob
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended, Job
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, State
from distributed_grid.protocol.resources import GIB, GpuShare, Grant
from distributed_grid.simulator.disk import Disk, snapshot
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging import holds
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run
from distributed_grid.simulator.workload import HOLDS
from tests.coordinator.core.lifecycle.test_holds import Grid
from tests.simulator.plans import job, node

HELD = Grant((0,), shared_core=1, shared_milli=500, memory=2 * GIB, gpus=(GpuShare("g0", 500),))
WHOLE = Outcome(Cause.TIME_LIMIT, seconds=10.0)


class Court:
    """A judge whose disk has a hold of ten seconds on n0; job 851 is to run inside of it, job 0 elsewhere."""

    def __init__(self) -> None:
        hold = job(HOLDS, holds=True, time_limit=10.0)
        plans = (job(0), hold, job(HOLDS + 1, within=HOLDS), job(HOLDS + 2, within=HOLDS))
        self.judge = Judge(plans, (node(0), node(1)))
        self.disk = self.judge.disk = Disk()
        self.holds("n0")

    def holds(self, where: str) -> None:
        self.stores("j850x1", HELD, where, State.RUNNING)
        self.judge.promised[HOLDS] = "j850x1"

    def stores(
        self, name: str, grant: Grant, where: str = "n0", state: State = State.STARTING, within: str = "",
        outcome: Outcome | None = None,
    ) -> None:  # fmt: skip
        made = Job(id=name, key=name, user="u", spec=JobSpec(("true",)), request=job().request, submitted=0.0)
        made.allocation = f"{name}.1"
        made.phase = (
            Active(state=state, attempt=Attempt(where, None)) if outcome is None else Ended(outcome=outcome, at=2.0)
        )
        last = State.ENDED if outcome is not None else state
        one = Allocation(
            id=f"{name}.1", job=name, node=where, grant=grant, state=last, granted=1.0, hold=name == "j850x1",
            within=within,
        )  # fmt: skip
        taken = snapshot([RecordJob(made, new=name not in self.disk.rows), RecordAllocation(one)], 1.0)
        self.disk.apply(taken)
        for row in taken.rows:
            self.judge.stored(row)

    def ends(self, outcome: Outcome) -> None:
        self.stores("j850x1", HELD, outcome=outcome)

    def launches(self, name: str, grant: Grant, where: str = "n0", within: str = "") -> None:
        self.stores(name, grant, where, within=within)
        self.judge.launched(f"{name}.1", where)


def test_a_job_in_its_place_breaks_nothing() -> None:
    court = Court()
    court.launches("j851x1", Grant((0,), memory=GIB), within="j850x1.1")
    court.launches("j852x1", Grant(shared_core=1, shared_milli=500, memory=GIB), within="j850x1.1")
    court.launches("j0x1", Grant(shared_core=1, shared_milli=500, gpus=(GpuShare("g0", 500),)))


@pytest.mark.parametrize(
    ("grant", "what"),
    [
        (Grant((2,)), "1000 of core 2 are granted, and it has 0"),
        (Grant((1,)), "1000 of core 1 are granted, and it has 500"),
        (Grant(memory=3 * GIB), "of memory are granted"),
        (Grant(gpus=(GpuShare("g0", 600),)), "600 of g0 are granted, and it has 500"),
    ],
)
def test_a_job_inside_gets_no_more_than_its_hold_has(grant: Grant, what: str) -> None:
    with pytest.raises(Violation, match=what):
        Court().launches("j851x1", grant, within="j850x1.1")


def test_nor_do_all_that_are_inside() -> None:
    court = Court()
    court.launches("j851x1", Grant((0,)), within="j850x1.1")
    with pytest.raises(Violation, match="inside of j850x1.1 2000 of core 0 are granted"):
        court.launches("j852x1", Grant((0,)), within="j850x1.1")


def test_a_job_is_launched_inside_of_its_hold_as_long_as_that_lasts() -> None:
    with pytest.raises(Violation, match="inside of none, and its hold is j850x1"):
        Court().launches("j851x1", Grant((2,)))
    with pytest.raises(Violation, match="launched on n1 inside of j850x1.1"):
        Court().launches("j851x1", Grant((0,)), "n1", within="j850x1.1")
    court = Court()
    court.ends(WHOLE)
    court.launches("j851x1", Grant((2,)), "n1")


def test_others_get_nothing_of_what_is_held_before_it_is_over() -> None:
    court = Court()
    with pytest.raises(Violation, match="launched on core 0 of n0, which j850x1.1 holds"):
        court.launches("j0x1", Grant((0,)))
    court.ends(WHOLE)
    court.judge.launched("j0x1.1", "n0")


def test_a_hold_lasts_as_long_as_was_asked_for() -> None:
    court = Court()
    with pytest.raises(Violation, match=r"it was held for 9.50 s, and 10 s were asked for"):
        court.ends(Outcome(Cause.TIME_LIMIT, seconds=9.5))


@pytest.mark.parametrize("cause", [Cause.CANCELLED, Cause.PREEMPTED, Cause.NODE_LOST])
def test_it_may_end_earlier_where_something_ended_it(cause: Cause) -> None:
    Court().ends(Outcome(cause, seconds=1.0))


def test_nothing_of_a_hold_ever_runs() -> None:
    court = Court()
    with pytest.raises(Violation, match="it is a hold, and ended as exited"):
        court.ends(Outcome(Cause.EXITED))
    court = Court()
    court.judge.spawned(Run("j850x1.1", "n0", HELD, 1.0), 4, 1, 8 * GIB)
    with pytest.raises(Violation, match="it is a hold, and a process was started for it"):
        court.ends(WHOLE)


def test_nobody_waits_for_room_in_a_hold_that_is_there() -> None:
    grid = Grid()
    grid.submit("a")
    grid.submit("b")
    grid.submit("c")
    holds.nobody_waits_for_room_in_a_hold(grid.ledger.state)
    forget(grid.ledger, "a")
    with pytest.raises(Violation, match="c: it waits for its hold h, which has room for it on n1"):
        holds.nobody_waits_for_room_in_a_hold(grid.ledger.state)
    grid.ledger.state.store_failing = True
    holds.nobody_waits_for_room_in_a_hold(grid.ledger.state)


def forget(ledger: Ledger, name: str) -> None:
    """What runs inside is not there any more, and nobody was told."""
    del ledger.state.nodes["n1"].inside[f"{name}.1"]
