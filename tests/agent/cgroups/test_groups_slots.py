"""The control groups of slots: a real supervisor, in real groups, with jobs that leave session, parent and environment
and fork anew all the time, behind walls that have neither a user id nor a pid namespace to end them by."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.cgroups.cgroupfs import Place as Group
from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor import tree as rounds
from distributed_grid.agent.supervisor.job import Job, Place
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.resources import Grant
from tests.agent.conftest import Bench, removed, runs

FORKER = """
import os, sys, time
for _ in range(int(sys.argv[1])):  # so many that make a new one and leave, for ever: never the same pid for long
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.0002)
print('up', flush=True)
time.sleep(1000)
"""
LEAVES = ("sh", "-c", "env -i setsid sleep 1000 & echo $!; exec sleep 1000")


@pytest.fixture(params=["none", "landlock"])
async def grouped(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench whose slots have groups."""
    setting = f"/grid-test-{secrets.token_hex(4)}"
    if os.geteuid() != 0 or not hierarchies.mounted():
        pytest.skip("needs root, and control groups")
    made = Bench(tmp_path / "node", cgroup=setting, walls=request.param)
    made.dir.mkdir(mode=0o700)
    await made.start()
    made.setting = setting  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        await made.close()
        bases = [Path(mount + setting) for mount in {*hierarchies.mounted().values()}]
        await made.until(lambda: all(removed(base) for base in bases))


def groups_of(bench: Bench) -> list[Path]:
    """The groups of slots that are there."""
    mounts = {*hierarchies.mounted().values()}
    return [path for mount in mounts for path in Path(mount + bench.setting).glob("slot-*")]  # type: ignore[attr-defined]


def inside(bench: Bench) -> set[int]:
    """All that is in one of them."""
    return {int(pid) for path in groups_of(bench) for pid in (path / "cgroup.procs").read_text().split()}


def written(base: Path) -> dict[str, str]:
    """The weights that were set since this was called last."""
    found = {}
    for one in base.rglob("cpu.weight.nice"):
        if text := one.read_text():
            found[str(one.parent.relative_to(base))] = text
        one.write_text("")
    return found


def test_while_a_raylet_joins_the_group_of_all_jobs_weighs_as_it_and_the_others_less_within_it(tmp_path: Path) -> None:
    (tmp_path / "cpu.weight.nice").touch()
    group = Group(2, str(tmp_path))
    groups = Cgroups({"cpu": group}, print, group)
    slots = SlotGroups(groups, str(tmp_path), print)
    jobs = []
    for name, nice in (("j-1.1", {"nice": 15}), ("j-2.1", {"nice": 0, "nice_later": 15})):
        job = Job(name, limits=nice)
        job.place = Place(name[:3], "none", 0, 0, False, 1, 1, 1)
        folder = tmp_path / slots.key(job.place.name)
        folder.mkdir()
        (folder / "cpu.weight.nice").touch()
        jobs.append(job)
    slots.weigh(jobs[:1])
    assert written(tmp_path) == {".": "15"}
    slots.weigh(jobs)
    assert written(tmp_path) == {".": "0", slots.key("j-1"): "15"}
    jobs[1].renice()
    slots.weigh(jobs)
    assert written(tmp_path) == {".": "15", slots.key("j-1"): "0"}


@pytest.mark.parametrize(("version", "file", "least"), [(2, "cpu.weight", "1"), (1, "cpu.shares", "10")])
def test_a_job_on_slack_and_its_slot_get_a_hundredth_of_the_weight_of_others(
    tmp_path: Path, version: int, file: str, least: str
) -> None:
    group = Group(version, str(tmp_path))
    slots = SlotGroups(Cgroups({"cpu": group}, print, group), str(tmp_path), print)
    (tmp_path / ("cpu.weight.nice" if version == 2 else file)).touch()
    jobs = []
    for name, limits in (("j-1.1", {"nice": 15}), ("j-2.1", {"nice": 19, "idle": True})):
        job = Job(name, limits=limits)
        job.place = Place(name[:3], "none", 0, 0, False, 1, 1, 1)
        for key in (slots.key(job.place.name), name):
            (tmp_path / key).mkdir()
            for one in ("cpu.weight.nice", "cpu.weight", "cpu.shares", "cpu.idle"):
                (tmp_path / key / one).touch()
        jobs.append(job)
    slots.weigh(jobs)
    idle = {path.parent.name for path in tmp_path.glob("*/cpu.idle") if path.read_text() == "1"}
    assert idle == {"j-2.1", slots.key("j-2")}
    assert {(tmp_path / key / file).read_text() for key in idle} == {least}
    assert (tmp_path / "j-1.1" / "cpu.idle").read_text() == ""


async def test_a_job_is_in_its_slots_group_with_all_that_hides_and_so_are_the_next_ones(grouped: Bench) -> None:
    id = grouped.launch(*LEAVES)
    main, hidden = await grouped.started(id), int((await grouped.wrote(id))[0])
    await grouped.until(lambda: procs.stat(hidden) is not None)
    assert {main, hidden} < inside(grouped)
    before = groups_of(grouped)
    grouped.stop(id, grace=0)
    assert (await grouped.ended(id)).cause is Cause.CANCELLED
    assert len(inside(grouped)) == 1, "the spawner is left, and spared"
    other = await grouped.started(grouped.launch("sleep", "1000"))
    assert other in inside(grouped) and groups_of(grouped) == before


