"""What a job really uses of what it holds: as its node tells it, and as it is kept with the job."""

import msgspec

from distributed_grid.protocol.numbers import Count, Finite, Span, Word


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """How busy a GPU was, in percent: the mean of the samples, and the highest. Where several jobs share it, it is
    what all of them make of it."""

    uuid: Word
    mean: Finite = 0.0
    peak: Finite = 0.0


class Use(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one allocation used in the last `seconds`: cores' worth of CPU time (mean, and the highest sample), and the
    most resident memory in bytes."""

    allocation: Word
    seconds: Span
    cpu: Finite = 0.0
    cpu_peak: Finite = 0.0
    memory: Count = 0
    gpus: tuple[GpuUse, ...] = ()


class Used(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an attempt of a job used, as far as it was told: over `seconds` of it, CPU time in core-seconds and the most
    cores at once, the most memory, and, times seconds, how many of its GPUs were busy (0.5: one half of the time)."""

    allocation: str
    seconds: Finite = 0.0
    cpu_seconds: Finite = 0.0
    cpu_peak: Finite = 0.0
    memory: Count = 0
    gpu_seconds: Finite = 0.0

    @property
    def cpu(self) -> float:
        """Cores, in the mean."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0

    @property
    def gpu(self) -> float:
        """GPUs, in the mean."""
        return self.gpu_seconds / self.seconds if self.seconds else 0.0

    def plus(self, use: Use) -> "Used":
        """With what was told now."""
        return Used(
            allocation=self.allocation,
            seconds=self.seconds + use.seconds,
            cpu_seconds=self.cpu_seconds + use.cpu * use.seconds,
            cpu_peak=max(self.cpu_peak, use.cpu_peak),
            memory=max(self.memory, use.memory),
            gpu_seconds=self.gpu_seconds + sum(gpu.mean for gpu in use.gpus) / 100 * use.seconds,
        )
