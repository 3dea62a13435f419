"""Freezing and letting go on: real processes under a real supervisor, driven through a real launcher."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from distributed_grid.agent import supervisor_freeze
from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_freeze import Freezer
from distributed_grid.agent.supervisor_job import Job
from distributed_grid.agent.supervisor_journal import Journal
from distributed_grid.agent.supervisor_tree import Tree
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Suspended
from tests.agent.conftest import Bench

WHY = "foreign CPU 87 %"
FORKING = """
import os, sys, time
while True:  # never the same processes for long
    if (pid := os.fork()) == 0:
        time.sleep(0.02)
        os._exit(0)
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""
TICKING = "import time\nwhile True: print(time.monotonic(), flush=True); time.sleep(0.01)"


@pytest.fixture
def told(bench: Bench) -> list[Suspended]:
    found: list[Suspended] = []
    bench.launcher.suspended = found.append
    return found


def states(bench: Bench, id: str) -> list[str]:
    """What each process of it does, by the kernel."""
    return [seen.state for pid in bench.alive(id) if (seen := procs.stat(pid)) is not None]


def all_stopped(bench: Bench, id: str) -> bool:
    found = states(bench, id)
    return "T" in found and set(found) <= {"T", "D"}  # D: it waits for a child of its vfork, which is stopped


async def frozen(bench: Bench, id: str, told: list[Suspended], seconds: float = 60.0) -> Suspended:
    bench.launcher.freeze(id, WHY, seconds)
    await bench.until(lambda: told and told[-1].why)
    await bench.until(lambda: all_stopped(bench, id))  # it is told when all have their signal
    return told[-1]


