"""The probe against real processes: what is below our roots is ours, everything else is foreign. Others use this
machine too, so figures are compared with what the kernel says of the very processes that a test started."""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.sampling import host
from distributed_grid.agent.sampling import probe as probes
from distributed_grid.agent.sampling.probe import QUICK, SPAN, Meter, Probe, foreign_seconds
from distributed_grid.agent.sampling.trees import TICK, Trees
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import GpuSample, Sample
from distributed_grid.runtime.unix import boot_clock
from tests.agent.sampling.processes import BURN, CORE, probe, start, wait_for
from tests.agent.sampling.processes import processes as processes

# A parent of short-lived children, each reaped before the next: their time is seen only in what they leave to it.
BURN_IN_CHILDREN = """
import subprocess, sys
while True:
    subprocess.run([sys.executable, '-S', '-c', 'for _ in range(2000000): pass'])
"""


HALTED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DISK_SLEEP)


"""The last: who waits for a child of its vfork, which is stopped."""


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system + times.children_user + times.children_system


def spent_with_children(root: psutil.Process) -> float:
    """Of a moment in which no child came or went: a parent counts those that it has reaped, and only those."""
    while True:
        below = root.children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds = spent(root) + sum(spent(child) for child in below)
            if root.children(recursive=True) == below:
                return seconds


def halt(root: psutil.Process) -> None:
    """Stop it and all below it: from then on nothing more is spent."""

    def halted() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return all(one.status() in HALTED for one in (root, *root.children(recursive=True)))
        return False

    os.killpg(root.pid, signal.SIGSTOP)
    wait_for(halted)


@pytest.mark.parametrize("code", [BURN, BURN_IN_CHILDREN])
def test_what_our_trees_spend_is_own_to_the_tick_also_in_children_that_are_gone(
    processes: list[subprocess.Popen[bytes]], code: str
) -> None:
    processes.append(start(code))
    root = psutil.Process(processes[0].pid)
    trees = Trees(lambda: (root.pid,))
    own = 0.0

    def walk() -> float:
        nonlocal own
        own += sum(seconds for _, seconds in trees.walk()[0])
        return own

    halt(root)
    trees.walk()
    began = spent_with_children(root)
    os.killpg(root.pid, signal.SIGCONT)
    for number in range(1, 7):  # so much at a time, on a busy machine too, that most children are never seen
        wait_for(lambda: spent_with_children(root) - began > 0.1 * number)  # noqa: B023
        walk()
    halt(root)
    assert walk() == pytest.approx(spent_with_children(root) - began, abs=0.1)


