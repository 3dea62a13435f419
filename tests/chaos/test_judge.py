"""The judge of a campaign finds what it is there to find."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.client.results import JobResult
from distributed_grid.protocol.jobs import TAIL_BYTES, After, Cause, JobView, Outcome, State
from tests.chaos.clients import Told
from tests.chaos.faults import Fault
from tests.chaos.jobs import Plan, RunRecord, Shipment, draw, read_records
from tests.chaos.judge import STARTING, Verdict, judge
from tests.chaos.world import CORES, uptime


def planned(kind: str) -> Plan:
    """A job of this kind, watched."""
    dice = random.Random(1)
    while (plan := draw(dice, Path("records"), Shipment())).kind != kind:
        pass
    return replace(plan, watched=True, lines=3, half=1)


@dataclass
class Case:
    """One job `j1` that went as it should, to be changed."""

    plan: Plan
    told: Told
    views: dict[str, JobView]
    records: dict[str, RunRecord]
    faults: list[Fault]

    def outcome(self, **changes: Any) -> None:
        """Change the outcome that the grid reports."""
        view = self.views["j1"]
        assert view.outcome is not None
        changed = msgspec.structs.replace(view.outcome, **changes)
        self.views["j1"] = self.told.ended["j1"] = msgspec.structs.replace(view, outcome=changed)

    def verdict(self) -> Verdict:
        return judge(self.told, self.views, self.records, self.faults)


def case(kind: str = "exits") -> Case:
    """A job that went as planned, and was told so."""
    plan = planned(kind)
    out, err = plan.stdout, plan.stderr
    cause = {"exits": Cause.EXITED, "retried": Cause.EXITED, "killed": Cause.SIGNALLED}[kind]
    outcome = Outcome(
        cause,
        code=plan.code if cause is Cause.EXITED else 0,
        signal=9 if cause is Cause.SIGNALLED else 0,
        stdout_size=len(out),
        stderr_size=len(err),
        stdout_tail=out[-TAIL_BYTES:],
        stderr_tail=err[-TAIL_BYTES:],
    )
    booted = time.time() - uptime()
    view = JobView(
        id="j1", user="u", state=State.ENDED, spec=plan.submission.spec, request=plan.submission.request,
        submitted=booted + 9.0, ended=booted + 11.0, attempt=1, allocation="j1.1", node="n1", outcome=outcome,
    )  # fmt: skip
    result = JobResult(
        job_id="j1", name="", success=True, exit_code=0, signal=0, cause="exited", text="", node="n1", seconds=1.0,
        stdout_bytes=out, stderr_bytes=err, truncated=False, output_error="", job=view,
    )  # fmt: skip
    told = Told(plans={"j1": plan}, ended={"j1": view}, results={"j1": result}, streams={"j1": out})
    end = "killed" if cause is Cause.SIGNALLED else str(plan.code)
    return Case(plan, told, {"j1": view}, {"j1.1": RunRecord({"n1"}, [10.0], [(11.0, end)])}, [])


@pytest.mark.parametrize("kind", ["exits", "retried", "killed"])
def test_what_went_well_is_left_alone(kind: str) -> None:
    assert case(kind).verdict().violations == []


def unknown(case: Case) -> None:
    del case.views["j1"]


def unended(case: Case) -> None:
    case.views["j1"] = msgspec.structs.replace(case.views["j1"], state=State.RUNNING, outcome=None)


@pytest.mark.parametrize("spoil", [unknown, unended])
def test_an_acknowledged_job_that_is_unknown_or_never_ends_is_lost(spoil: Callable[[Case], None]) -> None:
    found = case()
    spoil(found)
    assert [job for job, _ in found.verdict().lost] == ["j1"]


def started_twice(case: Case) -> None:
    case.records["j1.1"].starts.append(10.5)


def second_attempt(case: Case) -> None:
    case.records["j1.2"] = RunRecord({"n2"}, [12.0], [(13.0, "0")])


def nobody_asked(case: Case) -> None:
    case.records["j2.1"] = RunRecord({"n2"}, [12.0], [(13.0, "0")])


def second_job(case: Case) -> None:
    case.views["j2"] = msgspec.structs.replace(case.views["j1"], id="j2")


@pytest.mark.parametrize("spoil", [started_twice, second_attempt, nobody_asked, second_job])
def test_what_started_more_often_than_it_was_asked_for_is_found(spoil: Callable[[Case], None]) -> None:
    found = case()
    spoil(found)
    assert found.verdict().twice
    assert not found.verdict().lost


def test_a_second_attempt_is_right_where_it_was_asked_for_and_the_first_was_dead() -> None:
    found = case("retried")
    found.records["j1.2"] = replace(found.records["j1.1"])
    found.records["j1.1"] = RunRecord({"n2"}, [5.0])
    found.views["j1"] = found.told.ended["j1"] = msgspec.structs.replace(found.views["j1"], allocation="j1.2")
    assert found.verdict().violations == []
    found.records["j1.2"].beside.append(10.0)
    assert [text for _, text in found.verdict().twice] == ["j1.2 ran beside an earlier attempt"]


SPOILT: list[Callable[[Case], None]] = [
    lambda case: case.outcome(code=case.plan.code + 1),
    lambda case: case.records["j1.1"].ends.clear(),
    lambda case: case.records["j1.1"].ends.append((12.0, "77")),
    lambda case: case.outcome(started=False),
    lambda case: case.outcome(cause=Cause.SIGNALLED, code=0, signal=9),
    lambda case: case.outcome(cause=Cause.WORKDIR_FAILED, code=0),
    lambda case: case.outcome(cause=Cause.NODE_LOST, code=0),
    lambda case: case.outcome(cause=Cause.SUPERVISOR_LOST, code=0),
    lambda case: case.outcome(stdout_size=case.plan.lines),
    lambda case: case.outcome(stderr_tail=b"other"),
    lambda case: case.told.streams.update(j1=b"1\n"),
    lambda case: case.told.results.update(j1=replace(case.told.results["j1"], stderr_bytes=b"")),
    lambda case: case.told.results.update(j1=replace(case.told.results["j1"], output_error="it is gone")),
    lambda case: case.told.ended.update(j1=msgspec.structs.replace(case.views["j1"], allocation="j1.2")),
    lambda case: case.told.broken.append("the same keys gave different jobs"),
]


@pytest.mark.parametrize("number", range(len(SPOILT)))
def test_what_the_grid_tells_wrong_is_found(number: int) -> None:
    found = case()
    SPOILT[number](found)
    assert found.verdict().wrong
    assert not found.verdict().lost
    assert not found.verdict().twice


def test_an_end_may_be_unknown_where_the_node_was_in_trouble_while_the_job_lived() -> None:
    found = case()
    found.outcome(cause=Cause.SUPERVISOR_LOST, code=0)
    found.faults.append(Fault("killed", "supervisor of n2", 10.5, 10.5))
    found.faults.append(Fault("killed", "supervisor of n1", 10.0 - STARTING - 0.1, 10.0 - STARTING - 0.1))
    found.faults.append(Fault("killed", "supervisor of n1", 12.0, 12.0))
    assert found.verdict().wrong
    for at in (10.5, 10.0 - STARTING + 0.1):  # while it ran; while it was being started
        found.faults[2:] = [Fault("killed", "supervisor of n1", at, at)]
        assert found.verdict().violations == []


def test_a_node_that_runs_more_jobs_than_it_has_cores_is_found() -> None:
    found = case()
    for number in range(CORES):
        job, allocation = f"k{number}", f"k{number}.1"
        found.told.plans[job] = found.plan
        found.views[job] = msgspec.structs.replace(found.views["j1"], id=job, allocation=allocation)
        found.records[allocation] = replace(found.records["j1.1"])
    assert [text for _, text in found.verdict().wrong] == [f"n1 ran {CORES + 1} jobs at a time on {CORES} cores"]


def test_the_records_of_all_nodes_are_read(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    (tmp_path / "n1").write_text("start j1.1 10.5 77\nend j1.1 11.5 killed\nstart j2.1 11.0 78\n")
    (tmp_path / "n2").write_text("start j2.2 12.0 79\nbeside j2.2 12.0 79\n")
    assert read_records(tmp_path) == {
        "j1.1": RunRecord({"n1"}, [10.5], [(11.5, "killed")]),
        "j2.1": RunRecord({"n1"}, [11.0]),
        "j2.2": RunRecord({"n2"}, [12.0], beside=[12.0]),
    }


# --- jobs that wait for others ----------------------------------------------------------------------------------------


def after(kind: After, began: float, code: int = 0, ran: bool = True) -> Case:
    """A job `j2` that waits for `j1`, which ended at 11.0 with this code."""
    one = case()
    first = replace(one.plan, code=code, watched=False)
    view = one.views["j1"]
    assert view.outcome is not None
    one.told.plans["j1"] = first
    one.records["j1.1"].ends = [(11.0, str(code))]
    one.outcome(code=code)
    one.told.plans["j2"], one.told.after["j2"] = replace(first, code=0), (kind, ("j1",))
    ended = msgspec.structs.replace(view.outcome, code=0)
    if ran:
        one.records["j2.1"] = RunRecord({"n1"}, [began], [(began + 1, "0")])
    else:
        ended = Outcome(Cause.DEPENDENCY_FAILED, started=False)
    one.views["j2"] = msgspec.structs.replace(view, id="j2", allocation="j2.1" if ran else "", outcome=ended)
    return one


def test_who_begins_after_what_it_waits_for_is_left_alone() -> None:
    assert after(After.OK, 11.5).verdict().violations == []
    assert after(After.ENDED, 11.5, code=3).verdict().violations == []
    assert after(After.OK, 0.0, code=3, ran=False).verdict().violations == []


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: after(After.ENDED, 10.5), "began at 10.50, and j1, which it waits for, ended at 11.00"),
        (lambda: after(After.OK, 11.5, code=3), "ran, and what it waits for had not exited with 0"),
        (lambda: after(After.OK, 0.0, ran=False), "was not run (), and nothing that it waits for had failed"),
    ],
)
def test_who_does_not_keep_to_what_it_waits_for_is_found(made: Callable[[], Case], text: str) -> None:
    assert ("j2", text) in made().verdict().wrong


# --- gangs ------------------------------------------------------------------------------------------------------------


def gang(*codes: int, retries: int = 0) -> Case:
    """A gang `g` of which each member exited with its code."""
    one = case()
    one.told = Told()
    view = one.views.pop("j1")
    record = one.records.pop("j1.1")
    assert view.outcome is not None
    request = msgspec.structs.replace(one.plan.submission.request, gang=2, retries=retries)
    submission = msgspec.structs.replace(one.plan.submission, request=request)
    for rank, code in enumerate(codes):
        name = f"g_{rank}"
        one.told.plans[name] = replace(one.plan, kind="gang", code=code, watched=False, submission=submission)
        ended = msgspec.structs.replace(view.outcome, code=code)
        one.views[name] = msgspec.structs.replace(view, id=name, allocation=f"{name}.1", node=f"n{rank}", outcome=ended)
        one.records[f"{name}.1"] = replace(record, nodes={f"n{rank}"}, ends=[(11.0, str(code))])
    one.told.gangs.append(tuple(one.views))
    return one


def in_vain(case: Case) -> None:
    """One began while the other did not; then both did."""
    case.records["g_0.2"], case.records["g_1.2"] = (replace(case.records[f"g_{rank}.1"]) for rank in (0, 1))
    case.records["g_0.1"] = RunRecord({"n0"}, [5.0])
    del case.records["g_1.1"]
    for name, view in case.views.items():
        case.views[name] = msgspec.structs.replace(view, attempt=2, allocation=f"{name}.2")


def test_a_gang_that_was_one_is_left_alone_also_where_a_part_of_it_had_begun_in_vain() -> None:
    assert gang(0, 0).verdict().violations == []
    found = gang(0, 0)
    in_vain(found)
    assert found.verdict().violations == []


def only_one_began(case: Case) -> None:
    del case.records["g_1.1"]


def whole_twice(case: Case) -> None:
    in_vain(case)
    case.records["g_1.1"] = RunRecord({"n1"}, [5.0])


def at_different_attempts(case: Case) -> None:
    case.views["g_1"] = msgspec.structs.replace(case.views["g_1"], attempt=2)


def beside_each_other(case: Case) -> None:
    in_vain(case)
    case.records["g_1.2"].beside.append(10.0)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (only_one_began, "g_0, g_1 exited with 0, and only g_0 began"),
        (whole_twice, "all of it began 2 times, at the attempts 1, 2"),
        (at_different_attempts, "its members are at the attempts 1, 2"),
        (beside_each_other, "g_1.2 ran beside an earlier attempt"),
    ],
)
def test_a_gang_that_was_not_one_is_found(spoil: Callable[[Case], None], text: str) -> None:
    found = gang(0, 0)
    spoil(found)
    assert text in [said for _, said in found.verdict().violations]
