"""NVIDIA GPUs, by nvidia-ml-py's `pynvml` or by GPUtil (which runs nvidia-smi for each sample, knows no processes and
hides errors). Both packages are passed in: this module imports no vendor library."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from distributed_grid.agent.gpus.base import Processes, cuda
from distributed_grid.agent.sampling.host import pci_node
from distributed_grid.protocol.nodes import GpuFacts, GpuProcess, GpuSample
from distributed_grid.protocol.resources import MIB

Pair = tuple[int, int]


_LATELY = 2.0
"""Seconds of which the use by process is asked: drivers measure it once a second or more often."""
PARTITIONED = "MIG was switched on; restart the agent, which will lend the instances"


class NvmlBackend:
    """Reads through NVML. `system_memory` gives total and used bytes of the machine, for GPUs with unified memory."""

    def __init__(self, nvml: Any, system_memory: Callable[[], Pair]) -> None:
        self.name = "nvml"
        self.error = self.note = ""
        self._nvml = nvml
        self._system_memory = system_memory
        self._lock = threading.Lock()
        self._processes = Processes()
        self._handles: dict[str, Any] = {}
        self._whole: set[str] = set()
        """The GPUs that were not partitioned at the start."""
        self._facts: tuple[GpuFacts, ...] = ()

    def facts(self) -> tuple[GpuFacts, ...]:
        """The GPUs, each MIG instance as one of its own. Read once: `sample` keeps to these."""
        with self._lock:
            self._start()
            return self._facts

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """Read all GPUs; one that fails has its error, and its handle is fetched again next time."""
        if not self._facts:
            return ()
        with self._lock:
            return tuple(self._read(gpu, own) for gpu in self._facts)

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variables by which a program sees these GPUs and no others."""
        return cuda(uuids)

    def _start(self) -> None:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError_LibraryNotFound:
            self.note = "no NVIDIA driver"
            return
        except nvml.NVMLError as error:
            self.error = f"NVIDIA driver: {error}"
            return
        found, broken = [], []
        for index in range(count):
            try:
                if not (facts := self._read_facts(index)):
                    broken.append(f"GPU {index}: MIG is on, and it has no instances")
                found += facts
            except nvml.NVMLError as error:
                broken.append(f"GPU {index}: {error}")
        self._facts = tuple(found)
        self.error = "; ".join(broken)
        if not count:
            self.note = "no NVIDIA GPU"

    def _read_facts(self, index: int) -> list[GpuFacts]:
        """The GPU, or its MIG instances."""
        nvml = self._nvml
        parent = nvml.nvmlDeviceGetHandleByIndex(index)
        facts = []
        partitioned = self._partitioned(parent)
        for handle in self._instances(parent) if partitioned else [parent]:
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            if not partitioned:
                self._whole.add(uuid)
            total = self._memory(handle)[0]
            model = str(nvml.nvmlDeviceGetName(handle))
            self._handles[uuid] = handle
            stand_in = bool(getattr(nvml, "STAND_IN", False))
            facts.append(GpuFacts(uuid, index, model, total, stand_in, numa=self._numa(parent)))
        return facts

    def _numa(self, parent: Any) -> int:
        """The NUMA node of a GPU; -1 if unknown."""
        nvml = self._nvml
        try:
            address = nvml.nvmlDeviceGetPciInfo(parent).busId
        except nvml.NVMLError:
            return -1
        return pci_node(address.decode() if isinstance(address, bytes) else str(address))

    def _partitioned(self, parent: Any) -> bool:
        """Whether MIG is on: programs run on its instances then, and not on the whole GPU."""
        nvml = self._nvml
        try:
            return bool(nvml.nvmlDeviceGetMigMode(parent)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
        except nvml.NVMLError:
            return False

    def _instances(self, parent: Any) -> list[Any]:
        """The MIG instances of a partitioned GPU."""
        nvml = self._nvml
        handles = []
        for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
            try:
                handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot))
            except nvml.NVMLError:
                continue  # an empty slot
        return handles

    def _read(self, gpu: GpuFacts, own: set[int]) -> GpuSample:
        nvml = self._nvml
        try:
            handle = self._handle(gpu.uuid)
            total, used = self._memory(handle)
            processes = self._classify(gpu.uuid, handle, own)
            utilisation = self._optional(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
            heat = self._optional(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
        except nvml.NVMLError as error:
            self._handles.pop(gpu.uuid, None)
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error=str(error))
        if gpu.uuid in self._whole and self._partitioned(handle):
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error=PARTITIONED)
        untold = utilisation is None
        return GpuSample(gpu.uuid, utilisation or 0.0, used, total, heat or 0.0, processes, untold=untold)

    def _handle(self, uuid: str) -> Any:
        nvml = self._nvml
        if uuid not in self._handles:
            # The driver may have been restarted; NVML counts initialisations, so a second one is harmless.
            nvml.nvmlInit()
            self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
        return self._handles[uuid]

    def _memory(self, handle: Any) -> Pair:
        nvml = self._nvml
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_NotSupported:
            return self._system_memory()
        return int(memory.total), int(memory.used)

    def _classify(self, uuid: str, handle: Any, own: set[int]) -> tuple[GpuProcess, ...]:
        """Return all processes on a GPU; foreign processes that only draw come with their use of it."""
        nvml = self._nvml
        computing = self._list(handle, nvml.nvmlDeviceGetComputeRunningProcesses)
        drawing = self._list(handle, nvml.nvmlDeviceGetGraphicsRunningProcesses)
        found = self._processes.classify(uuid, computing, drawing, own)
        if not any(one.graphics and not one.own for one in found) or (used := self._use_by_process(handle)) is None:
            return found
        return tuple(
            msgspec.structs.replace(one, utilisation=used.get(one.pid, 0.0)) if one.graphics else one for one in found
        )

    def _list(self, handle: Any, ask: Callable[[Any], Any]) -> list[Pair]:
        """Pids and bytes of the processes of one kind on a GPU."""
        nvml = self._nvml
        try:
            return [(int(one.pid), int(one.usedGpuMemory or 0)) for one in ask(handle)]
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):
            return []  # judged by memory and utilisation alone then

    def _use_by_process(self, handle: Any) -> dict[int, float] | None:
        """Return the processes' recent use of a GPU's time, in percent, by pid: of its cores, or of its video units if
        that is more. Processes without use are missing. None: the driver does not report it at all, as for MIG
        instances."""
        nvml = self._nvml
        used: dict[int, float] = {}
        try:
            for one in nvml.nvmlDeviceGetProcessUtilization(handle, int((time.time() - _LATELY) * 1e6)):
                used[one.pid] = max(used.get(one.pid, 0.0), float(max(one.smUtil, one.encUtil, one.decUtil)))
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):  # these: nobody used any
                return None
        return used

    def _optional(self, read: Callable[[], float]) -> float | None:
        """A figure that not every GPU has (a MIG instance has no utilisation)."""
        try:
            return read()
        except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return None


