"""Successors under a real supervisor: each starts in the turn in which nothing of its predecessor is alive, by the same
sync, where that one ran and confined as it was."""

import asyncio
import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.journal import parse
from distributed_grid.protocol.jobs import Cause, JobLimits
from distributed_grid.protocol.messages import Exited
from distributed_grid.protocol.resources import GpuShare, Grant
from tests.agent.conftest import Bench, removed, runs
from tests.agent.supervisor.test_journal_faults import ALL, CASES, SLOW
from tests.processes import allocation_of

MakeBench = Callable[..., Awaitable[Bench]]
CORES = sorted(os.sched_getaffinity(0))
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
"""One that other users reach."""
READS = """
import json, os, resource
files = {name: open("/proc/self/" + name).read().strip() for name in ("oom_score_adj", "cgroup")}
own = [line.split(":", 2)[1:] for line in files["cgroup"].splitlines() if "/grid-test-" in line]
names = ("pids.max", "memory.max", "memory.limit_in_bytes", "cpuset.cpus", "cpu.cfs_quota_us", "cpu.max")
paths = [f"/sys/fs/cgroup/{kind}{path}/{name}" for kind, path in own for name in names]
said = {
    "cores": sorted(os.sched_getaffinity(0)),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
    "processes": resource.getrlimit(resource.RLIMIT_NPROC),
    "groups": {path.rpartition("/")[2]: open(path).read().strip() for path in paths if os.path.exists(path)},
    "uid": os.getuid(),
    "threads": os.environ["OMP_NUM_THREADS"],
}
print(json.dumps(files | said), flush=True)
"""
GUEST = '"pids.max": "78"', '"pids.max": "77"'
"""Until the supervisor has taken the spawner out of the job's group, that may have one process more."""
ALONE = (
    'mkdir "$0" 2>/dev/null || { read other < "$0/pid" && kill -0 "$other" 2>/dev/null && echo "$1" >> "$0.two"; }; '
    'echo $$ > "$0/pid"; echo "$1" >> "$0.ran"; sleep 0.02; rm -r "$0"'
)
"""It says so if another one that does this runs meanwhile, and notes that it ran. (One that was killed leaves its
directory.)"""


def chained(bench: Bench, first: str, *argv: str, grant: Grant | None = None, id: str = "") -> str:
    return bench.launch(*argv, chain=first, grant=grant, id=id)


def gated(gate: Path) -> tuple[str, ...]:
    """A command that ends when this file is there."""
    return ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.01; done")


def recorded(bench: Bench) -> list[list[object]]:
    lines = (bench.dir / "journal").read_bytes().rstrip(b"\0").split(b"\n")
    return [record for text in lines if (record := parse(text)) is not None]


_TOLD = ("intent", "go", "start", "exit")


def kinds(bench: Bench, *ids: str) -> list[str]:
    """What the journal has of these, in order, but for where they are."""
    return [f"{one[0]} {one[1]}" for one in recorded(bench) if one[1] in ids and one[0] in _TOLD]


async def test_a_successor_starts_when_its_predecessor_is_over_in_the_same_slot(bench: Bench, tmp_path: Path) -> None:
    first = bench.launch(*gated(tmp_path / "go"))
    await bench.started(first)
    second, third = chained(bench, first, "sh", "-c", "exit 4"), chained(bench, first, "sh", "-c", "exit 5")
    await bench.until(lambda: (bench.dir / "allocs" / third).exists())
    assert kinds(bench, second, third) == [], "who waits has no record"
    (tmp_path / "go").touch()
    assert [(await bench.ended(id)).code for id in (first, second, third)] == [0, 4, 5]
    assert {bench.launcher.slots.slot(id) for id in (first, second, third)} == {bench.launcher.slots.slot(first)}
    told = [one.allocation for one in bench.reports if isinstance(one, Exited)]
    assert told == [first, second, third]
    assert len([*(bench.dir / "spawners").iterdir()]) == 1, "no spawner is made for who waits"


