"""Measures this node: use by the grid's own jobs, and by everybody else. Measurements run one at a time, at an interval
and for claims, in a thread: heartbeats continue if one hangs, and what cannot be read is not lent. One case is measured
on the loop, because a thread takes four times as long: a claim of cores and memory, if recent measurements were quick.
"""

import asyncio
import os
import platform
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from distributed_grid.agent.core.spare.thresholds import OFF, Limits, lendable
from distributed_grid.agent.core.usage import Usage
from distributed_grid.agent.gpus.base import GpuBackend
from distributed_grid.agent.sampling import host, owner_signs
from distributed_grid.agent.sampling.host import numa_nodes, smt_threads
from distributed_grid.agent.sampling.trees import Spent, Trees
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import GpuSample, NodeFacts, Sample
from distributed_grid.protocol.resources import format_ranges
from distributed_grid.runtime.unix import boot_clock

SPAN = 0.5
"""Minimum interval for rates (s): the kernel counts CPU time in ticks of 10 ms."""
APART = 0.1


@dataclass(slots=True)
class Counters:
    """Counters at one moment, and CPU time of own processes and of siblings since the previous one."""

    at: float
    busy: dict[int, float]
    traffic: tuple[int, int, int, int]
    own: Spent
    siblings: Spent


class Probe:
    """Measures. `cores`: those to manage (None: all the agent may use; with `virtual` any numbers); `memory_limit`:
    bytes to manage (0: all); `own_roots` gives the pids of our agent and supervisors, `sibling_roots` those of sibling
    agents, whose use is not foreign either; the disk is that of `state_dir`. Signs of an active owner are read after
    `watch`. Thread-safe. Raises BadValue for cores that the agent may not use."""

    def __init__(
        self,
        cores: Sequence[int] | None,
        memory_limit: int,
        gpus: GpuBackend,
        virtual: bool = False,
        own_roots: Callable[[], Iterable[int]] = tuple,
        sibling_roots: Callable[[], Iterable[int]] = tuple,
        state_dir: Path = Path("/"),
    ) -> None:
        self._usable = host.usable_cores()
        self.cores = tuple(sorted(set(cores or self._usable)))
        self.virtual = virtual
        # A quota limits the default only: a configuration may name any core of the agent's affinity.
        allowed = os.sched_getaffinity(0)
        if not virtual and (beyond := [core for core in self.cores if core not in allowed]):
            raise BadValue(
                f"cores {format_ranges(beyond)} cannot be managed",
                why=f"this process may use the cores {format_ranges(sorted(allowed))}",
                hint="name cores among these, or let the agent number virtual ones",
            )
        self.gpus = gpus
        self._limit = memory_limit
        self._groups = host.memory_groups()
        self._disk = str(state_dir)
        self._lock = threading.Lock()
        self._trees = Trees(own_roots, sibling_roots)
        self._pressure = False
        self._input: owner_signs.InputWatch | None = None
        self._trees.walk()
        self._readings = deque([Counters(boot_clock(), host.busy_seconds(), host.traffic(), [], [])])
        self._seen_gpus: tuple[GpuSample, ...] = ()
        self._usage: dict[int, Usage] = {}
        self.seconds = 0.0
        """How long a measurement takes without its GPUs; the slowest of late counts."""

    def watch(self, limits: Limits) -> None:
        """Read the signs of an active owner that these limits need from now on."""
        self._pressure = limits.owner_pressure < OFF
        if not limits.owner_input:
            self._input = None
        elif self._input is None:
            self._input = owner_signs.InputWatch()

    def facts(
        self,
        name: str,
        incarnation: int,
        limits: Limits,
        labels: dict[str, str] | None = None,
        software: str = "",
        priority: float = 1.0,
    ) -> NodeFacts:
        """The node's constant facts, `limits` applied to what it could lend."""
        memory, gpus = self._memory()[0], self.gpus.facts()
        return NodeFacts(
            name=name,
            hostname=socket.gethostname(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            incarnation=incarnation,
            cores=self.cores,
            memory=memory,
            lendable=lendable(limits, self.cores, memory, gpus),
            virtual=self.virtual,
            gpus=gpus,
            labels=labels or {},
            software=software,
            python=platform.python_version(),
            priority=priority,
            numa=() if self.virtual else numa_nodes(self.cores),
            smt=() if self.virtual else smt_threads(self.cores),
        )

    def sample(self, at: float | None = None, read_gpus: bool = True) -> Sample:
        """Measure now. `at` is the time by `peer.boot_clock`. Rates are since the last sample, or over a little more if
        that is recent. Without `read_gpus` the last reading of the GPUs is used."""
        with self._lock:
            return self._sample(boot_clock() if at is None else at, read_gpus)

    def usage(self) -> dict[int, Usage]:
        """Use of each process directly below our supervisors with its tree, by pid, in the last sample. It waits for no
        measurement, which may hang."""
        return self._usage

    def _sample(self, at: float, read_gpus: bool) -> Sample:
        began = time.perf_counter()
        reading = Counters(at, host.busy_seconds(), host.traffic(), *self._trees.walk())
        since = self._baseline(at)
        elapsed = max(at - since.at, 1e-3)
        later = [one for one in self._readings if one.at > since.at] + [reading]
        own = [spent for one in later for spent in one.own]
        siblings = [spent for one in later for spent in one.siblings]
        self._remember(reading)
        busy = {core: max(0.0, ticks - since.busy.get(core, ticks)) for core, ticks in reading.busy.items()}
        foreign = foreign_seconds(busy, own + siblings)
        cores, foreign_cpu = self._foreign(foreign, elapsed)
        total, memory_foreign, memory_own = self._split_memory()
        if read_gpus:
            before = time.perf_counter()
            self._seen_gpus = self.gpus.sample(self._trees.pids)
            began += time.perf_counter() - before
        self._usage = self._trees.usage(
            {gpu.uuid: {one.pid: one.memory for one in gpu.processes} for gpu in self._seen_gpus}
        )
        disk = psutil.disk_usage(self._disk)
        rates = [max(0.0, (new - old) / elapsed) for new, old in zip(reading.traffic, since.traffic, strict=True)]
        pressure = owner_signs.pressure(self._trees.pids) if self._pressure else {}
        watch = self._input
        self.seconds = max(time.perf_counter() - began, 0.95 * self.seconds)
        return Sample(
            at=at,
            cores=cores,
            own_cpu=round(sum(seconds for _, seconds in own) / elapsed, 3),
            foreign_cpu=round(foreign_cpu, 3),
            memory_total=total,
            memory_foreign=memory_foreign,
            memory_own=memory_own,
            load=round(os.getloadavg()[0], 2),
            disk_total=disk.total,
            disk_free=disk.free,
            disk_read=round(rates[0], 1),
            disk_written=round(rates[1], 1),
            net_received=round(rates[2], 1),
            net_sent=round(rates[3], 1),
            gpus=self._seen_gpus,
            gpu_error=self.gpus.error,
            pressure=pressure,
            input_idle=round(watch.idle(), 1) if watch is not None else -1.0,
        )

    def _baseline(self, at: float) -> Counters:
        """The newest reading that is old enough for a rate, else the oldest; those before it are dropped."""
        while len(self._readings) > 1 and at - self._readings[1].at >= SPAN:
            self._readings.popleft()
        return self._readings[0]

    def _remember(self, reading: Counters) -> None:
        """Keep the reading; in a burst of samples it replaces the previous one, so that few are kept."""
        last = self._readings[-1]
        if len(self._readings) > 1 and reading.at - self._readings[-2].at < APART:
            reading.own, reading.siblings = merged(last.own + reading.own), merged(last.siblings + reading.siblings)
            self._readings.pop()
        self._readings.append(reading)

    def _foreign(self, foreign: dict[int, float], elapsed: float) -> tuple[dict[int, int], float]:
        """Foreign use of each managed core in percent, and in total in cores. Virtual cores get equal parts of the real
        ones'; a core that was taken from the agent's cpuset is left out."""
        if self.virtual:
            share = min(1.0, sum(foreign.get(core, 0.0) for core in self._usable) / elapsed / len(self._usable))
            return dict.fromkeys(self.cores, round(100 * share)), share * len(self.cores)
        allowed = os.sched_getaffinity(0)
        parts = {core: min(1.0, foreign[core] / elapsed) for core in self.cores if core in foreign and core in allowed}
        return {core: round(100 * part) for core, part in parts.items()}, sum(parts.values())

    def _memory(self) -> tuple[int, int, int]:
        """Bytes managed, in total, and available."""
        total, available = host.memory(self._groups)
        return (min(self._limit, total) if self._limit else total), total, available

    def _split_memory(self) -> tuple[int, int, int]:
        """Bytes managed, used by others and by our jobs. With a limit, others' use is charged in proportion, as to each
        of several agents that share a machine; memory that the machine does not have available is not spare."""
        managed, machine, available = self._memory()
        own, siblings = self._trees.memory()
        others = max(0, machine - available - own - siblings)
        foreign = max(others * managed // machine, managed - own - available)
        return managed, min(max(0, foreign), managed), own


def foreign_seconds(busy: dict[int, float], spent: Spent) -> dict[int, float]:
    """Return each core's busy seconds without the grid's own: those of a process are subtracted from the cores it may
    run on, the most closely pinned first, in proportion to what is left there."""
    left = dict(busy)
    for cores, seconds in sorted(merged(spent), key=lambda one: len(one[0])):
        here = [core for core in cores if core in left]
        there = sum(left[core] for core in here)
        if there > 0:
            part = max(0.0, 1 - seconds / there)
            left.update({core: left[core] * part for core in here})
    return left


def merged(spent: Spent) -> Spent:
    """Add up the entries with the same set of cores."""
    sums: dict[frozenset[int], float] = {}
    for cores, seconds in spent:
        sums[cores] = sums.get(cores, 0.0) + seconds
    return list(sums.items())


STUCK_AFTER = 6.0
"""Seconds after which a measurement counts as hanging."""
QUICK = 0.02
"""Seconds that a measurement may take on the event loop."""


class Meter:
    """Samples of this node. `took` is called with each new one, on the loop; `clock` is that of the samples."""

    def __init__(
        self,
        probe: Probe,
        interval: float,
        clock: Callable[[], float],
        took: Callable[[Sample], None],
        log: Callable[[str], None],
    ) -> None:
        self.newest: Sample | None = None
        self._probe = probe
        self._interval = interval
        self._clock = clock
        self._took = took
        self._log = log
        self._gpus_at = float("-inf")
        self._measuring: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()

    def follow(self, interval: float) -> None:
        """Measure at this interval from now on."""
        self._interval = interval
        self._hurried.set()

    async def run(self) -> None:
        """Measure every interval, for ever."""
        while True:
            begun = self._clock()
            measuring = asyncio.create_task(self.since(begun, gpus=True))
            try:
                await asyncio.wait((measuring,), timeout=STUCK_AFTER)
                while not measuring.done():
                    self._lost(f"measuring this node hangs since {self._clock() - begun:.0f} s")
                    await asyncio.wait((measuring,), timeout=STUCK_AFTER)
            finally:
                measuring.cancel()
            if (error := measuring.exception()) is not None:
                self._lost(f"measuring this node failed: {error}")
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, self._interval - (self._clock() - begun))):
                    await self._hurried.wait()

    async def since(self, moment: float, gpus: bool) -> Sample:
        """A sample begun at this moment or later, with the GPUs if wanted. Concurrent callers share one."""
        while self.newest is None or self.newest.at < moment or (gpus and self._gpus_at < moment):
            if self._measuring is None:
                self._measuring = asyncio.create_task(self._measure(gpus), name="measure")
            await asyncio.shield(self._measuring)
        return self.newest

    async def _measure(self, gpus: bool) -> None:
        begun = self._clock()
        try:
            sample = await asyncio.to_thread(self._probe.sample, begun, gpus)
        finally:
            self._measuring = None
        if gpus:
            self._gpus_at = begun
        self._take(sample)

    def at_once(self, moment: float) -> Sample | None:
        """The newest sample, if begun at this moment or later, else one of now with the last reading of the GPUs. None:
        measuring takes its time here, or is under way. Raises OSError if it fails."""
        if self.newest is not None and self.newest.at >= moment:
            return self.newest
        if self._measuring is not None or self._probe.seconds > QUICK:
            return None
        sample = self._probe.sample(self._clock(), False)
        self._take(sample)
        return sample

    def _take(self, sample: Sample) -> None:
        self.newest = sample
        self._took(sample)

    def _lost(self, why: str) -> None:
        """Report cores, memory and GPUs as unknown instead of as they were a while ago."""
        self._log(why)
        last = self.newest
        if last is None:
            return
        gpus = tuple(GpuSample(gpu.uuid, memory_total=gpu.memory_total, error=why) for gpu in last.gpus)
        self._take(msgspec.structs.replace(last, cores={}, memory_total=0, gpus=gpus, gpu_error=why))
