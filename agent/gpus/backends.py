"""The GPUs of this machine, read through one of several backends. A GPU that cannot be read has its error in the sample
and never counts as idle. A driver that does not return delays nothing else (see `TimeoutBackend`)."""

import ctypes
import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from distributed_grid import pip
from distributed_grid.agent.gpus.amd import AmdBackend
from distributed_grid.agent.gpus.base import GpuBackend, NoGpus, TimeoutBackend, select
from distributed_grid.agent.gpus.nvidia import GputilBackend, NvmlBackend
from distributed_grid.protocol.errors import BadValue, GridError

NAMES = ("auto", "nvml", "gputil", "amd", "none")
"""Values of `gpu_backend`."""


def open_backend(name: str = "auto", wanted: Sequence[str] = (), root: Path = Path("/")) -> GpuBackend:
    """The backend of this name; `wanted` limits it to GPUs named by UUID or index (empty: all there are); `root` stands
    for `/` where files are read. Raises BadValue for a name or a GPU there is not, GridError for a missing package."""
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise BadValue(f"unknown gpu backend {name!r}", hint=f"{meant}there are {', '.join(NAMES)}")
    backend = _open(name, root)
    chosen, missing = select(backend.facts(), wanted)
    if missing:
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in backend.facts()) or "none"
        raise BadValue(
            f"no GPU {', '.join(missing)} on this machine",
            why=backend.error or backend.note,
            hint=f"there are: {there}",
        )
    if wanted and isinstance(backend, TimeoutBackend):
        backend.choose(chosen)
    return backend


def _open(name: str, root: Path) -> TimeoutBackend | NoGpus:
    match name:
        case "nvml":
            return _nvml()
        case "amd":
            return TimeoutBackend(AmdBackend(root))
        case "gputil":
            return _gputil()
        case "none":
            return NoGpus()
    nvml = _nvml() if _has_driver() else NoGpus("auto", "no NVIDIA driver")
    if nvml.facts():
        return nvml
    amd = TimeoutBackend(AmdBackend(root))
    if amd.facts() or amd.error:
        return amd
    return nvml if nvml.error else NoGpus("auto", f"{nvml.note}, {amd.note}")


def _has_driver() -> bool:
    """Whether NVIDIA's driver has its library here. Where it has not, `pynvml` would take 2.5 MiB for nothing."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _nvml() -> TimeoutBackend:
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise GridError(
            "the package nvidia-ml-py is missing", why=str(error), hint=pip.install("nvidia-ml-py")
        ) from None
    return TimeoutBackend(NvmlBackend(pynvml, _system_memory))


def _gputil() -> TimeoutBackend:
    try:
        gputil = importlib.import_module("GPUtil")
    except ImportError as error:
        raise GridError(
            "gpu_backend gputil needs the package GPUtil",
            why=str(error),
            hint=f"{pip.install(*pip.EXTRAS['gputil'])}, or set gpu_backend: nvml",
        ) from None
    return TimeoutBackend(GputilBackend(gputil))


def _system_memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.total - memory.available)