async def test_an_end_and_the_next_start_are_one_write_and_a_start_waits_for_no_sync(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.sync:1+:delay=0,supervisor.write:1+:delay=0")
    bench = await make_bench()
    first = bench.launch(*gated(tmp_path / "go"))
    await bench.started(first)
    ids = [first, *(chained(bench, first, "true") for _ in range(20))]
    beside = bench.launch("sleep", "30")  # while a young job runs, ends wait for others
    await bench.started(beside)
    (tmp_path / "go").touch()
    await bench.ended(ids[-1])
    told = (bench.dir / "supervisor.log").read_text()
    assert told.count("GRID_FAULTS supervisor.sync:") <= 2 + 20 + 1, "at most one for each end"
    records = kinds(bench, *ids)
    starts = sum(one.startswith(("intent", "go", "start")) for one in kinds(bench, *ids, beside))
    assert told.count("GRID_FAULTS supervisor.write:") <= starts + 4, "no end is written by itself"
    assert [f"go {id}" in records for id in ids] == [False, *[True] * 20], "another intent's sync made theirs durable"
    for before, after in itertools.pairwise(ids):
        at = records.index(f"go {after}")
        assert records[at + 1] == f"exit {before}", "they are beside each other"


async def test_what_is_left_of_its_predecessor_is_ended_before_it_starts(bench: Bench, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stubborn = f"setsid sh -c \"trap '' TERM; echo up >> {pid}; exec sleep 1000\" & until [ -e {pid} ]; do :; done"
    ends = f"until [ -e {tmp_path}/go ]; do :; done; echo $! > {pid}"
    first = bench.launch("sh", "-c", f"trap '' TERM; {stubborn}; {ends}", grace=0.3)
    await bench.started(first)
    second = chained(bench, first, "sh", "-c", f"kill -0 $(cat {pid}) && echo lives || echo gone")
    (tmp_path / "go").touch()
    assert (await bench.ended(second)).stdout_tail == b"gone\n"
    assert (await bench.ended(first)).code == 0


@pytest.fixture
async def confining(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A bench behind the walls of the parameter, with a niceness, a limit of processes and, where there are control
    groups, one for each slot. Users of slots can enter its directory. For a moment after its second and third spawn
    the supervisor does nothing, so that what a job reads then was so from its first instruction."""
    monkeypatch.setenv("GRID_FAULTS", "supervisor.spawn.after:2-3:delay=0.5")
    root, walls = os.geteuid() == 0, request.param
    if walls != "none" and not root:
        pytest.skip("needs root")
    place = Path(tempfile.mkdtemp(prefix="confining-"))
    place.chmod(0o711)
    setting = f"/grid-test-{secrets.token_hex(4)}" if root and hierarchies.mounted() else "none"
    made = Bench(place / "node", pids=500, cgroup=setting, nice=11, walls=walls)
    made.dir.mkdir(mode=0o711)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        bases = [Path(mount + setting) for mount in {*hierarchies.mounted().values()} if setting != "none"]
        await made.until(lambda: all(removed(base) for base in bases))
        shutil.rmtree(place)


@pytest.mark.parametrize("confining", ["none", "user", "namespace"], indirect=True)
async def test_it_is_pinned_niced_and_limited_from_its_first_instruction(confining: Bench) -> None:
    grant = Grant(cores=(CORES[-1],), gpus=(GpuShare("GPU-7", 1000),), memory=1 << 30)
    limits = JobLimits(pids=77, cpu=True)
    ids = [confining.launch(PYTHON, "-S", "-c", READS, grant=grant, limits=limits)]
    for _ in range(2):
        ids.append(confining.launch(PYTHON, "-S", "-c", READS, grant=grant, limits=limits, chain=ids[0]))
    texts = [(await confining.ended(id)).stdout_tail.decode().replace(id, "ID") for id in ids]
    texts = [text.replace(*GUEST) for text in texts]
    assert len({confining.launcher.slots.slot(id) for id in ids}) == 1, "they followed each other in one slot"
    assert texts[0] == texts[1] == texts[2]
    said = json.loads(texts[1])
    assert (said["cores"], said["nice"], said["gpus"], said["threads"]) == ([CORES[-1]], 11, "GPU-7", "1")
    assert int(said["oom_score_adj"]) > int(Path("/proc/self/oom_score_adj").read_text())
    assert (said["uid"] == os.geteuid()) == (confining.launcher.walls != "user")
    if confining.launcher.grouped:
        assert "/ID" in said["cgroup"]
        kept = {"pids.max": "77", "memory.max": str(1 << 30), "cpuset.cpus": str(CORES[-1])}
        kept |= {"memory.limit_in_bytes": str(1 << 30), "cpu.cfs_quota_us": "100000", "cpu.max": "100000 100000"}
        assert said["groups"] and said["groups"].items() <= kept.items()


# --- taken back -------------------------------------------------------------------------------------------------------


async def test_who_is_withdrawn_while_it_waits_never_starts_also_when_its_launch_comes_late(
    bench: Bench, tmp_path: Path
) -> None:
    first = bench.launch(*gated(tmp_path / "go"))
    second = chained(bench, first, "touch", str(tmp_path / "second"))
    third = chained(bench, first, "true")
    bench.withdraw(second)
    outcome = await bench.ended(second)
    assert (outcome.cause, outcome.started) == (Cause.WITHDRAWN, False)
    assert kinds(bench, second) == [f"exit {second}"]
    chained(bench, first, "touch", str(tmp_path / "second"), id=second)
    (tmp_path / "go").touch()
    assert (await bench.ended(third)).code == 0
    await bench.kill_supervisor()
    chained(bench, first, "touch", str(tmp_path / "second"), id=second)
    await bench.until(lambda: len(bench.outcomes(second)) == 3)
    assert not (tmp_path / "second").exists()


async def test_who_has_started_is_not_disturbed_by_a_withdrawal(bench: Bench, tmp_path: Path) -> None:
    first = bench.launch("true")
    second = chained(bench, first, *gated(tmp_path / "go"))
    await bench.started(second)
    bench.withdraw(second)
    (tmp_path / "go").touch()
    outcome = await bench.ended(second)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 0)


async def test_a_withdrawal_at_the_moment_of_the_start_is_answered_by_one_of_both(bench: Bench, tmp_path: Path) -> None:
    for number in range(30):
        ran = tmp_path / f"ran{number}"
        first = bench.launch("sleep", f"0.00{number % 10}")
        second = chained(bench, first, "touch", str(ran))
        await asyncio.sleep(0.001 * (number % 7))
        bench.withdraw(second)
        outcome = await bench.ended(second)
        assert outcome.started == ran.exists() == (outcome.cause is Cause.EXITED), outcome
    assert all(bench.outcomes(one.allocation)[0] == one.outcome for one in bench.reports if isinstance(one, Exited))


# --- who dies meanwhile -----------------------------------------------------------------------------------------------


async def test_a_predecessor_that_is_killed_makes_way(bench: Bench) -> None:
    first = bench.launch("sleep", "1000")
    await bench.started(first)
    second = chained(bench, first, "sh", "-c", "exit 6")
    bench.stop(first, grace=0.0)
    assert (await bench.ended(second)).code == 6


async def test_a_new_agent_launches_again_what_waited(bench: Bench, tmp_path: Path) -> None:
    first = bench.launch(*gated(tmp_path / "go"))
    await bench.started(first)
    second, third = chained(bench, first, "true"), chained(bench, first, "true")
    await bench.restart()
    assert [one.allocation for one in bench.known] == [first]
    chained(bench, first, "true", id=third)
    (tmp_path / "go").touch()
    assert (await bench.ended(third)).code == 0
    assert not bench.outcomes(second) and kinds(bench, second) == [], "nobody asked for it again"


async def test_the_next_supervisor_gets_what_waits_from_the_agent(bench: Bench, tmp_path: Path) -> None:
    first = bench.launch(*gated(tmp_path / "go"))
    await bench.started(first)
    second, third = chained(bench, first, "sh", "-c", "exit 4"), chained(bench, first, "sh", "-c", "exit 5")
    await bench.kill_supervisor()
    await bench.until(lambda: bench.launcher.pids.get(first))
    assert kinds(bench, second, third) == []
    (tmp_path / "go").touch()
    assert [(await bench.ended(id)).code for id in (second, third)] == [4, 5]
    ends = [one.allocation for one in bench.reports if isinstance(one, Exited) and one.outcome.started]
    assert [ends.count(id) for id in (second, third)] == [1, 1]


DEADLY = [asked for asked in CASES if ALL or "drop" not in asked and (SLOW not in asked or "kill" in asked)]
"""Next to what single jobs show where only the socket or, on a slow disk, a call fails; `GRID_FAULT_MATRIX=all`
(`make chaos`) tries that too."""


@pytest.mark.parametrize("asked", DEADLY)
async def test_no_successor_starts_twice_or_beside_another_whatever_fails(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str
) -> None:
    monkeypatch.setenv("GRID_FAULTS", asked)
    bench = await make_bench()
    here = str(tmp_path / "here")
    first = bench.launch("sh", "-c", ALONE, here, "0")
    ids = [first, *(chained(bench, first, "sh", "-c", ALONE, here, str(number)) for number in range(1, 6))]
    outcomes = [await bench.ended(id) for id in ids]
    assert not os.path.exists(f"{here}.two"), (Path(f"{here}.two").read_text(), outcomes)
    ran = Path(f"{here}.ran").read_text().split()
    for number, outcome in enumerate(outcomes):
        count = ran.count(str(number))
        if outcome.cause is Cause.EXITED:
            assert (outcome.code, count) == (0, 1)
        elif outcome.started:
            assert outcome.cause is Cause.SUPERVISOR_LOST and "kill" in asked and count <= 1
        else:
            withdrawn = (Cause.WITHDRAWN,) if "kill" in asked else ()
            assert outcome.cause in (Cause.SPAWN_FAILED, Cause.DISK_FAILED, *withdrawn) and count == 0


# --- the truth, from outside ------------------------------------------------------------------------------------------


class Sampler:
    """Looks through /proc as fast as it can for two allocations alive at once on one core. One that was alive before
    and after another was seen alive, was so at that moment."""

    def __init__(self, ids: set[str]) -> None:
        self.ids = ids
        self.looks = 0
        self.seen: set[str] = set()
        self.together: list[tuple[str, str, int]] = []
        self._before = {*procs.all_pids()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self.looks += 1
            here: dict[int, list[tuple[str, int]]] = {}
            for pid in {*procs.all_pids()} - self._before:
                if (key := allocation_of(pid)) not in self.ids or not runs(pid):
                    continue
                self.seen.add(key)
                try:
                    cores = os.sched_getaffinity(pid)
                except OSError:
                    continue
                for core in cores:
                    for other, before in here.setdefault(core, []):
                        if other != key and runs(before) and allocation_of(before) == other:
                            self.together.append((other, key, core))
                    here[core].append((key, pid))


async def test_of_200_chained_jobs_no_two_are_ever_alive_on_one_core(bench: Bench, tmp_path: Path) -> None:
    lines = [(core, Grant(cores=(core,))) for core in CORES[:2]]
    sampler = Sampler(set())
    firsts, ids = {}, []
    for core, grant in lines:
        firsts[core] = bench.launch(*gated(tmp_path / "go"), grant=grant)
        sampler.ids.add(firsts[core])
    for _ in range(99):
        for core, grant in lines:
            sampler.ids.add(id := chained(bench, firsts[core], "sh", "-c", "sleep 0.04 & wait", grant=grant))
            ids.append(id)
    with sampler:
        (tmp_path / "go").touch()
        outcomes = [await bench.ended(id) for id in ids]
    assert {(one.cause, one.code) for one in outcomes} == {(Cause.EXITED, 0)}
    assert sampler.together == []
    assert sampler.looks > 20  # on a busy machine it gets few, each of which sees one or two of them
    assert len(sampler.seen) > min(50, sampler.looks // 3), f"{len(sampler.seen)} were seen in {sampler.looks} looks"
