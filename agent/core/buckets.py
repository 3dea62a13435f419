"""Sums the samples of a node in buckets of ten seconds (protocol/history/buckets.py). A closed bucket is kept until the
coordinator has acknowledged it, for one hour at most. If nothing was measured there is no bucket."""

from collections import deque
from collections.abc import Callable

from distributed_grid.protocol.history.buckets import KEPT, PER_MESSAGE, SECONDS, Bucket, GpuBucket, MeanMax, number_of
from distributed_grid.protocol.messages import Buckets
from distributed_grid.protocol.nodes import GpuSample, Sample


class _Sum:
    """Weighted sum, weight and maximum of one series."""

    __slots__ = ("most", "sum", "weight")

    def __init__(self) -> None:
        self.sum = self.weight = self.most = 0.0

    def add(self, value: float, weight: float) -> None:
        self.sum += value * weight
        self.weight += weight
        self.most = max(self.most, value)

    def use(self, whole: float = 0.0) -> MeanMax:
        """Mean and maximum; the mean over this weight, where it is more than what was measured."""
        weight = max(self.weight, whole)
        return MeanMax(self.sum / weight, self.most) if weight > 0 else MeanMax()


class _Gpu:
    """The sums of one GPU."""

    __slots__ = ("foreign", "memory", "memory_foreign", "total", "utilisation")

    def __init__(self) -> None:
        self.utilisation, self.foreign, self.memory, self.memory_foreign = _Sum(), _Sum(), _Sum(), _Sum()
        self.total = 0

    def add(self, gpu: GpuSample, weight: float, lent: bool) -> None:
        ours = sum(one.memory for one in gpu.processes if one.own)
        if not gpu.processes and lent:  # the driver may not tell them: what a job holds is in use by that
            ours = gpu.memory_used
        self.total = max(self.total, gpu.memory_total)
        self.utilisation.add(gpu.utilisation, weight)
        self.foreign.add(gpu.foreign_utilisation(lent), weight)
        self.memory.add(gpu.memory_used, weight)
        self.memory_foreign.add(max(0, gpu.memory_used - ours), weight)


class _Open:
    """The bucket that is being filled."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.samples = 0
        self.total = 0
        self.cores = 0
        self.own_cpu, self.foreign_cpu, self.own_memory, self.foreign_memory = _Sum(), _Sum(), _Sum(), _Sum()
        self.disk, self.net = _Sum(), _Sum()
        self.waiting: dict[str, _Sum] = {}
        self.gpus: dict[str, _Gpu] = {}

    def add(self, sample: Sample, weight: float, lent: Callable[[str], bool]) -> None:
        self.samples += 1
        self.total, self.cores = sample.memory_total, len(sample.cores)
        self.own_cpu.add(sample.own_cpu, weight)
        self.foreign_cpu.add(sample.foreign_cpu, weight)
        self.own_memory.add(sample.memory_own, weight)
        self.foreign_memory.add(sample.memory_foreign, weight)
        self.disk.add(sample.disk_read + sample.disk_written, weight)
        self.net.add(sample.net_received + sample.net_sent, weight)
        for name, percent in sample.pressure.items():
            self.waiting.setdefault(name, _Sum()).add(percent, weight)
        for gpu in sample.gpus:
            if not gpu.error:
                self.gpus.setdefault(gpu.uuid, _Gpu()).add(gpu, weight, lent(gpu.uuid))

    def close(self) -> Bucket:
        return Bucket(
            number=self.number,
            samples=self.samples,
            cores=self.cores,
            memory_total=self.total,
            own_cpu=self.own_cpu.use(),
            foreign_cpu=self.foreign_cpu.use(),
            own_memory=self.own_memory.use(),
            foreign_memory=self.foreign_memory.use(),
            disk=self.disk.use(),
            net=self.net.use(),
            # A sample without figures of pressure (PSI) counts as one in which nobody waited.
            waiting={name: one.use(self.own_cpu.weight) for name, one in self.waiting.items()},
            gpus=tuple(
                GpuBucket(
                    uuid=uuid,
                    utilisation=one.utilisation.use(),
                    foreign=one.foreign.use(),
                    memory=one.memory.use(),
                    memory_foreign=one.memory_foreign.use(),
                    memory_total=one.total,
                )
                for uuid, one in self.gpus.items()
            ),
        )


class Aggregator:
    """The open bucket, and the closed ones that are not acknowledged yet."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._last = float("-inf")
        self._kept: deque[Bucket] = deque(maxlen=KEPT)

    def observe(self, sample: Sample, lent: Callable[[str], bool] = lambda uuid: False) -> Bucket | None:
        """Take in a sample; returns the bucket that it closes. A sample that is not newer than the last one (repeated
        while measuring hangs) counts for nothing. `lent` tells of a GPU whether a job holds it, or did a moment
        before."""
        if not sample.at > self._last:
            return None
        weight = min(sample.at - self._last, float(SECONDS))
        self._last = sample.at
        number, closed = number_of(sample.at), None
        if self._open is not None and self._open.number != number:
            closed = self._open.close()
            self._kept.append(closed)
            self._open = None
        if self._open is None:
            self._open = _Open(number)
        self._open.add(sample, weight, lent)
        return closed

    def unacknowledged(self, at: float) -> list[Buckets]:
        """Messages with all that is not acknowledged, sent at this moment; fewer buckets in one where each has many
        GPUs, since frames are bounded."""
        kept = tuple(self._kept)
        size = max(1, PER_MESSAGE // (1 + max((len(one.gpus) for one in kept), default=0)))
        return [Buckets(at=at, buckets=kept[first : first + size]) for first in range(0, len(kept), size)]

    def acknowledge(self, through: int) -> None:
        """Forget the buckets up to this number."""
        while self._kept and self._kept[0].number <= through:
            self._kept.popleft()