async def test_a_frozen_job_does_nothing_and_then_goes_on_where_it_was(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch(sys.executable, "-c", TICKING)
    await bench.wrote(id, 3)
    assert (await frozen(bench, id, told)).allocation == id
    assert all_stopped(bench, id)
    before = bench.read(id)
    time.sleep(0.1)
    assert bench.read(id) == before
    bench.launcher.thaw(id)
    await bench.until(lambda: len(bench.read(id)) > len(before))
    assert (told[-1].why, told[-1].in_all) == ("", told[-1].lasted) and told[-1].lasted >= 0.1
    bench.stop(id)
    assert (await bench.ended(id)).suspended == pytest.approx(told[-1].lasted, abs=0.01)


async def test_processes_that_come_and_go_all_the_time_are_all_stopped(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch(sys.executable, "-c", FORKING)
    await bench.wrote(id, 3)
    await frozen(bench, id, told)
    before = bench.read(id)
    assert all_stopped(bench, id)
    time.sleep(0.1)
    assert bench.read(id) == before and all_stopped(bench, id)


async def test_a_child_in_a_session_of_its_own_is_stopped_too(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sh", "-c", "setsid sleep 600 & echo there; wait")
    await bench.wrote(id)
    await bench.until(lambda: len(bench.alive(id)) == 2)
    await frozen(bench, id, told)
    assert states(bench, id) == ["T", "T"]


async def test_what_the_job_itself_has_stopped_stays_so(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sh", "-c", "sleep 600 & kill -STOP $!; echo $!; wait")
    (child,) = await bench.wrote(id)
    await bench.until(lambda: sorted(states(bench, id)) == ["S", "T"])
    await frozen(bench, id, told)
    bench.launcher.thaw(id)
    await bench.until(lambda: not told[-1].why)
    await bench.until(lambda: sorted(states(bench, id)) == ["S", "T"])
    await bench.until(lambda: (seen := procs.stat(int(child))) is not None and seen.state == "T")


async def test_a_job_that_was_woken_by_somebody_is_stopped_again(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600")
    pid = await bench.started(id)
    await frozen(bench, id, told)
    os.kill(pid, signal.SIGCONT)
    await bench.until(lambda: states(bench, id) == ["S"])
    await bench.until(lambda: all_stopped(bench, id))


async def test_frozen_time_does_not_count_against_the_time_limit(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600", time_limit=0.5)
    await bench.started(id)
    await frozen(bench, id, told)
    time.sleep(0.8)
    assert not bench.outcomes(id) and all_stopped(bench, id)
    bench.launcher.thaw(id)
    outcome = await bench.ended(id)
    assert outcome.cause is Cause.TIME_LIMIT
    assert outcome.seconds - outcome.suspended >= 0.5


async def test_a_frozen_job_that_is_cancelled_hears_of_it_and_ends_by_itself(
    bench: Bench, told: list[Suspended]
) -> None:
    id = bench.launch("sh", "-c", "trap 'sleep 1.2; echo bye; exit 3' TERM; echo there; while :; do sleep 0.01; done")
    await bench.wrote(id)
    await frozen(bench, id, told)
    bench.stop(id, grace=20.0)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.CANCELLED, 3)
    assert bench.read(id) == b"there\nbye\n"


async def test_a_frozen_job_whose_lease_is_over_ends(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600", lease=1.0)
    await bench.started(id)
    await frozen(bench, id, told)
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED


async def test_a_frozen_job_that_is_killed_is_over(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600")
    pid = await bench.started(id)
    await frozen(bench, id, told)
    os.kill(pid, signal.SIGKILL)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.signal) == (Cause.SIGNALLED, 9) and outcome.suspended > 0


async def test_without_word_from_an_agent_it_goes_on_by_itself(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600")
    await bench.started(id)
    await frozen(bench, id, told, seconds=0.3)
    await bench.until(lambda: not told[-1].why and states(bench, id) == ["S"], 10.0)
    assert told[-1].lasted >= 0.3


async def test_a_new_agent_finds_what_is_frozen_and_can_let_it_go_on(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600")
    await bench.started(id)
    await frozen(bench, id, told)
    await bench.restart()
    again: list[Suspended] = []
    bench.launcher.suspended = again.append
    bench.launcher.tell_frozen()
    assert [(one.allocation, one.why) for one in again] == [(id, WHY)] and again[0].lasted >= told[-1].lasted
    bench.launcher.thaw(id)
    await bench.until(lambda: states(bench, id) == ["S"])


async def test_the_next_supervisor_knows_what_is_frozen_and_lets_it_go_on(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sh", "-c", "sleep 600 & echo there; wait")
    await bench.wrote(id)
    await bench.until(lambda: len(bench.alive(id)) == 2)
    began = procs.now()
    await frozen(bench, id, told)
    await bench.kill_supervisor()
    await bench.until(lambda: len(told) > 1)
    assert told[-1].why == WHY
    await bench.until(lambda: all_stopped(bench, id))
    bench.launcher.thaw(id)
    await bench.until(lambda: states(bench, id) == ["S", "S"])
    await bench.until(lambda: told[-1].why == "")
    assert told[-1].in_all <= procs.now() - began
    await bench.kill_supervisor()  # and the one after that knows for how long it was
    await bench.until(lambda: len(told) > 3)
    assert (told[-1].why, told[-1].in_all) == ("", told[-2].in_all)


def test_nothing_is_stopped_before_the_journal_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a supervisor that is killed in between leaves a job that stands still for ever."""
    asked: list[str] = []
    journal = Journal(str(tmp_path / "journal"), print)
    tree = Tree(print, lambda key: True)
    monkeypatch.setattr(tree, "members", lambda job: asked.append(job.id) or {})
    freezer = Freezer(tree, journal, lambda said: None, print)
    job = Job("j-1.1", procs.now())
    freezer.ask(job, WHY, supervisor_freeze.RESTORED)
    freezer.act()  # the disk refuses: the journal is not sound
    assert asked == []
    journal.rewrite(job.records())
    freezer.act()
    assert asked == ["j-1.1"]
    assert ["freeze", "j-1.1", job.frozen_at, WHY] in journal.load()
