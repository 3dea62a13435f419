"""A store with a history, made quickly: jobs as a real grid leaves them, put in through the store itself."""

from collections.abc import Iterator
from pathlib import Path

from distributed_grid.coordinator.core.commands import Record, RecordAllocation, RecordJob, RecordNode
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended, Job
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State, Step
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import GIB, Grant, Resources

NODES = 20
BATCH = 5000


def fill(
    path: Path, ended: int, live: int = 0, until: float = 1_800_000_000.0, over: float = 30 * 86400.0, first: int = 0
) -> None:
    """Put in jobs that ended one after the other over `over` seconds up to `until` (grid time), and live ones: one in
    ten runs, the others wait. Their numbers begin at `first`."""
    store = Store(path)
    store._writer.execute("PRAGMA synchronous = OFF")
    records: list[Record] = [RecordNode(_facts(number)) for number in range(NODES)]
    pace = over / max(1, ended)
    for number in range(ended):
        records += _ended(first + number, until - (ended - number) * pace)
        if len(records) >= 2 * BATCH:
            store.commit(store.snapshot(records, until))
            records = []
    for number in range(live):
        records += _live(first + ended + number, until, number % 10 == 0)
    store.commit(store.snapshot(records, until))
    store.close()


def _facts(number: int) -> NodeFacts:
    cores = tuple(range(64))
    whole = Resources(64_000, 256 * GIB)
    return NodeFacts(
        name=f"n{number}",
        hostname=f"n{number}",
        boot_id="b",
        incarnation=1,
        cores=cores,
        memory=256 * GIB,
        lendable=whole,
    )


def _job(number: int, at: float) -> Job:
    # Ids are random in life, so that neighbours in time are strangers in the index.
    name = f"j-{number * 0x9E3779B97F4A7C15 % (1 << 60):012x}"
    spec = JobSpec(("python", "train.py", "--seed", str(number)), env={"LR": "0.001"}, name=f"train-{number % 1000}")
    return Job(
        id=name,
        key=f"{number:032x}",
        user=f"user{number % 7}",
        spec=spec,
        request=Request(Resources(cpu=1000)),
        submitted=at,
    )


def _held(job: Job, number: int, at: float, state: State) -> Allocation:
    job.tries, job.allocation = 1, f"{job.id}.1"
    attempt = Attempt(f"n{number % NODES}", Grant((number // 20 % 64,)), at + 0.1)
    job.phase = Active(state=state, attempt=attempt)
    return Allocation(
        id=job.allocation, job=job.id, node=attempt.node, grant=Grant((number // 20 % 64,)), state=state, granted=at,
        started=at + 0.1,
    )  # fmt: skip


def _ended(number: int, at: float) -> Iterator[Record]:
    job = _job(number, at - 60)
    held = _held(job, number, at - 60, State.ENDED)
    held.ended = at
    outcome = Outcome(
        Cause.EXITED, seconds=60, cpu_seconds=55, peak_memory=1 << 28, stdout_size=4096, stdout_tail=b"epoch 9\n" * 50
    )
    job.phase = Ended(outcome=outcome, at=at, attempt=job.phase.attempt)
    job.story = [
        Step(at - 60, State.WAITING, "submitted"),
        Step(at - 60, State.STARTING, f"granted on {job.node}, confidence 0.93"),
        Step(at - 59, State.RUNNING, f"started on {job.node}"),
        Step(at, State.ENDED, "exited with code 0"),
    ]
    yield from (RecordJob(job, new=True), RecordAllocation(held))


def _live(number: int, at: float, runs: bool) -> Iterator[Record]:
    job = _job(number, at)
    job.story = [Step(at, State.WAITING, "submitted")]
    if runs:
        held = _held(job, number // 10, at, State.RUNNING)
        yield RecordAllocation(held)
    yield RecordJob(job, new=True)
