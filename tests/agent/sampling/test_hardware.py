"""What the hardware detector says of this machine, by the keys of the resource management document."""

import subprocess

import psutil
import pytest

from distributed_grid.agent.sampling.hardware import HardwareDetector
from distributed_grid.agent.sampling.host import usable_cores
from distributed_grid.core import BadValue
from distributed_grid.protocol.resources import MIB
from tests.agent.gpus.conftest import Devices
from tests.agent.gpus.conftest import devices as devices
from tests.agent.sampling.processes import BURN, start, wait_for
from tests.agent.sampling.processes import processes as processes


def test_it_tells_the_machine_as_the_document_writes_it() -> None:
    hardware_detector = HardwareDetector()
    capabilities = hardware_detector.get_capabilities()
    cpu, memory = capabilities["cpu"], capabilities["memory"]
    assert list(cpu) == ["cores", "physical_cores", "available_cores"]
    assert cpu["cores"] == len(usable_cores()) >= cpu["physical_cores"] >= 1
    assert 0 <= cpu["available_cores"] <= cpu["cores"]
    assert 0 < memory["available_mb"] < memory["total_mb"] <= psutil.virtual_memory().total // MIB


def test_cores_that_others_keep_busy_are_not_available(processes: list[subprocess.Popen[bytes]]) -> None:
    cores = len(usable_cores())
    detector = HardwareDetector("none")
    processes += [start(BURN) for _ in range(2 * cores)]
    wait_for(lambda: detector.get_capabilities()["cpu"]["available_cores"] < cores / 2)


def test_gpus_that_are_used_or_cannot_be_read_are_not_available(devices: Devices) -> None:
    size = 16 << 30
    devices(
        [
            {"uuid": "GPU-aaaaaaaa-1", "memory": size, "used": 0},
            {"uuid": "GPU-bbbbbbbb-2", "memory": size, "used": size // 4, "processes": [{"pid": 1, "memory": 1 << 30}]},
        ]
    )
    detector = HardwareDetector("nvml")
    assert detector.get_capabilities()["gpu"] == {
        "devices": 2,
        "available_devices": 1,
        "total_memory_mb": 2 * 16384,
        "available_memory_mb": 16384 + 12288,
    }
    devices([{"uuid": "GPU-aaaaaaaa-1", "memory": size, "used": 0}])
    gpu = detector.get_capabilities()["gpu"]
    assert (gpu["devices"], gpu["available_devices"], gpu["total_memory_mb"]) == (2, 1, 16384), "one fell off the bus"


def test_a_machine_without_gpus_has_none() -> None:
    gpu = HardwareDetector("none").get_capabilities()["gpu"]
    assert gpu == {"devices": 0, "available_devices": 0, "total_memory_mb": 0, "available_memory_mb": 0}
    with pytest.raises(BadValue, match="unknown gpu backend"):
        HardwareDetector("cuda")