NO_MEMORY = "nvidia-smi does not tell its memory"


class GputilBackend:
    """Reads through `GPUtil.getGPUs`."""

    def __init__(self, gputil: Any) -> None:
        self.name = "gputil"
        self.error = self.note = ""
        self._gputil = gputil
        self._facts: tuple[GpuFacts, ...] = ()

    def facts(self) -> tuple[GpuFacts, ...]:
        """The GPUs whose memory is known. Read once: `sample` keeps to these."""
        seen = self._gputil.getGPUs()
        broken = [one for one in seen if math.isnan(one.memoryTotal)]
        self._facts = tuple(
            GpuFacts(one.uuid, int(one.id), one.name, int(one.memoryTotal) * MIB) for one in seen if one not in broken
        )
        self.error = "; ".join(f"GPU {one.id}: {NO_MEMORY}" for one in broken)
        self.note = "" if seen else "GPUtil finds no GPU (and does not say why)"
        return self._facts

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """Read all GPUs; one that is not listed any more has an error."""
        seen = {one.uuid: one for one in self._gputil.getGPUs()} if self._facts else {}
        return tuple(self._read(gpu, seen.get(gpu.uuid)) for gpu in self._facts)

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variables by which a program sees these GPUs and no others."""
        return cuda(uuids)

    def _read(self, gpu: GpuFacts, seen: Any) -> GpuSample:
        if seen is None:
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error="not listed by nvidia-smi any more")
        if math.isnan(seen.memoryUsed) or math.isnan(seen.memoryTotal):
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error=NO_MEMORY)
        load, heat = _known(100 * seen.load), _known(seen.temperature)
        used, total = int(seen.memoryUsed) * MIB, int(seen.memoryTotal) * MIB
        return GpuSample(gpu.uuid, load, used, total, heat, untold=math.isnan(seen.load))


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)