async def test_what_forks_anew_all_the_time_is_over_a_moment_after_its_time(grouped: Bench) -> None:
    id = grouped.launch(sys.executable, "-c", FORKER, "10", time_limit=0.5, grace=0.0)
    await grouped.wrote(id)
    outcome = await grouped.ended(id)
    assert outcome.cause is Cause.TIME_LIMIT and outcome.seconds is not None and outcome.seconds < 3.0
    assert len(inside(grouped)) == 1


@pytest.mark.parametrize("hierarchy", ["", "freezer"])
def test_all_but_the_spawner_is_ended_by_the_group_alone(hierarchy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = hierarchies.mounted().get(hierarchy)
    if mount is None or os.geteuid() != 0:
        pytest.skip(f"needs root, and the hierarchy {hierarchy or 'of version 2'}")
    at = Group(1 if hierarchy else 2, f"{mount}/grid-test-{secrets.token_hex(4)}")
    os.mkdir(at.path)
    groups = SlotGroups(Cgroups({}, print, at), "/state", print)
    code = "import sys\nfor door in sys.argv[2:]: open(door, 'w').write('0')\n" + FORKER
    spawner = subprocess.Popen(
        [sys.executable, "-c", code, "20", *groups.make("a1", 0)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert spawner.stdout is not None and spawner.stdout.readline() == "up\n"
        # Who was not gone within a moment is left to the group's next turn.
        monkeypatch.setattr(rounds, "end_in_rounds", lambda *_: None)
        tree = Tree(print, lambda *_: None, lambda: (set(), False), lambda _: False, groups)
        job = Job("j-a.1")
        job.place = Place("a1", "none", 0, 0, False, spawner.pid, 0, 0)
        assert len(groups.members(job)) > 10
        deadline = time.monotonic() + 30
        while not job.grouped and time.monotonic() < deadline:
            tree.kill(job)
        assert groups.members(job) == {spawner.pid} and runs(spawner.pid)
        job.adopted = True  # its supervisor is dead: the spawner goes as well
        assert groups.kill(job) and groups.members(job) == set()
    finally:
        while not groups.end("a1"):
            pass
        spawner.wait()
        groups.sweep()
        os.rmdir(at.path)


async def test_what_a_killed_supervisor_and_spawner_leave_is_known_by_the_group_and_ended(grouped: Bench) -> None:
    id = grouped.launch(*LEAVES)
    main, hidden = await grouped.started(id), int((await grouped.wrote(id))[0])
    spawner = procs.stat(main).parent  # type: ignore[union-attr]
    seen = procs.stat(spawner)
    os.kill(grouped.launcher.supervisor_pid, signal.SIGSTOP)
    procs.send(spawner, seen.start, signal.SIGKILL)  # type: ignore[union-attr]
    await grouped.until(lambda: not runs(spawner))
    await grouped.kill_supervisor()
    assert runs(main) and runs(hidden)
    grouped.stop(id, grace=0)
    await grouped.ended(id)
    assert not runs(main) and not runs(hidden)
    await grouped.until(lambda: groups_of(grouped) == [])


async def test_groups_of_a_killed_supervisor_are_swept_with_what_no_job_explains(grouped: Bench) -> None:
    id = grouped.launch(*LEAVES)
    main, hidden = await grouped.started(id), int((await grouped.wrote(id))[0])
    supervisor, parent = grouped.launcher.supervisor_pid, procs.stat(main).parent  # type: ignore[union-attr]
    os.kill(supervisor, signal.SIGSTOP)
    (grouped.dir / "journal").unlink()
    for note in (grouped.dir / "spawners").iterdir():
        note.unlink()
    os.kill(parent, signal.SIGKILL)
    await grouped.kill_supervisor()
    await grouped.until(lambda: groups_of(grouped) == [])
    assert not runs(main) and not runs(hidden)


async def test_groups_go_with_their_slots(grouped: Bench) -> None:
    id = grouped.launch("true")
    await grouped.ended(id)
    assert len(groups_of(grouped)) in (1, 2)  # where processes are counted, one for that
    await grouped.launcher.close(leave=True)
    await grouped.until(lambda: groups_of(grouped) == [])


async def test_a_job_that_cannot_start_leaves_no_group_and_the_next_one_does_not_begin_in_it(grouped: Bench) -> None:
    bench, limited = grouped, Grant(memory=256 << 20)
    missing = bench.launch("no-such-program", grant=limited)
    assert (await bench.ended(missing)).cause is Cause.NOT_FOUND
    there = f"{missing}0"
    (bench.dir / "allocs" / there).mkdir()
    (bench.dir / "allocs" / there / "stdout").touch()
    assert (await bench.run("true", grant=limited, id=there)).started is False
    id = bench.launch("cat", "/proc/self/cgroup")
    await bench.ended(id)
    assert there not in bench.read(id).decode()
    bases = [Path(mount + bench.setting) for mount in {*hierarchies.mounted().values()}]  # type: ignore[attr-defined]
    await bench.until(lambda: not any([*base.glob("j-*")] for base in bases))


async def test_groups_that_the_kernel_was_not_done_with_are_removed_by_the_next_supervisor(grouped: Bench) -> None:
    bench = grouped
    told, acknowledged = [bench.launch("true") for _ in range(2)]
    await bench.ended(told)
    await bench.ended(acknowledged)
    bench.launcher.forget([acknowledged])
    await bench.run("true")  # the journal has it
    bases = [Path(mount + bench.setting) for mount in hierarchies.mounted().values()]  # type: ignore[attr-defined]
    base = next(base for base in bases if base.exists())
    for key in (told, acknowledged, "j-of-another-agent.1"):
        (base / key).mkdir()
    await bench.kill_supervisor()
    await bench.until(lambda: [path.name for path in base.glob("j-*")] == ["j-of-another-agent.1"])
