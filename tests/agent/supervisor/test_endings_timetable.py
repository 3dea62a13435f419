"""The timetable of jobs, over processes that only note what they are told, and a clock that is a number."""

from collections.abc import Callable
from typing import Any

from distributed_grid.agent.supervisor.endings import DOUBT, RESTORED, Endings, Freezer
from distributed_grid.agent.supervisor.job import NEVER, OWNER, READER, Job, JobState
from tests.agent.supervisor.test_allocations import Disk, Machine


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[dict[str, Any]] = []
        self.unended: list[str] = []
        self.machine, self.journal = Machine(), Disk()
        clock: Callable[[], float] = lambda: self.now  # noqa: E731
        self.freezer = Freezer(self.machine, self.journal, self.said.append, lambda line: None, clock)
        self.endings = Endings(self.machine, self.journal, self.freezer, lambda job: self.unended.append(job.id), clock)

    def job(self, limit: float = 0.0, grace: float = 5.0, limits: dict[str, Any] | None = None) -> Job:
        job = Job("j1.1", self.now, limit, grace, limits=limits)
        job.runs(7)
        self.endings.arm(job)
        return job

    def at(self, now: float) -> list[tuple[str, str]]:
        """What was told to processes by then."""
        self.now = now
        self.endings.fire(now)
        self.endings.act()
        told, self.machine.told = self.machine.told, []
        return told


def test_a_time_limit_is_followed_by_a_grace_and_the_kill() -> None:
    scene = Scene()
    scene.job(limit=10.0)
    assert scene.endings.due == 110.0 and scene.at(109.0) == []
    assert scene.at(110.0) == [("terminate", "j1.1")] and scene.journal.records[-1][:3] == [
        "stop",
        "j1.1",
        "time-limit",
    ]
    assert scene.at(114.0) == [] and scene.at(115.0) == [("kill", "j1.1")]


def test_nothing_is_signalled_before_the_journal_has_why() -> None:
    scene = Scene()
    gentle, sudden = scene.job(), Job("j2.1", scene.now, 10.0, 0.0)
    sudden.runs(8)
    scene.endings.arm(sudden)
    scene.endings.ask(gentle, "cancelled", "", 5.0)
    assert scene.journal.records == [["stop", "j1.1", "cancelled", ""]] and scene.machine.told == []
    assert scene.at(100.0) == [("terminate", "j1.1")]
    assert ("kill", "j2.1") not in scene.at(110.0)
    assert scene.journal.records[-1][:3] == ["stop", "j2.1", "time-limit"]
    assert scene.at(110.0) == [("kill", "j2.1")]


def test_what_lives_after_its_kill_is_killed_again_and_told_once() -> None:
    scene = Scene()
    scene.endings.ask(scene.job(), "cancelled", "", 0.0)
    assert scene.at(100.0) == [("kill", "j1.1")]
    while scene.now < 100.0 + DOUBT + 3:
        scene.at(scene.endings.due)
    assert scene.unended == ["j1.1"]


def test_a_warning_comes_before_the_limit_and_once() -> None:
    scene = Scene()
    scene.job(limit=10.0, limits={"signal": 10, "before": 4.0})
    assert scene.at(106.0) == [("signal 10", "j1.1")] and scene.at(107.0) == []
    assert ["warned", "j1.1"] in scene.journal.records


def test_frozen_time_does_not_count() -> None:
    scene = Scene()
    job = scene.job(limit=10.0)
    scene.freezer.ask(job, "the owner is back", 30.0)
    scene.freezer.act()
    assert scene.at(112.0)[0] == ("stop", "j1.1"), "what of it runs all the same is stopped again"
    scene.endings.thaw(job)
    assert job.frozen_for == 12.0 and scene.endings.due == 122.0
    assert [(one["why"], one["in_all"]) for one in scene.said] == [("the owner is back", 0.0), ("", 12.0)]


def test_a_freeze_that_nobody_renews_is_over_and_so_is_one_of_an_earlier_supervisor() -> None:
    scene = Scene()
    job = scene.job()
    scene.freezer.ask(job, "the owner is back", 5.0)
    scene.freezer.act()
    assert ("resume", "j1.1") in scene.at(105.0) and not job.freezes
    job.freeze(scene.now, "the owner is back")
    scene.freezer.restore(job)
    scene.at(105.0 + RESTORED - 0.1)
    assert job.state is JobState.FROZEN
    scene.at(105.0 + RESTORED)
    assert not job.freezes and scene.endings.due == NEVER


def test_two_causes_of_a_freeze_do_not_end_each_other() -> None:
    scene = Scene()
    job = scene.job()
    scene.freezer.ask(job, "keyboard in use", 30.0)
    scene.freezer.ask(job, "5M of stdout unread", NEVER, READER)
    scene.freezer.act()
    assert scene.machine.told == [("stop", "j1.1")], "it is stopped once"
    assert [(one["cause"], one["why"]) for one in scene.said] == [
        (OWNER, "keyboard in use"),
        (READER, "5M of stdout unread"),
    ]
    scene.endings.thaw(job, OWNER)
    assert job.state is JobState.FROZEN and ("resume", "j1.1") not in scene.machine.told
    scene.freezer.ask(job, "keyboard in use", 30.0)
    scene.endings.thaw(job, READER)
    assert job.state is JobState.FROZEN
    assert ("resume", "j1.1") in scene.at(130.0), "the owner's is not repeated"
    assert job.state.value == "running" and not job.freezes


def test_time_frozen_for_the_reader_alone_counts() -> None:
    scene = Scene()
    job = scene.job(limit=10.0)
    scene.freezer.ask(job, "5M of stdout unread", NEVER, READER)
    scene.freezer.act()
    assert scene.endings.due == 110.0
    told = scene.at(110.0)
    assert told.index(("resume", "j1.1")) < told.index(("terminate", "j1.1")), "as at a pipe, the limit ends it"


def test_a_next_supervisor_knows_both_causes() -> None:
    scene = Scene()
    job = scene.job()
    scene.freezer.ask(job, "keyboard in use", 30.0)
    scene.freezer.ask(job, "5M of stdout unread", NEVER, READER)
    found = Job("j1.1")
    for kind, _, *rest in [job.begin(), *scene.journal.records]:
        found.take(kind, rest)
    assert found.freezes == job.freezes and set(found.freezes) == {OWNER, READER}
    scene.endings.thaw(job, READER)
    kind, _, *rest = scene.journal.records[-1]
    found.take(kind, rest)
    assert set(found.freezes) == {OWNER} and found.state is JobState.FROZEN


def test_who_is_to_end_is_let_go_on_first() -> None:
    scene = Scene()
    job = scene.job()
    scene.freezer.ask(job, "the owner is back", 30.0)
    scene.endings.ask(job, "cancelled", "", 5.0)
    scene.endings.act()
    assert scene.machine.told == [("resume", "j1.1"), ("terminate", "j1.1")]