def test_a_busy_job_of_ours_is_own_and_a_busy_process_of_others_is_foreign_within_two_samples(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    measure = probe(own=(os.getpid(),))
    processes.append(start(f"import os; os.sched_setaffinity(0, [{CORE}])\n{BURN}"))
    burner = psutil.Process(processes[0].pid)
    wait_for(lambda: burner.cpu_affinity() == [CORE])
    measure.sample()
    before, since = spent(burner), boot_clock()
    time.sleep(1.2 * SPAN)
    ours = measure.sample()
    used = (spent(burner) - before) / (boot_clock() - since)
    assert ours.own_cpu > 0.8 * used
    assert ours.cores[CORE] <= 100 - 80 * used, "what our job uses is not foreign use of its core"

    stranger = probe(own=())
    before, since = spent(burner), boot_clock()
    seen = 0
    for _ in range(2):
        time.sleep(1.2 * SPAN)
        seen = max(seen, stranger.sample().cores[CORE])
    assert seen >= 80 * (spent(burner) - before) / (boot_clock() - since)
    assert stranger.sample().own_cpu == 0


def test_jobs_of_kin_are_neither_own_nor_foreign(processes: list[subprocess.Popen[bytes]]) -> None:
    processes.append(start(f"import os; os.sched_setaffinity(0, [{CORE}])\n{BURN}"))
    burner = psutil.Process(processes[0].pid)
    measure = probe(own=(), sibling_roots=lambda: (burner.pid,))
    wait_for(lambda: burner.cpu_affinity() == [CORE])
    measure.sample()
    before, since = spent(burner), boot_clock()
    time.sleep(1.2 * SPAN)
    sample = measure.sample()
    used = (spent(burner) - before) / (boot_clock() - since)
    assert sample.own_cpu == 0
    assert sample.cores[CORE] <= 100 - 80 * used


def test_a_sample_says_how_much_there_is_and_how_much_of_it_is_used() -> None:
    sample = probe(own=(os.getpid(),)).sample()
    assert set(sample.cores) == set(host.usable_cores())
    assert 0 < sample.memory_foreign < sample.memory_total
    assert 0 < sample.disk_free < sample.disk_total
    assert all(0 <= percent <= 100 for percent in sample.cores.values())


def test_an_agent_of_a_part_of_the_machine_sees_its_part() -> None:
    whole = probe().facts("n", 1, Limits())
    part = Probe([CORE], whole.memory // 2, open_backend("none"))
    sample = part.sample()
    assert set(sample.cores) == {CORE}
    assert sample.foreign_cpu <= 1
    assert sample.memory_total == whole.memory // 2
    assert sample.memory_foreign == pytest.approx(probe().sample().memory_foreign / 2, rel=0.2)
    assert part.facts("n", 1, Limits(reserve_memory=0)).lendable.memory == whole.memory // 2


def test_virtual_cores_share_what_the_real_ones_have(processes: list[subprocess.Popen[bytes]]) -> None:
    processes.extend(start(BURN) for _ in os.sched_getaffinity(0))
    burners = [psutil.Process(one.pid) for one in processes]
    measure = Probe(range(8), 0, open_backend("none"), virtual=True)
    before, since = sum(map(spent, burners)), boot_clock()
    time.sleep(0.8)
    sample = measure.sample()
    used = (sum(map(spent, burners)) - before) / (boot_clock() - since) / len(burners)
    assert set(sample.cores) == set(range(8))
    assert min(sample.cores.values()) > 60 * used
    assert sample.foreign_cpu == pytest.approx(8 * sample.cores[0] / 100, abs=0.1)
    assert measure.facts("n", 1, Limits()).virtual


def test_cores_that_the_agent_may_not_use_are_refused() -> None:
    with pytest.raises(BadValue, match="cores 4096 cannot be managed"):
        Probe([4096], 0, open_backend("none"))


def test_a_core_that_is_taken_from_the_agent_is_not_measured_any_more() -> None:
    before = os.sched_getaffinity(0)
    real, virtual = probe(), Probe(range(8), 0, open_backend("none"), virtual=True)
    os.sched_setaffinity(0, before - {CORE})
    try:
        assert set(real.sample().cores) == set(real.cores) - {CORE}
        assert set(virtual.sample().cores) == set(range(8))
    finally:
        os.sched_setaffinity(0, before)
    assert CORE in real.sample().cores


def test_samples_in_a_burst_are_rates_over_half_a_second_all_the_same(processes: list[subprocess.Popen[bytes]]) -> None:
    processes.append(start(BURN))
    burner = psutil.Process(processes[0].pid)
    measure = probe(own=(burner.pid,))
    seen = [(boot_clock(), spent(burner))]

    def read() -> bool:
        began = boot_clock()
        shares.append(measure.sample().own_cpu)
        seen.append((boot_clock(), spent(burner)))
        return seen[-1][0] - seen[0][0] > 0.8 and boot_clock() - began < 0.1  # else something came in between

    shares: list[float] = []
    wait_for(read)
    at, now_spent = seen[-1]
    since, before = next(one for one in reversed(seen) if at - one[0] >= SPAN)
    assert shares[-1] == pytest.approx((now_spent - before) / (at - since), abs=0.25)
    assert len(measure._readings) < 15


def test_own_time_is_taken_from_the_cores_it_may_have_been_spent_on() -> None:
    busy = {0: 2.0, 1: 1.0, 2: 1.0}
    anywhere, pinned = frozenset(busy), frozenset({1})
    left = foreign_seconds(busy, [(anywhere, 1.5), (pinned, 1.0)])
    assert left == {0: 1.0, 1: 0.0, 2: 0.5}
    assert foreign_seconds(busy, [(pinned, 5.0)]) == {0: 2.0, 1: 0.0, 2: 1.0}


def test_a_containers_limits_count_for_the_machine(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box/agent"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box/agent\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(f"{1 << 30}\n")
    (group.parent / "memory.current").write_text(f"{700 << 20}\n")
    (group.parent / "memory.stat").write_text(f"anon 1\ninactive_file {200 << 20}\n")
    (group.parent / "cpu.max").write_text("100000 100000\n")
    groups = host.memory_groups(tmp_path)
    assert groups == (group.parent,)
    assert host.memory(groups) == (1 << 30, 524 << 20)
    assert len(host.usable_cores(tmp_path)) == 1


def test_busy_time_is_counted_by_the_kernels_numbers_of_cores() -> None:
    def told() -> float:
        return sum(psutil.cpu_times()[i] for i in (0, 1, 2, 5, 6, 7))

    before, counted, after = told(), host.busy_seconds(), told()
    assert set(counted) >= os.sched_getaffinity(0)
    room = 1 + 10 * TICK
    assert before - room <= sum(counted.values()) <= after + room


class Paced:
    """A probe whose measurements take as long as it says, and wait while it is told to."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()

    def sample(self, at: float, read_gpus: bool) -> Sample:
        assert self.gate.wait(60)
        return Sample(at=at)


async def test_a_claim_is_measured_for_at_once_where_that_is_quick_and_nothing_measures() -> None:
    taken: list[float] = []
    paced, now = Paced(QUICK), iter((5.0, 6.0, 7.0))
    meter = Meter(paced, 2.0, lambda: next(now), lambda sample: taken.append(sample.at), taken.append)  # type: ignore[arg-type]
    first = meter.at_once(4.0)
    assert first is not None and meter.at_once(5.0) is first and taken == [5.0]
    paced.seconds = 2 * QUICK
    assert meter.at_once(5.5) is None
    paced.seconds = QUICK
    paced.gate.clear()
    measuring = asyncio.create_task(meter.since(5.5, gpus=True))
    await asyncio.sleep(0)
    assert meter.at_once(5.5) is None
    paced.gate.set()
    assert (await measuring).at == 6.0 and taken == [5.0, 6.0]


async def test_cores_and_memory_count_as_unknown_while_measuring_fails() -> None:
    class Failing(Paced):
        def sample(self, at: float, read_gpus: bool) -> Sample:
            if taken:
                raise OSError("Stale file handle")
            return Sample(at=at, cores={0: 5}, memory_total=1 << 30, gpus=(GpuSample("GPU-0"),))

    taken: list[Sample] = []
    said: asyncio.Queue[str] = asyncio.Queue()
    meter = Meter(Failing(0.0), 0.0, boot_clock, taken.append, said.put_nowait)  # type: ignore[arg-type]
    measuring = asyncio.create_task(meter.run())
    why = await asyncio.wait_for(said.get(), 60)
    measuring.cancel()
    assert why == "measuring this node failed: Stale file handle"
    first, second = taken[:2]
    assert (first.cores, first.memory_total) == ({0: 5}, 1 << 30)
    assert second == Sample(at=first.at, gpus=(GpuSample("GPU-0", error=why),), gpu_error=why)


def test_what_jobs_use_is_told_while_a_measurement_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, disk_usage = probe(), psutil.disk_usage
    hangs, go = threading.Event(), threading.Event()
    waited: list[bool] = []

    def hanging(path: str) -> object:
        hangs.set()
        waited.append(go.wait(60))
        return disk_usage(path)

    monkeypatch.setattr(psutil, "disk_usage", hanging)
    measuring = threading.Thread(target=slow.sample)
    measuring.start()
    assert hangs.wait(60)
    slow.watch(Limits())
    slow.usage()
    assert waited == [], "the agent's loop asked, and waited for it"
    go.set()
    measuring.join()


def test_how_long_a_measurement_takes_does_not_count_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow:
        error = ""

        def sample(self, pids: object) -> tuple[GpuSample, ...]:
            clock[0] += 5.0
            return ()

    def usage(path: str) -> SimpleNamespace:
        clock[0] += 0.5
        return SimpleNamespace(total=0, free=0)

    measure = Probe(None, 0, Slow())  # type: ignore[arg-type]
    monkeypatch.setattr(probes, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(probes, "psutil", SimpleNamespace(disk_usage=usage))
    measure.sample()
    assert measure.seconds == 0.5
