"""Who asks for much more than they use, and what would have been enough."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.cli.jobs.wasteful import waste_of, wasteful
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State, Used
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, MILLI, Grant, Resources
from tests.grid_fixture import running_grid

MIB = 1 << 20


def view(cores: int = 8, memory: int = 8 * GIB, **more: Any) -> JobView:
    held = Resources(cores * MILLI, memory)
    state = more.pop("state", State.ENDED)
    given: dict[str, Any] = {
        "user": "ann",
        "spec": JobSpec(("x",)),
        "request": more.pop("request", Request(held)),
        "submitted": 1.0,
        "allocation": "j.1",
    }
    return JobView(id="j", state=state, grant=Grant(tuple(range(cores)), memory=memory), **(given | more))


def done(seconds: float = 3600.0, cpu: float = 3600.0, peak: int = GIB, **more: Any) -> Outcome:
    return Outcome(Cause.EXITED, seconds=seconds, cpu_seconds=cpu, peak_memory=peak, **more)


def test_what_was_held_and_not_used_is_counted_by_the_hour() -> None:
    used = Used(allocation="j.1", seconds=3600.0, cpu_seconds=3600.0, cpu_peak=1.0, memory=GIB)
    found = waste_of(view(outcome=done(), used=used))
    assert found is not None
    assert found.core_hours == pytest.approx(7.0) and found.gb_hours == pytest.approx(7 * GIB / 1e9)
    assert found.cores == 1 and GIB * 1.1 <= found.memory < GIB * 1.1 + 2 * MIB
    assert found.enough() == "--cpus 1 --mem 1.1G"


def test_the_most_at_once_is_what_it_needs_and_not_the_mean() -> None:
    used = Used(allocation="j.1", seconds=3600.0, cpu_seconds=3600.0, cpu_peak=7.4, memory=7 * GIB)
    assert waste_of(view(outcome=done(), used=used)) is None
    of_another_attempt = Used(allocation="j.0", seconds=3600.0, cpu_seconds=3600.0, cpu_peak=1.0, memory=7 * GIB)
    for unknown in (None, of_another_attempt):
        found = waste_of(view(outcome=done(), used=unknown))
        assert found is not None and found.enough() == "--mem 1.1G" and found.core_hours == 0.0


def test_less_free_memory_of_a_gpu_may_have_been_enough() -> None:
    asked = Request(Resources(8000, 8 * GIB, 1000), constraints=Constraints(gpu_memory=40 * GIB))
    full = Used(allocation="j.1", seconds=3600.0, cpu_seconds=8 * 3600.0, cpu_peak=8.0, memory=8 * GIB)
    over = done(cpu=8 * 3600.0, peak=8 * GIB)
    assert waste_of(view(outcome=over, used=full, request=asked)) is None, "its driver names no processes"
    found = waste_of(view(outcome=over, used=replace(full, gpu_memory=6 * GIB), request=asked))
    assert found is not None and found.enough() == "--gpu-memory 6.6G" and found.weight == 0.0


def test_one_that_runs_is_judged_by_what_it_used_so_far() -> None:
    used = Used(allocation="j.1", seconds=1800.0, cpu_seconds=1800.0, cpu_peak=1.0, memory=GIB)
    found = waste_of(view(state=State.RUNNING, used=used))
    assert found is not None and found.core_hours == pytest.approx(3.5)


@pytest.mark.parametrize(
    "one",
    [
        view(outcome=done(cpu=7 * 3600.0, peak=7 * GIB)),
        view(outcome=Outcome(Cause.EXITED, code=1, seconds=9.0, cpu_seconds=1.0, peak_memory=1)),
        view(outcome=Outcome(Cause.CANCELLED, seconds=9.0, cpu_seconds=1.0, peak_memory=1)),
        view(outcome=done(seconds=0.0)),
        view(outcome=done(cpu=0.0, peak=0)),
        view(cores=1, memory=0, outcome=done()),
        view(spec=JobSpec(("hold",), hold=True), outcome=done()),
        view(state=State.WAITING),
    ],
)
def test_others_waste_nothing_that_is_known(one: JobView) -> None:
    assert waste_of(one) is None


def test_those_that_wasted_most_come_first() -> None:
    some = [view(outcome=done(seconds=seconds, cpu=seconds)) for seconds in (60.0, 7200.0, 600.0)]
    assert [one.view.outcome.seconds for one in wasteful(some) if one.view.outcome] == [7200.0, 600.0, 60.0]


def test_a_grid_tells_who_asks_for_too_much(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        assert grid.run("jobs", "--wasteful").stdout == "no job asked for much more than it used\n"
        burns = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
        grid.run("run-shared", "--no-ship", "--cpus", "0.5", "--mem", "1G", "python3", "-c", burns)
        grid.run("run-shared", "--no-ship", "--cpus", "0.5", "true")
        done = grid.run("jobs", "--wasteful")
        (row,) = grid.json("jobs", "--wasteful")["wasteful"]
        assert row["enough"]["memory"] < 300 * MIB and row["gb_hours"] > 0 and row["enough"]["cpu"] is None
        assert "GB-hours" in done.stdout and f"--mem {row['enough']['memory'] // MIB}M" in done.stdout
        assert "in 1 job" in done.stderr
        assert "would have been enough" in grid.run("job", "show", row["id"]).stdout
        assert grid.run("jobs", "--wasteful", "--state", "ended").returncode == 2
