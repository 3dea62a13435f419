"""The resources that each allocation uses, measured by samples and reported at an interval."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from distributed_grid.protocol.jobs import GpuUse, Use
from distributed_grid.protocol.messages import InUse
from distributed_grid.protocol.nodes import GpuSample
from distributed_grid.protocol.resources import Grant

EVERY = 15.0
"""Report interval (s)."""
APART = 0.5
"""Minimum interval between compared samples (s): the kernel counts CPU time in ticks of 10 ms."""
USUAL = 600.0
"""Seconds of which the usual use is worked out."""
RANK = 0.99
"""The quantile of the samples that it is."""
MOST = 200
"""Maximum number of allocations in one report: frames are bounded."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Use by a process tree: resident bytes, CPU seconds since its start, live processes; and the bytes that it has on
    each GPU where it has any, by UUID."""

    rss: int = 0
    cpu: float = 0.0
    processes: int = 0
    gpus: tuple[tuple[str, int], ...] = ()

    @property
    def gpu_memory(self) -> int:
        """The bytes that it has on the GPU where it has most."""
        return max((memory for _, memory in self.gpus), default=0)


@dataclass(slots=True)
class Seen:
    """An allocation: the last reading, and what was gathered since the last report."""

    since: float
    at: float
    cpu: float
    began: float
    """CPU seconds at the last report."""
    peak: float = 0.0
    memory: int = 0
    gpu_memory: int = 0
    gpus: dict[str, list[float]] = field(default_factory=dict)
    """Utilisation percentages by GPU."""
    samples: deque[tuple[float, float, float]] = field(default_factory=deque)
    """From when and until when, and the cores' worth: of the last `USUAL` seconds."""


class UsageReporter:
    """Collects measurements, and returns a report when it is due."""

    def __init__(self, every: float = EVERY) -> None:
        self.every = every
        self._seen: dict[str, Seen] = {}
        self._told = float("-inf")

    def observe(
        self,
        now: float,
        spent: Mapping[str, Usage],
        grants: Mapping[str, Grant],
        gpus: Iterable[GpuSample],
    ) -> InUse | None:
        """Take in a measurement; returns the report, if due."""
        busy = {gpu.uuid: gpu.utilisation for gpu in gpus if not (gpu.error or gpu.untold)}
        self._seen = {key: seen for key, seen in self._seen.items() if key in spent}
        for key, one in spent.items():
            self._refresh(key, now, one, grants.get(key), busy)
        if not self._seen:
            self._told = now
            return None
        return self._tell(now) if now - self._told >= self.every else None

    def _refresh(self, key: str, now: float, one: Usage, grant: Grant | None, busy: Mapping[str, float]) -> None:
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = Seen(now, now, one.cpu, began=one.cpu, memory=one.rss, gpu_memory=one.gpu_memory)
            return
        if now - seen.at < APART:
            return
        # The time of a child that was not waited for is lost: if the sum falls, the sample is ignored.
        if one.cpu < seen.cpu:
            seen.began -= seen.cpu - one.cpu
        used = (one.cpu - seen.cpu) / (now - seen.at)
        seen.peak = max(seen.peak, used)
        seen.samples.append((seen.at, now, max(0.0, used)))
        while seen.samples[0][0] < now - USUAL:
            seen.samples.popleft()
        seen.memory = max(seen.memory, one.rss)
        seen.gpu_memory = max(seen.gpu_memory, one.gpu_memory)
        for gpu in grant.gpus if grant is not None else ():
            if gpu.uuid in busy:
                seen.gpus.setdefault(gpu.uuid, []).append(busy[gpu.uuid])
        seen.at, seen.cpu = now, one.cpu

    def _tell(self, now: float) -> InUse | None:
        self._told = now
        uses = []
        for key, seen in sorted(self._seen.items(), key=lambda one: one[1].since)[:MOST]:
            if seen.at - seen.since < APART:
                continue
            seconds = seen.at - seen.since
            gpus = tuple(GpuUse(uuid, sum(all_) / len(all_), max(all_)) for uuid, all_ in seen.gpus.items())
            mean = max(0.0, seen.cpu - seen.began) / seconds
            uses.append(
                Use(
                    allocation=key,
                    seconds=round(seconds, 3),
                    cpu=round(mean, 3),
                    cpu_peak=round(max(seen.peak, mean), 3),
                    memory=seen.memory,
                    gpus=gpus,
                    usual=round(_usual(seen.samples), 3),
                    usual_for=round(seen.at - seen.samples[0][0], 3) if seen.samples else 0.0,
                    gpu_memory=seen.gpu_memory,
                )
            )
            self._seen[key] = Seen(since=seen.at, at=seen.at, cpu=seen.cpu, began=seen.cpu, samples=seen.samples)
        return InUse(uses=tuple(uses)) if uses else None


def _usual(samples: Collection[tuple[float, float, float]]) -> float:
    """The cores' worth that 99 of 100 samples do not exceed; 0 without any."""
    in_order = sorted(used for _, _, used in samples)
    return in_order[math.ceil(RANK * len(in_order)) - 1] if in_order else 0.0
