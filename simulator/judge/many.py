"""What must be true of arrays, and of jobs that wait for others, held against what is on disk and what really ran."""

from distributed_grid.protocol.jobs import After, Cause, Outcome, State
from distributed_grid.simulator.disk import Row
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judge.truth import Run, Truth


def not_before_others(truth: Truth, run: Run) -> None:
    """Who waits for others begins only when what it waits for has happened, and is on disk where that is an end."""
    for number, kind in truth.plans[_number(run.job)].after:
        for name, row in _rows(truth, number):
            ended = row.outcome if row.state is State.ENDED else None
            # Where nobody can know whether it began, it is taken to have.
            began = any(other.job == name for other in truth.runs.values()) or (ended is not None and ended.started)
            if kind is After.STARTED and not began:
                raise Violation(run.job, f"it starts before {name}, after whose start it was to run")
            if kind is After.ENDED and ended is None:
                raise Violation(run.job, f"it starts before the end of {name} is on disk")
            if kind is After.OK and not _ok(ended):
                raise Violation(run.job, f"it starts, and it is not on disk that {name} exited with 0")


def not_too_many(truth: Truth, run: Run) -> None:
    """Of an array no more run at once than it says; what was given up may run on."""
    most = truth.plans[_number(run.job)].most
    array = run.job.partition("_")[0]
    together = [
        one.job for one in truth.runs.values()
        if one.alive and one.job.partition("_")[0] == array and one.job not in truth.ended
    ]  # fmt: skip
    if most and len(set(together) | {run.job}) > most:
        raise Violation(run.job, f"{', '.join(together)} run at once, and {most} may")


def failed_rightly(truth: Truth, row: Row) -> None:
    """After a commit: who ended by its dependencies waited for something that can never happen."""
    assert row.outcome is not None
    if row.outcome.cause is not Cause.DEPENDENCY_FAILED:
        return
    for number, kind in truth.plans[_number(row.id)].after:
        for _, other in _rows(truth, number):
            ended = other.outcome if other.state is State.ENDED else None
            if kind is After.OK and ended is not None and not _ok(ended):
                return
            if kind is After.STARTED and ended is not None and not ended.started:
                return
    raise Violation(row.id, f"it ended by its dependencies ({row.outcome.text}), and none of them has failed")


def _number(job: str) -> int:
    return int(job[1:].partition("x")[0])


def _ok(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.cause is Cause.EXITED and outcome.code == 0


def _rows(truth: Truth, number: int) -> list[tuple[str, Row]]:
    """A planned job as it is on disk, or all of its members."""
    assert truth.disk is not None
    plan, name = truth.plans[number], truth.promised[number]
    count = plan.members or plan.request.gang
    names = [f"{name}_{index}" for index in range(count)] if count else [name]
    return [(one, truth.disk.rows[one]) for one in names]
