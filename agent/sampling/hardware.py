"""`HardwareDetector`: what this machine has, and what of it is free now, by the names of the resource management
document. `grid agent detect` shows what an agent would lend of that."""

import platform
import time
from typing import Any

import psutil

from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.sampling.probe import SPAN, Probe
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import MIB


class HardwareDetector:
    """Looks at this machine as an agent does. `gpu_backend` as in the configuration. Raises GridError if its package is
    missing."""

    def __init__(self, gpu_backend: str = "auto") -> None:
        self._probe = Probe(None, 0, open_backend(gpu_backend))
        self._began = time.monotonic()

    def get_capabilities(self) -> dict[str, Any]:
        """`hostname`, `platform` and `python`, and `cpu`, `memory` and `gpu` with the keys of the document, memory in
        MB (2^20 bytes). Cores are those that this process may use; `available_cores` are those that nothing was
        running on in the last half second, `available_devices` the GPUs that can be read and that no process uses."""
        time.sleep(max(0.0, self._began + SPAN - time.monotonic()))  # CPU use is a rate
        return {
            "hostname": platform.node(),
            "platform": platform.system().lower(),
            "python": platform.python_version(),
            **self._resources(self._probe.sample()),
        }

    def _resources(self, sample: Sample) -> dict[str, dict[str, Any]]:
        gpus = [gpu for gpu in sample.gpus if not gpu.error]
        cores = len(self._probe.cores)
        return {
            "cpu": {
                "cores": cores,
                "physical_cores": min(cores, psutil.cpu_count(logical=False) or cores),
                "available_cores": round(max(0.0, cores - sample.own_cpu - sample.foreign_cpu), 2),
            },
            "memory": {
                "total_mb": sample.memory_total // MIB,
                "available_mb": max(0, sample.memory_total - sample.memory_own - sample.memory_foreign) // MIB,
            },
            "gpu": {
                "devices": len(self._probe.gpus.facts()),
                "available_devices": sum(all(one.graphics for one in gpu.processes) for gpu in gpus),
                "total_memory_mb": sum(gpu.memory_total for gpu in gpus) // MIB,
                "available_memory_mb": sum(gpu.memory_total - gpu.memory_used for gpu in gpus) // MIB,
            },
        }
