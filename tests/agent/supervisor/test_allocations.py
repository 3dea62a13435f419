"""What a supervisor promises of allocations, without processes, disk or clock: nothing is started twice, an end is told
once it is durable, a lease that is over is not revived."""

from typing import Any

import pytest

from distributed_grid.agent.supervisor.allocations import BATCH_SECONDS, RECENT_SECONDS, Allocations, ReportBatch, Syncs
from distributed_grid.agent.supervisor.endings import Endings, Freezer
from distributed_grid.agent.supervisor.job import NEVER, Job, Leases, Recorded


class Disk:
    """A journal that is what was appended."""

    sound = True

    def __init__(self) -> None:
        self.records: list[list[Any]] = []

    def append(self, *record: Any) -> None:
        self.records.append([*record])


class JournaledJobs(Recorded):
    unknown = False

    def __init__(self) -> None:
        super().__init__()
        self.syncs: Syncs[Any] = Syncs()
        self.journal = Disk()


class Machine:
    """Processes that do as they are told, and what they were told."""

    due = NEVER

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def members(self, job: Job) -> dict[int, Any]:
        return {}

    def signal_group(self, job: Job, signum: int) -> None:
        self.told.append((f"signal {signum}", job.id))

    def tidy(self) -> None:
        """There is nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda job: self.told.append((name, job.id))


class Launches(dict[str, dict[str, Any]]):
    def add(self, key: str, order: dict[str, Any]) -> None:
        self[key] = order

    def drop(self, key: str) -> None:
        self.pop(key, None)


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.journaled, self.machine, self.launches, self.leases = JournaledJobs(), Machine(), Launches(), Leases()
        journal, clock = self.journaled.journal, lambda: self.now
        freezer = Freezer(self.machine, journal, self.said.append, self.lines.append, clock)
        self.endings = Endings(self.machine, journal, freezer, lambda job: None, clock)
        decides = self.leases, self.endings, self.tell, lambda job: None, self.lines.append, clock
        self.allocations = Allocations(self.journaled, self.launches, *decides)

    def tell(self, message: dict[str, Any], patient: bool = False) -> None:
        self.said.append(message)

    def launch(self, key: str, lease: float = 0.0, lease_from: float = 0.0) -> None:
        asked = {"limit": 0.0, "grace": 5.0, "lease": lease, "lease_from": lease_from}
        self.allocations.launch({"op": "launch", "id": key, **asked})

    def runs(self, key: str, lease: float = 0.0) -> Job:
        """It was launched, and runs."""
        self.launch(key, lease, self.now)
        self.launches.drop(key)
        job = self.journaled.jobs[key] = Job(key, self.now, lease=lease, since=self.now)
        job.runs(7)
        return job

    def durable(self) -> None:
        syncs = self.journaled.syncs
        syncs.take_unwritten()
        syncs.begin([])
        syncs.succeeded()
        self.allocations.tell_durable()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_launch_that_is_asked_for_again_is_told_as_it_stands_and_not_started(scene: Scene) -> None:
    scene.runs("j1.1")
    scene.launch("j1.1")
    assert not scene.launches and [one["op"] for one in scene.said] == ["started"]


def test_an_end_is_told_once_it_is_durable_and_known_until_it_is_acknowledged(scene: Scene) -> None:
    job = scene.runs("j1.1")
    job.main_ended(0)
    scene.allocations.is_over(job, job.ended(scene.now))
    scene.launch("j1.1")
    assert scene.said == [] and scene.allocations.known()[0]["outcome"] is None
    scene.durable()
    assert [one["outcome"]["cause"] for one in scene.said] == ["exited"]
    scene.allocations.forget(["j1.1"])
    assert scene.allocations.known() == [] and scene.journaled.journal.records[-1] == ["forget", "j1.1"]
    for ask in (scene.launch, lambda key: scene.allocations.stop(key, "withdrawn", "", 0.0, unless_started=True)):
        ask("j1.1")
        assert not scene.launches and scene.said.pop()["outcome"] == {
            "cause": "node-lost", "text": "it was over and acknowledged before; an allocation is never started twice",
        }, "never that it had not run: it would be run again"  # fmt: skip


def test_what_is_stopped_before_its_launch_is_never_started(scene: Scene) -> None:
    scene.allocations.stop("j1.1", "cancelled", "", 5.0)
    scene.durable()
    scene.launch("j1.1")
    assert not scene.launches and all(one["outcome"]["started"] is False for one in scene.said)


def test_what_was_not_told_to_have_started_is_not_told_before_its_end_is_durable(scene: Scene) -> None:
    scene.allocations.stop("j1.1", "cancelled", "", 5.0)
    assert scene.allocations.known() == []


def test_a_lease_that_is_over_ends_its_job_and_is_not_revived(scene: Scene) -> None:
    job = scene.runs("j1.1", lease=10.0)
    scene.now = 111.0
    scene.allocations.renew(110.5)
    scene.endings.act()
    assert job.cause == "lease-expired" and scene.machine.told == [("terminate", "j1.1")]


def test_a_launch_whose_lease_is_over_when_it_comes_is_refused(scene: Scene) -> None:
    scene.launch("j1.1", lease=10.0, lease_from=80.0)
    scene.durable()
    assert not scene.launches and scene.said[-1]["outcome"]["cause"] == "lease-expired"


def test_an_unknown_stop_is_not_answered_while_something_may_live_that_is_not_known(scene: Scene) -> None:
    scene.journaled.unknown = True
    scene.allocations.stop("j1.1", "cancelled", "", 5.0)
    assert scene.said == [] and not scene.journaled.jobs and "not known" in scene.lines[0]


def test_a_launch_with_a_path_for_an_id_is_ignored(scene: Scene) -> None:
    scene.launch("../j1.1")
    assert not scene.launches and not scene.journaled.jobs


# --- when ends are told -----------------------------------------------------------------------------------------------


def test_an_end_is_due_at_once_where_no_other_is_coming() -> None:
    assert ReportBatch().due(True, -NEVER, 10.0) == 10.0
    assert ReportBatch().due(True, 10.0 - RECENT_SECONDS, 10.0) == 10.0, "what has run for a while may run for long"
    assert ReportBatch().due(False, 9.9, 10.0) == NEVER


def test_ends_wait_for_others_for_a_moment_from_the_first_of_them() -> None:
    batch = ReportBatch()
    assert batch.due(True, 9.9, 10.0) == 10.0 + BATCH_SECONDS
    assert batch.due(True, 10.0, 10.001) == 10.0 + BATCH_SECONDS, "the second one makes the first wait no longer"
    batch.done()
    assert batch.due(True, 10.0, 10.003) == 10.003 + BATCH_SECONDS


def test_what_waits_is_due_as_soon_as_the_last_young_job_is_over() -> None:
    batch = ReportBatch()
    batch.due(True, 9.9, 10.0)
    assert batch.due(True, -NEVER, 10.001) == 10.001
