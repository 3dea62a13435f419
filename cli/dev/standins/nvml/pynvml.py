"""A stand-in for nvidia-ml-py's `pynvml`: devices from a JSON file instead of a driver. It announces itself.

`grid dev up --fake-gpus N` puts this folder first on PYTHONPATH. The file named by GRID_STANDIN_GPUS is read anew at
each call, so that it can be changed while an agent runs:

    [{"uuid": "GPU-…", "name": "…", "memory": bytes, "used": bytes, "utilisation": percent, "temperature": degrees,
      "processes": [{"pid": 1, "memory": bytes, "graphics": true, "utilisation": percent}], "error": "GPU_IS_LOST"}]

All but `uuid` may be left out. With `mig`, a list of the same, MIG is on, and these are its instances. `error` is the
name of an NVML error, without NVML_ERROR_; figures that are null are not supported by that device. An object with only
`error` instead of the list is the driver's: nvmlInit fails with it.
"""

import json
import os
from types import SimpleNamespace
from typing import Any

STAND_IN = True
NAME = "Stand-in GPU (no real device)"

NVML_SUCCESS = 0
NVML_ERROR_NOT_FOUND = 6
NVML_TEMPERATURE_GPU = 0
NVML_DEVICE_MIG_ENABLE = 1

_ERRORS = {
    "UNINITIALIZED": (1, "Uninitialized"),
    "INVALID_ARGUMENT": (2, "Invalid Argument"),
    "NOT_SUPPORTED": (3, "Not Supported"),
    "NO_PERMISSION": (4, "Insufficient Permissions"),
    "NOT_FOUND": (6, "Not Found"),
    "DRIVER_NOT_LOADED": (9, "Driver Not Loaded"),
    "TIMEOUT": (10, "Timeout"),
    "LIBRARY_NOT_FOUND": (12, "NVML Shared Library Not Found"),
    "FUNCTION_NOT_FOUND": (13, "Function Not Found"),
    "GPU_IS_LOST": (15, "GPU is lost"),
    "RESET_REQUIRED": (16, "GPU requires restart"),
    "LIB_RM_VERSION_MISMATCH": (18, "RM has detected an NVML/RM version mismatch."),
    "UNKNOWN": (999, "Unknown Error"),
}


class NVMLError(Exception):
    """What every call may raise; one class below it for each kind of error, as in the real library."""

    value = 999
    words = "Unknown Error"

    def __str__(self) -> str:
        return self.words


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - the library's names
    value, words = _ERRORS["NOT_SUPPORTED"]


class NVMLError_NoPermission(NVMLError):
    value, words = _ERRORS["NO_PERMISSION"]


class NVMLError_LibraryNotFound(NVMLError):
    value, words = _ERRORS["LIBRARY_NOT_FOUND"]


class NVMLError_FunctionNotFound(NVMLError):
    value, words = _ERRORS["FUNCTION_NOT_FOUND"]


_CLASSES = {one.value: one for one in NVMLError.__subclasses__()}


def _error(name: str) -> NVMLError:
    value, words = _ERRORS.get(name, _ERRORS["UNKNOWN"])
    error = _CLASSES.get(value, NVMLError)()
    error.value, error.words = value, words
    return error


def _read() -> list[dict[str, Any]]:
    try:
        with open(os.environ["GRID_STANDIN_GPUS"], encoding="utf-8") as file:
            devices = json.load(file)
    except KeyError:
        raise _error("LIBRARY_NOT_FOUND") from None
    except (OSError, ValueError):
        raise _error("UNKNOWN") from None
    if isinstance(devices, dict):
        raise _error(devices.get("error", "UNKNOWN"))
    return list(devices)


def _everything() -> list[dict[str, Any]]:
    """All devices and their MIG instances."""
    return [one for device in _read() for one in (device, *device.get("mig", ()))]


def _device(handle: str) -> dict[str, Any]:
    for device in _everything():
        if device["uuid"] == handle:
            if device.get("error"):
                raise _error(device["error"])
            return device
    raise _error("GPU_IS_LOST")


def _figure(handle: str, name: str, default: float) -> Any:
    value = _device(handle).get(name, default)
    if value is None:
        raise _error("NOT_SUPPORTED")
    return value


def nvmlInit() -> None:  # noqa: N802 - the library's names
    _read()


def nvmlDeviceGetCount() -> int:
    return len(_read())


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    devices = _read()
    if not 0 <= index < len(devices):
        raise _error("INVALID_ARGUMENT")
    return str(devices[index]["uuid"])


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if all(device["uuid"] != uuid for device in _everything()):
        raise _error("NOT_FOUND")
    return uuid


def nvmlDeviceGetUUID(handle: str) -> str:
    return handle


def nvmlDeviceGetName(handle: str) -> str:
    name = str(_device(handle).get("name", ""))
    return name if name.startswith(NAME) else f"{NAME} {name}".strip()


def nvmlDeviceGetPciInfo(handle: str) -> SimpleNamespace:
    """A PCI address that no device has."""
    return SimpleNamespace(busId="")


def nvmlDeviceGetMemoryInfo(handle: str) -> SimpleNamespace:
    total, used = _figure(handle, "memory", 16 << 30), _figure(handle, "used", 0)
    return SimpleNamespace(total=total, used=used, free=total - used)


def nvmlDeviceGetUtilizationRates(handle: str) -> SimpleNamespace:
    return SimpleNamespace(gpu=_figure(handle, "utilisation", 0), memory=0)


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> int:
    return int(_figure(handle, "temperature", 30))


def nvmlDeviceGetComputeRunningProcesses(handle: str) -> list[SimpleNamespace]:
    return _processes(handle, graphics=False)


def nvmlDeviceGetGraphicsRunningProcesses(handle: str) -> list[SimpleNamespace]:
    return _processes(handle, graphics=True)


def _processes(handle: str, graphics: bool) -> list[SimpleNamespace]:
    found = [one for one in _device(handle).get("processes", []) if one.get("graphics", False) is graphics]
    return [SimpleNamespace(pid=one["pid"], usedGpuMemory=one.get("memory")) for one in found]


def nvmlDeviceGetProcessUtilization(handle: str, since: int) -> list[SimpleNamespace]:
    """What each process used, of those that used any."""
    used = {one["pid"]: one.get("utilisation", 0) for one in _device(handle).get("processes", [])}
    if None in used.values():
        raise _error("NOT_SUPPORTED")
    if not any(used.values()):
        raise _error("NOT_FOUND")
    return [SimpleNamespace(pid=pid, smUtil=of, memUtil=0, encUtil=0, decUtil=0) for pid, of in used.items() if of]


def nvmlDeviceGetMigMode(handle: str) -> list[int]:
    if "mig" not in _device(handle):
        raise _error("NOT_SUPPORTED")
    return [NVML_DEVICE_MIG_ENABLE] * 2


def nvmlDeviceGetMaxMigDeviceCount(handle: str) -> int:
    return 7 if "mig" in _device(handle) else 0


def nvmlDeviceGetMigDeviceHandleByIndex(device: str, index: int) -> str:
    instances = _device(device).get("mig", [])
    if index >= len(instances):
        raise _error("NOT_FOUND")
    return str(instances[index]["uuid"])
