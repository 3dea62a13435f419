"""Freezing and letting go on: real processes under a real supervisor, driven through a real launcher."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.endings import RESTORED, Freezer
from distributed_grid.agent.supervisor.job import NEVER, OWNER, Job
from distributed_grid.agent.supervisor.journal import Journal
from distributed_grid.agent.supervisor.tree import Stopper, Tree
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Suspended
from tests.agent.conftest import Bench, removed, renewed
from tests.grid_fixture import until

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
SAYS_WHEN_WOKEN = """
import signal, time
signal.signal(signal.SIGCONT, lambda *_: print("woken", flush=True))
print("there", flush=True)
while True: time.sleep(600)
"""


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


async def frozen(bench: Bench, id: str, told: list[Suspended]) -> Suspended:
    bench.launcher.freeze(id, WHY, 600.0)
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
    await bench.until(lambda: not told[-1].why)  # it is told once all have their signal
    assert told[-1].in_all == told[-1].lasted >= 0.1
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
    id = bench.launch(sys.executable, "-c", SAYS_WHEN_WOKEN)
    pid = await bench.started(id)
    await bench.wrote(id)
    await frozen(bench, id, told)

    def woken() -> bool:
        os.kill(pid, signal.SIGCONT)
        return b"woken" in bench.read(id)

    await bench.until(woken)
    await bench.until(lambda: all_stopped(bench, id))


async def test_frozen_time_does_not_count_against_the_time_limit(bench: Bench, told: list[Suspended]) -> None:
    begun = procs.now()
    id = bench.launch("sleep", "600", time_limit=600.0)
    await bench.started(id)
    await frozen(bench, id, told)
    limit = procs.now() - begun + 0.5  # so long it has not run yet
    bench.launcher.limit(id, limit)
    await asyncio.sleep(0.8)
    assert not bench.outcomes(id) and all_stopped(bench, id)
    bench.launcher.thaw(id)
    outcome = await bench.ended(id)
    assert outcome.cause is Cause.TIME_LIMIT
    assert outcome.seconds - outcome.suspended >= limit - 0.001


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
    id = bench.launch("sleep", "600", lease=2.0)
    async with renewed(bench):
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
    bench.launcher.freeze(id, WHY, 0.3)
    await bench.until(lambda: told and not told[-1].why and states(bench, id) == ["S"])
    assert [one.why for one in told] == [WHY, ""] and told[-1].lasted >= 0.3


async def test_a_new_agent_finds_what_is_frozen_and_can_let_it_go_on(bench: Bench, told: list[Suspended]) -> None:
    id = bench.launch("sleep", "600")
    await bench.started(id)
    await frozen(bench, id, told)
    await bench.restart()
    again: list[Suspended] = []
    bench.launcher.suspended = again.append
    bench.launcher.report_frozen()
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


async def test_the_spawner_of_an_adopted_job_is_not_frozen_with_it(bench: Bench, told: list[Suspended]) -> None:
    """It notes how the job ends, which may be at the very moment of the freeze."""
    id = bench.launch("sleep", "600")
    pid = await bench.started(id)
    spawner = await bench.spawner(id)
    await bench.kill_supervisor()
    await frozen(bench, id, told)
    seen = procs.stat(spawner)
    assert seen is not None and seen.state in "SR" and states(bench, id) == ["T"]
    os.kill(pid, signal.SIGKILL)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.signal) == (Cause.SIGNALLED, 9)


def ungrouped() -> SlotGroups:
    return SlotGroups(Cgroups({}, print), "/", print)


def test_nothing_is_stopped_before_the_journal_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a supervisor that is killed in between leaves a job that stands still for ever."""
    asked: list[str] = []
    journal = Journal(str(tmp_path / "journal"), print)
    tree = Tree(print, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped())

    def members(job: Job) -> dict[int, int]:
        asked.append(job.id)
        return {}

    monkeypatch.setattr(tree, "members", members)
    freezer = Freezer(Stopper(tree, print), journal, lambda said: None, print, procs.now)
    job = Job("j-1.1", procs.now())
    job.runs(7)
    freezer.ask(job, WHY, RESTORED)
    freezer.act()  # the disk refuses: the journal is not sound
    assert asked == []
    journal.rewrite(job.records())
    freezer.act()
    assert asked == ["j-1.1"]
    assert ["freeze", "j-1.1", job.frozen_since(OWNER), WHY, OWNER] in journal.load()


