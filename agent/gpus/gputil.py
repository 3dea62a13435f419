"""GPUs by GPUtil, for those who have it: it runs nvidia-smi for each sample, knows no processes and keeps errors to
itself. The package is handed in: this file imports no library of a vendor."""

import math
from typing import Any

from distributed_grid.protocol.nodes import GpuFacts, GpuSample
from distributed_grid.protocol.resources import MIB


class GputilBackend:
    """Reads through `GPUtil.getGPUs`."""

    def __init__(self, gputil: Any) -> None:
        self.name = "gputil"
        self.error = self.note = ""
        self._gputil = gputil
        self._facts: tuple[GpuFacts, ...] = ()

    def facts(self) -> tuple[GpuFacts, ...]:
        """The GPUs there are. Asked once: `sample` keeps to these."""
        seen = self._gputil.getGPUs()
        self._facts = tuple(GpuFacts(one.uuid, int(one.id), one.name, int(one.memoryTotal) * MIB) for one in seen)
        self.note = "" if seen else "GPUtil finds no GPU (and does not say why)"
        return self._facts

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """Read all GPUs; one that is not listed any more has an error."""
        seen = {one.uuid: one for one in self._gputil.getGPUs()} if self._facts else {}
        return tuple(self._read(gpu, seen.get(gpu.uuid)) for gpu in self._facts)

    def _read(self, gpu: GpuFacts, seen: Any) -> GpuSample:
        if seen is None:
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error="not listed by nvidia-smi any more")
        if math.isnan(seen.memoryUsed) or math.isnan(seen.memoryTotal):
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error="nvidia-smi does not tell its memory")
        load, heat = _known(100 * seen.load), _known(seen.temperature)
        return GpuSample(gpu.uuid, load, int(seen.memoryUsed) * MIB, int(seen.memoryTotal) * MIB, heat)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
