"""Every fault point with every fault that can meet it, on a grid of real processes: what was acknowledged is not lost,
no job starts twice, and no result is wrong.

Each job writes its start to a file of its own, which is the witness. The faults are for one life of one process; what
died of it is started again. The suite tries the deadliest at each point, `GRID_FAULT_MATRIX=all` all of them.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from distributed_grid.coordinator.client import GridClient, describe_job
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobView
from distributed_grid.protocol.messages import Submission
from distributed_grid.runtime.faults import POINTS
from tests.e2e.scenes import PATIENCE, Scene, descendants, end_tree, lasting

JOBS = 6
ANSWER_SECONDS = 2.0
"""So long a client waits for an answer before it asks again on a new connection, under the same key."""
ALL = os.environ.get("GRID_FAULT_MATRIX") == "all"

SENT = ("coordinator.send", "agent.send")
FRAMES = (*SENT, "coordinator.reply")
"""A frame that is lost leaves a gap in the sequence, by which the other end sees that it has to begin anew."""
DISKS = (
    "coordinator.epoch",
    "coordinator.commit",
    "coordinator.blob",
    "agent.epoch",
    "agent.folder",
    "supervisor.write",
    "supervisor.sync",
    "supervisor.rewrite",
)
AT_START = ("coordinator.epoch", "agent.epoch", "supervisor.rewrite")
"""Passed once in a life, at its beginning; the others are met with the grid at work."""


class Case(NamedTuple):
    """A fault: at which point, what happens, and what GRID_FAULTS says for it."""

    point: str
    action: str

    @property
    def part(self) -> str:
        """Whose it is."""
        return "coordinator" if self.point.startswith("coordinator") else "n1"

    @property
    def asked(self) -> str:
        action, _, after = self.action.partition(" ")
        which = "1" if self.point in AT_START else "4" if self.action == "drop" and self.point in SENT else "2"
        if action in ("eio", "enospc", "erofs") and which == "2":
            which = "2-3"  # also the next try fails
        seconds = "=0.7" if action == "delay" else ""
        return f"{self.point}{'.after' if after else ''}:{which}:{action}{seconds}"

    def __str__(self) -> str:
        return f"{self.point}-{self.action.replace(' ', '-')}"


def cases() -> Iterator[Case]:
    """Yield all cases, or those that the suite tries: to die before or after a step, a disk that fails, a frame that is
    lost."""
    for point in POINTS:
        actions = ["kill", "kill after"]
        if point in FRAMES:
            actions.append("drop")
        if point in DISKS:
            actions += ["eio", "enospc"]
        if point == "supervisor.spawn":
            actions.append("eio")
        if ALL:
            actions += ["delay", *(["erofs"] if point in DISKS else [])]
        else:
            actions = [action for action in actions if (point, action) not in LEFT_OUT]
        yield from (Case(point, action) for action in actions)


LEFT_OUT = {
    ("coordinator.epoch", "kill"),
    ("coordinator.epoch", "enospc"),
    ("coordinator.commit", "enospc"),
    ("coordinator.perform", "kill"),
    ("coordinator.send", "kill"),
    ("coordinator.reply", "kill"),
    ("coordinator.blob", "kill"),
    ("coordinator.blob", "eio"),
    ("agent.epoch", "kill"),
    ("agent.epoch", "enospc"),
    ("agent.folder", "kill"),
    ("agent.folder", "eio"),
    ("agent.launch", "kill"),
    ("agent.send", "kill"),
    ("supervisor.write", "enospc"),
    ("supervisor.write", "kill after"),
    ("supervisor.sync", "enospc"),
    ("supervisor.rewrite", "kill"),
    ("supervisor.rewrite", "enospc"),
    ("supervisor.tell", "kill"),
}
"""Next to what another case of the same point shows; `GRID_FAULT_MATRIX=all` tries them too."""


@pytest.fixture(scope="module")
def grid() -> Iterator[Scene]:
    """Two nodes: what one of them cannot do, the other can."""
    with lasting(cores=4) as made:
        with asyncio.Runner() as runner:
            runner.run(made.agent("n2", cores=[0, 1], virtual=True))
        yield made


@pytest.mark.parametrize("case", list(cases()), ids=str)
async def test_nothing_is_lost_or_done_twice_whatever_fails(grid: Scene, case: Case, tmp_path: Path) -> None:
    before = met(grid, case)
    await arm(grid, case)
    async with nursed(grid):
        if case.part != "coordinator" or case.point == "coordinator.send" and case.action == "drop":
            # So that the jobs do not go elsewhere, and other frames follow one that is lost.
            await grid.until(lambda: both_offer(grid), "both nodes offer")
        jobs = await submit(grid, case, tmp_path)
        views = await asyncio.gather(*(end(grid, job) for job in jobs))
    assert met(grid, case) > before, "the fault was not met"
    for number, view in enumerate(views):
        judge(case, number, view, tmp_path / f"starts{number}")
    await grid.until(lambda: nothing_is_held(grid), "nothing is held, and nobody is left")


# --- the fault --------------------------------------------------------------------------------------------------------


async def arm(grid: Scene, case: Case) -> None:
    """Begin a life in which this fault will come."""
    grid.kill(case.part)
    if case.part != "coordinator":  # a new one leaves no node alone for what it declined, and its epoch is to be noted
        grid.kill("coordinator")
        await grid.coordinator()
    if case.point.startswith("supervisor"):
        end_tree(supervisor(grid, case.part))
    grid.faults[case.part] = case.asked
    if case.part == "coordinator":
        grid.begin_coordinator()
    else:
        grid.again(case.part)


@asynccontextmanager
async def nursed(grid: Scene) -> AsyncIterator[None]:
    """Start again what dies, which is then without the fault."""

    async def nurse() -> None:
        while True:
            for name, process in list(grid.parts.items()):
                if process.poll() is not None:
                    grid.begin_coordinator() if name == "coordinator" else grid.again(name)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(nurse())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def supervisor(grid: Scene, node: str) -> int:
    pid: int = json.loads((grid.place / node / "supervisor.pid").read_text())["pid"]
    return pid


def met(grid: Scene, case: Case) -> int:
    """Return how often the fault has happened so far: each time is logged in a line."""
    words = f"GRID_FAULTS {case.asked.partition(':')[0]}:".encode()
    logs = [*grid.place.glob("*.log"), *grid.place.glob("*/*.log")]
    return sum(log.read_bytes().count(words) for log in logs)


# --- the client -------------------------------------------------------------------------------------------------------


async def submit(grid: Scene, case: Case, place: Path) -> list[str]:
    """Submit until it was acknowledged, however often that takes: under their keys these are the same jobs."""
    made: list[Submission] = []
    ids: list[str] = []
    while len(ids) < JOBS:
        with suppress(GridError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS), GridClient(grid.url, patience=ANSWER_SECONDS) as client:
                bundle = await shipped(client, place) if case.point == "coordinator.blob" else ""
                made = made or [job(number, place, bundle) for number in range(JOBS)]
                for one in made[len(ids) :]:
                    ids += await client.submit_many([one])
        await asyncio.sleep(0.05)
    return ids


def job(number: int, place: Path, bundle: str) -> Submission:
    witness = place / f"starts{number}"
    script = f"echo start >> {witness}; sync {witness}; sleep 0.1; exit {number}"
    return describe_job(["sh", "-c", script], nodes=["n1"], bundle=bundle)


async def shipped(client: GridClient, place: Path) -> str:
    folder = place / "shipped"
    folder.mkdir(exist_ok=True)
    for number in range(3):
        (folder / f"file{number}").write_text(f"{place}{number}")
    return await client.ship(folder)


async def end(grid: Scene, job: str) -> JobView:
    """Return how the job ended, repeating the request until there is an answer."""
    for _ in range(40):
        with suppress(GridError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS), GridClient(grid.url, patience=ANSWER_SECONDS) as client:
                return await client.wait(job)
        await asyncio.sleep(0.1)
    raise AssertionError(f"{job} does not end")


# --- the judge --------------------------------------------------------------------------------------------------------


NEVER_BEGUN = {"supervisor.spawn": Cause.SPAWN_FAILED, "agent.folder": Cause.WORKDIR_FAILED}
"""What a node may say of a job that it could not begin: its owner is told so, and nothing of it has run."""


def judge(case: Case, number: int, view: JobView, witness: Path) -> None:
    """Check for one start and the job's own exit code; the code may be lost only with the supervisor."""
    starts = witness.read_text().count("start\n") if witness.exists() else 0
    assert view.outcome is not None
    if view.outcome.cause is Cause.SUPERVISOR_LOST:
        assert case.point.startswith("supervisor") and starts <= 1, (starts, view.outcome)
        return
    if view.outcome.cause is NEVER_BEGUN.get(case.point):
        assert not view.outcome.started and starts == 0, (starts, view.outcome)
        return
    assert (view.outcome.cause, view.outcome.code, starts) == (Cause.EXITED, number, 1), (starts, view.outcome)


async def both_offer(grid: Scene) -> bool:
    with suppress(GridError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            return len(await grid.offers()) == 2
    return False


def makes_jobs(pid: int) -> bool:
    """Whether this is a spawner, or the server that forks them: those stay for the next job."""
    with suppress(OSError):
        return b"supervisor/main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


async def nothing_is_held(grid: Scene) -> bool:
    async with asyncio.timeout(PATIENCE), GridClient(grid.url) as client:
        held = (await client.shared()).allocations
        counts = (await client.status()).counts
    left = [pid for node in ("n1", "n2") for pid in descendants(supervisor(grid, node)) if not makes_jobs(pid)]
    half = list((grid.place / "coordinator" / "blobs" / "arriving").iterdir())
    return not (held or counts or left or half)
