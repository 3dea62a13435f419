"""Jobs of an earlier supervisor: real processes, watched by pidfds, and their ends as spawners noted them."""

import os
import selectors
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, Job, Place
from distributed_grid.agent.supervisor.journal import parse
from distributed_grid.agent.supervisor.recovery import CODE, Adopted
from distributed_grid.agent.supervisor.spawners import Noted
from distributed_grid.protocol.jobs import Cause
from tests.agent.conftest import Bench, runs

MakeBench = Callable[..., Awaitable[Bench]]


class Scene:
    """A job whose main process is `process`, behind a spawner that works as long as we do."""

    def __init__(self) -> None:
        before = procs.ticks()
        self.process = subprocess.Popen(["sleep", "60"])
        self.notes: dict[str, Noted] = {}
        self.told: list[tuple[str, int | None]] = []
        self.selector = selectors.DefaultSelector()
        self.job = Job("j-aaaaaaaaaaaa.1")
        self.job.adopted, self.job.spawned = True, (before, procs.ticks())
        self.job.pid = self.process.pid
        ours = procs.stat(os.getpid())
        assert ours is not None
        self.job.place = Place("a1", "none", os.getuid(), os.getgid(), False, os.getpid(), ours.start, 0)
        slots: Any = SimpleNamespace(noted=lambda place, key: self.notes.get(key))
        self.adopted = Adopted(slots, self.selector, lambda job, status: self.told.append((job.id, status)))

    def note(self, status: int | None) -> None:
        self.notes[self.job.id] = Noted(status, self.process.pid, *self.job.spawned)

    def ends(self) -> None:
        self.process.kill()
        for key, _ in self.selector.select(30.0):
            key.data()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.process.kill()
    made.process.wait()
    made.selector.close()


def test_a_process_that_runs_is_watched_until_its_spawner_has_noted_how_it_ended(scene: Scene) -> None:
    assert scene.adopted.watch(scene.job)
    assert scene.job.pidfd >= 0 and scene.adopted.due == NEVER
    scene.note(9)
    scene.ends()
    assert scene.told == [(scene.job.id, 9)]
    assert scene.job.pidfd < 0 and not scene.selector.get_map() and scene.adopted.due == NEVER


def test_an_exit_code_that_is_not_noted_yet_is_looked_for_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "status_by_pidfd", lambda *_: None)  # as before Linux 6.15
    assert scene.adopted.watch(scene.job)
    scene.note(None)
    scene.ends()
    assert not scene.told and scene.adopted.due < NEVER
    scene.note(9)
    scene.adopted.poll(procs.now())
    assert scene.told == [(scene.job.id, 9)]


def test_where_nobody_notes_it_in_time_it_is_unknown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "status_by_pidfd", lambda *_: None)
    assert scene.adopted.watch(scene.job)
    scene.ends()
    scene.adopted.poll(procs.now())
    assert not scene.told
    scene.adopted.poll(procs.now() + CODE)
    assert scene.told == [(scene.job.id, None)]


def test_a_spawner_that_is_gone_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procs, "status_by_pidfd", lambda *_: None)
    scene.job.place = Place("a1", "none", os.getuid(), os.getgid(), False, 2**22 + 1, 1, 0)
    assert scene.adopted.watch(scene.job)
    scene.ends()
    assert scene.told == [(scene.job.id, None)]


def test_another_process_with_its_pid_is_not_taken_for_it(scene: Scene) -> None:
    scene.job.spawned = 1, 2
    scene.note(0)
    assert not scene.adopted.watch(scene.job)
    assert scene.job.pidfd < 0 and not scene.selector.get_map()
    scene.adopted.poll(procs.now())
    assert scene.told == [(scene.job.id, 0)]


def test_what_the_journal_does_not_say_is_taken_from_the_notes(scene: Scene) -> None:
    scene.note(None)
    scene.job.pid = 0
    scene.adopted.find(scene.job)
    assert scene.job.pid == scene.process.pid and scene.adopted.watch(scene.job)


def test_what_a_job_took_is_what_its_spawner_noted_unless_more_was_seen(scene: Scene) -> None:
    scene.notes[scene.job.id] = Noted(0, scene.process.pid, *scene.job.spawned, cpu=2.5, peak=4096)
    scene.job.cpu, scene.job.peak = 1.0, 8192
    scene.adopted.account(scene.job)
    assert (scene.job.cpu, scene.job.peak) == (2.5, 8192)
    scene.notes.clear()
    scene.adopted.account(scene.job)
    assert (scene.job.cpu, scene.job.peak) == (2.5, 8192)


def test_a_job_of_which_nobody_knows_a_process_has_not_run(scene: Scene) -> None:
    scene.job.pid = 0
    scene.adopted.find(scene.job)
    assert not scene.adopted.watch(scene.job)
    scene.adopted.poll(procs.now())
    assert scene.told == [(scene.job.id, None)]


# --- with a supervisor ------------------------------------------------------------------------------------------------