# --- as a group -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place of this version in which groups can be made."""
    mounts = hierarchies.mounted()
    mount = mounts.get("freezer" if request.param == 1 else "", "")
    path = f"{mount}/grid-test-{secrets.token_hex(4)}"
    try:
        os.mkdir(path)
    except OSError as error:
        pytest.skip(f"no cgroup of version {request.param} can be made here: {error.strerror}")
    yield Place(request.param, path)
    os.rmdir(path)


class Counter:
    """A process that writes without end, in a freezer that is driven by the test."""

    def __init__(self, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = tmp_path / "out"
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen([sys.executable, "-c", FORKING], stdout=out)
        journal = Journal(str(tmp_path / "journal"), print)
        tree = Tree(print, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped())
        journal.rewrite([])
        monkeypatch.setattr(tree, "members", lambda job: procs.descendants([self.process.pid]))
        self.said: list[dict[str, object]] = []
        self.log: list[str] = []
        self.stopper = Stopper(tree, self.log.append, place)
        self.freezer = Freezer(self.stopper, journal, self.said.append, self.log.append, procs.now)
        self.job = Job("j-1.1", procs.now())
        self.job.runs(self.process.pid)

    def size(self) -> int:
        return self.path.stat().st_size

    def grows(self, seconds: float = 60.0) -> bool:
        before, end = self.size(), time.monotonic() + seconds
        while self.size() == before and time.monotonic() < end:
            time.sleep(0.01)
        return self.size() > before

    def freeze(self) -> None:
        self.freezer.ask(self.job, WHY, 60.0)
        self.freezer.act()
        until(self.stands, "the kernel has frozen each process, which it does when that one next looks")

    def stands(self) -> bool:
        """By the kernel's word for the group, or for each process where there is none."""
        place = self.stopper._place
        if place is None or self.stopper._fails:
            found = {seen.state for seen in self.stopper._tree.members(self.job).values()}
            return "T" in found and found <= {"T", "D", "Z"}
        if place.version == 1:
            return Path(place.path, self.job.id, "freezer.state").read_text() == "FROZEN\n"
        return "frozen 1" in Path(place.path, self.job.id, "cgroup.events").read_text().splitlines()

    def end(self) -> None:
        self.freezer.thaw(self.job)
        self.process.kill()
        self.process.wait()
        self.freezer.forget(self.job)
        until(lambda: self.freezer.poll(procs.now()) or self.freezer.due == NEVER, "its group is gone")


@pytest.fixture
def counter(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    made = Counter(tmp_path, place, monkeypatch)
    yield made
    made.end()
    assert not os.path.exists(f"{place.path}/j-1.1")


def test_a_job_is_frozen_as_a_group_where_one_can_be_made(counter: Counter, place: Place) -> None:
    assert counter.grows()
    counter.freeze()
    assert not counter.grows(0.2) and "T" not in {
        seen.state for seen in counter.stopper._tree.members(counter.job).values()
    }
    assert counter.said[-1]["why"] == WHY and counter.log == []
    counter.freezer.thaw(counter.job)
    assert counter.grows() and counter.said[-1]["why"] == ""


def test_the_next_supervisor_lets_a_frozen_group_go_on(counter: Counter, place: Place) -> None:
    counter.freeze()
    stopper = Stopper(counter.stopper._tree, counter.log.append, place)
    following = Freezer(stopper, counter.freezer._journal, counter.said.append, counter.log.append, procs.now)
    following.restore(counter.job)
    assert not counter.grows(0.2)
    following.thaw(counter.job)
    assert counter.grows()


def test_where_the_group_fails_the_processes_are_stopped_one_by_one(counter: Counter, place: Place) -> None:
    Path(place.path, "j-1.1").mkdir()
    counter.stopper._place = Place(3 - place.version, place.path)  # whose files are not there
    counter.freeze()
    assert not counter.grows(0.2) and "SIGSTOP from now on" in counter.log[0]
    counter.freezer.thaw(counter.job)
    assert counter.grows()
    counter.stopper._place = place


def test_a_group_is_let_go_on_after_another_one_could_not_be_made(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter.freeze()
    monkeypatch.setattr(counter.stopper._tree, "members", lambda job: {})
    counter.stopper.stop(Job("j-2\n"))  # which the kernel takes for no group's name
    assert "SIGSTOP from now on" in counter.log[0] and not counter.grows(0.2)
    counter.freezer.thaw(counter.job)
    assert counter.grows()


@pytest.fixture
def setting() -> Iterator[str]:
    """A place for groups in every hierarchy, none of which is left."""
    name = f"grid-test-{secrets.token_hex(4)}"
    yield "/" + name
    groups = [Path(mount, name) for mount in {*hierarchies.mounted().values()}]
    until(lambda: all(removed(group) for group in groups), "the kernel is done with the groups")


class Grouped(NamedTuple):
    """A bench whose supervisor freezes jobs as groups, where those are, and what it has told of that."""

    bench: Bench
    place: Place
    told: list[Suspended]


@pytest.fixture
async def grouped(setting: str, make_bench: Callable[..., Awaitable[Bench]]) -> Grouped:
    # In this order: the bench, which has groups as long as it is there, is closed first.
    place = hierarchies.freezer(setting)
    if place is None:
        pytest.skip("no cgroup that freezes can be made here")
    made = Grouped(await make_bench(cgroup=setting), place, [])
    made.bench.launcher.suspended = made.told.append
    return made


async def test_a_job_that_is_frozen_as_a_group_hears_of_a_cancel(grouped: Grouped) -> None:
    bench, place, told = grouped
    id = bench.launch("sh", "-c", "trap 'echo bye; exit 3' TERM; echo there; while :; do sleep 0.01; done")
    await bench.wrote(id)
    bench.launcher.freeze(id, WHY, 60.0)
    await bench.until(lambda: told and told[-1].why)
    assert "T" not in states(bench, id)
    bench.stop(id, grace=20.0)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.CANCELLED, 3)
    await bench.until(lambda: not os.path.exists(f"{place.path}/{id}"))


async def test_a_frozen_group_whose_last_process_is_slow_to_go_is_removed_without_another_job(grouped: Grouped) -> None:
    bench, place, told = grouped
    id = bench.launch("sleep", "1000")
    await bench.started(id)
    bench.launcher.freeze(id, WHY, 600.0)
    await bench.until(lambda: told)
    stays = subprocess.Popen(["sleep", "1000"])  # no process of the job: as one that the kernel is not done with
    Path(place.path, id, "cgroup.procs").write_text(str(stays.pid))
    bench.stop(id)  # without a kill, which would end all that is in there
    await bench.ended(id)
    held = os.path.exists(f"{place.path}/{id}")
    stays.kill()
    stays.wait()
    await bench.until(lambda: not os.path.exists(f"{place.path}/{id}"))
    assert held


async def test_what_a_frozen_job_left_is_let_go_on_and_ended_by_the_next_supervisor(grouped: Grouped) -> None:
    bench, place, told = grouped
    id = bench.launch("sh", "-c", "sleep 600 & echo there; exec sleep 600", grace=600.0)
    pid = await bench.started(id)
    await bench.wrote(id)
    bench.launcher.freeze(id, WHY, 600.0)
    await bench.until(lambda: told and told[-1].why)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    Path(place.path, "cgroup.procs").write_text(str(pid))  # it had just ended
    os.kill(pid, signal.SIGKILL)
    await bench.until(lambda: len(states(bench, id)) == 1)
    await bench.kill_supervisor()
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.signal) == (Cause.SIGNALLED, 9)
    await bench.until(lambda: not os.path.exists(f"{place.path}/{id}"))