async def test_a_job_whose_supervisor_was_killed_just_after_its_start_runs_on(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.spawn.after:1:kill")
    bench = await make_bench()
    os.mkfifo(gate := bench.dir / "gate")
    id = bench.launch("sh", "-c", f"read go <{gate}; exit 7", directory=bench.dir)
    await bench.started(id)
    gate.write_text("go\n")
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 7)


@pytest.fixture
async def ordered(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, int]:
    """Where the supervisor is killed when it has ordered the next start: of a spawner that stands still, and gets
    neither to its order nor to its end."""
    monkeypatch.setenv("GRID_FAULTS", "supervisor.spawn:2:kill")
    bench = await make_bench()
    spawner = await bench.idle_spawner()
    os.kill(spawner, signal.SIGSTOP)
    return bench, spawner


async def test_a_job_that_had_not_begun_when_its_supervisor_was_killed_never_ran_and_waits_again_at_once(
    ordered: tuple[Bench, int],
) -> None:
    bench, spawner = ordered
    outcome = await bench.ended(bench.launch("sleep", "600", grace=600.0))
    assert (outcome.cause, outcome.started, runs(spawner)) == (Cause.WITHDRAWN, False, False)


async def test_a_job_may_have_begun_whose_killed_spawner_was_of_a_release_that_does_not_note_that(
    ordered: tuple[Bench, int],
) -> None:
    bench, spawner = ordered
    (note,) = (bench.dir / "spawners").iterdir()
    lines = note.read_text().splitlines(keepends=True)
    note.write_text(lines[0] + lines[2])
    outcome = await bench.ended(bench.launch("sleep", "600", grace=600.0))
    assert outcome.cause is Cause.SUPERVISOR_LOST and not runs(spawner)


async def test_an_exit_code_outlives_a_supervisor_that_read_it_and_was_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    id = bench.launch("sh", "-c", f"read go <{gate}; exit 7")
    spawner = await bench.spawner(id)
    await bench.launcher.close()
    os.kill(bench.launcher.supervisor_pid, signal.SIGKILL)
    gate.write_text("go\n")
    await bench.until(lambda: procs.stat(spawner) is None)
    monkeypatch.setenv("GRID_FAULTS", "supervisor.rewrite:1:kill")
    await bench.restart()
    assert "GRID_FAULTS" in (bench.dir / "supervisor.log").read_text()
    outcome = next((one.outcome for one in bench.known if one.outcome), None) or await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 7)


BUSY = "count=0; while [ $count -lt 200000 ]; do count=$((count+1)); done"
"""Takes some 0.2 s of CPU time in a shell."""


async def test_a_job_that_ends_under_another_supervisor_is_told_with_the_cpu_time_of_all_of_it(bench: Bench) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    id = bench.launch("sh", "-c", f"({BUSY}); read go <{gate}; {BUSY}; exit 7")
    await bench.started(id)
    await bench.kill_supervisor()
    gate.write_text("go\n")
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 7)
    assert 0.2 < outcome.cpu_seconds < outcome.seconds + 1


@pytest.mark.parametrize("by", ["main", "child"])
async def test_the_cpu_time_of_a_job_whose_spawner_is_killed_too_is_what_was_seen_of_it(bench: Bench, by: str) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    busy = f"{BUSY}; echo busy" if by == "main" else f"({BUSY}; echo busy; exec sleep 60) &"
    id = bench.launch("sh", "-c", f"{busy}\nread go <{gate}; {'sleep 0.9; kill $!;' if by == 'child' else ''} exit 7")
    spawner = await bench.spawner(id)
    await bench.wrote(id)
    await bench.kill_supervisor()
    await bench.until(lambda: bench.launcher.pids.get(id))
    os.kill(spawner, signal.SIGKILL)
    await bench.until(lambda: not runs(spawner))
    gate.write_text("go\n")
    outcome = await bench.ended(id)
    assert outcome.cpu_seconds > 0.1


@pytest.mark.parametrize("adopted", [False, True])
async def test_an_exit_code_is_known_after_spawner_and_supervisor_were_killed_while_leftovers_had_their_grace(
    bench: Bench, adopted: bool
) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    left = "(trap '' TERM; echo up; while :; do sleep 1; done) &"
    id = bench.launch("sh", "-c", f"{left}\nread go <{gate}; exit 7", grace=600.0)
    spawner = await bench.spawner(id)
    await bench.wrote(id)
    if adopted:
        await bench.kill_supervisor()
    os.kill(spawner, signal.SIGKILL)
    await bench.until(lambda: not runs(spawner))
    gate.write_text("go\n")
    await bench.until(lambda: ["status", id, 7 << 8] in [one[:3] for one in journal_of(bench)])
    await bench.kill_supervisor()
    bench.stop(id, grace=0.0)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 7)
    assert bench.alive(id) == [], "what was left of it is ended, too"


def journal_of(bench: Bench) -> list[Any]:
    lines = (bench.dir / "journal").read_bytes().rstrip(b"\0").splitlines()
    return [record for text in lines if (record := parse(text)) is not None]
