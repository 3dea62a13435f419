"""GPUs of NVIDIA: NVML through the stand-in library, GPUtil through a made-up module."""

import math
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import GpuFacts, GpuSample
from distributed_grid.protocol.resources import GIB, MIB
from tests.agent.gpus.conftest import Devices


def test_gpus_are_found_with_their_facts_and_announced_as_stand_ins(devices: Devices) -> None:
    devices([{"uuid": "GPU-a", "name": "small", "memory": GIB}, {"uuid": "GPU-b"}])
    facts = open_backend("nvml").facts()
    assert facts[0] == GpuFacts("GPU-a", 0, "Stand-in GPU (no real device) small", GIB, stand_in=True)
    assert facts[1].uuid == "GPU-b"


def test_a_sample_has_all_figures_and_tells_our_processes_from_others(devices: Devices) -> None:
    me = os.getpid()
    listed = [{"pid": me, "memory": MIB}, {"pid": 1, "memory": 2 * MIB}]
    devices(
        [{"uuid": "GPU-a", "memory": GIB, "used": 5 * MIB, "utilisation": 7, "temperature": 55, "processes": listed}]
    )
    sample = open_backend("auto").sample({me})[0]
    assert (sample.utilisation, sample.memory_used, sample.memory_total, sample.temperature) == (7, 5 * MIB, GIB, 55)
    assert not sample.untold
    assert [(one.pid, one.own, one.memory) for one in sample.processes] == [(1, False, 2 * MIB), (me, True, MIB)]
    assert sample.processes[0].user == "root"


def drawing(devices: Devices, *processes: dict[str, Any]) -> list[tuple[int, bool, float]]:
    devices([{"uuid": "GPU-a", "processes": list(processes)}])
    sample = open_backend("nvml").sample({os.getpid()})[0]
    assert sample.error == ""
    return [(one.pid, one.graphics, one.utilisation) for one in sample.processes]


def test_of_others_that_only_draw_it_is_known_what_they_use_of_the_gpu(devices: Devices) -> None:
    server, idle = {"pid": 2, "graphics": True, "utilisation": 3}, {"pid": 3, "graphics": True}
    assert drawing(devices, {"pid": 1, "utilisation": 50}, server, idle) == [(1, False, -1), (2, True, 3), (3, True, 0)]
    assert drawing(devices, idle) == [(3, True, 0)], "the driver's error is that nobody used any"


def test_a_driver_that_tells_no_use_by_process_leaves_it_unknown(devices: Devices) -> None:
    assert drawing(devices, {"pid": 2, "graphics": True, "utilisation": None}) == [(2, True, -1)]
    assert drawing(devices, {"pid": os.getpid(), "graphics": True, "utilisation": 9}) == [(os.getpid(), True, -1)]


def test_a_gpu_that_fails_has_its_error_and_recovers(devices: Devices) -> None:
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b"}])
    backend = open_backend("nvml")
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b", "error": "RESET_REQUIRED"}])
    assert [one.error for one in backend.sample(set())] == ["", "GPU requires restart"]
    devices([{"uuid": "GPU-a"}])
    assert [one.error for one in backend.sample(set())] == ["", "Not Found"], "it fell off the bus"
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b"}])
    assert [one.error for one in backend.sample(set())] == ["", ""]


def test_the_instances_of_a_partitioned_gpu_are_lent_in_its_place(devices: Devices) -> None:
    instances = [{"uuid": "MIG-a", "memory": GIB, "utilisation": None}, {"uuid": "MIG-b", "memory": 2 * GIB}]
    devices([{"uuid": "GPU-a", "memory": 4 * GIB, "mig": instances}, {"uuid": "GPU-b"}])
    backend = open_backend("nvml")
    assert [(gpu.uuid, gpu.index) for gpu in backend.facts()] == [("MIG-a", 0), ("MIG-b", 0), ("GPU-b", 1)]
    assert [(one.error, one.memory_total) for one in backend.sample(set())[:2]] == [("", GIB), ("", 2 * GIB)]
    assert [gpu.uuid for gpu in open_backend("nvml", ["0"]).facts()] == ["MIG-a", "MIG-b"]
    assert [gpu.uuid for gpu in open_backend("nvml", ["MIG-b", "1"]).facts()] == ["MIG-b", "GPU-b"]
    devices([{"uuid": "GPU-a", "memory": 4 * GIB, "mig": [{"uuid": "MIG-c"}]}, {"uuid": "GPU-b"}])
    assert [bool(one.error) for one in backend.sample(set())] == [True, True, False], "others are there now"


def test_a_gpu_with_mig_and_no_instances_is_not_lent(devices: Devices) -> None:
    devices([{"uuid": "GPU-a", "mig": []}, {"uuid": "GPU-b"}])
    backend = open_backend("nvml")
    assert [gpu.uuid for gpu in backend.facts()] == ["GPU-b"]
    assert backend.error == "GPU 0: MIG is on, and it has no instances"


def test_a_gpu_that_is_partitioned_later_is_not_lent_as_a_whole(devices: Devices) -> None:
    devices([{"uuid": "GPU-a"}])
    backend = open_backend("nvml")
    assert backend.sample(set())[0].error == ""
    devices([{"uuid": "GPU-a", "mig": [{"uuid": "MIG-a"}]}])
    assert backend.sample(set())[0].error == "MIG was switched on; restart the agent, which will lend the instances"


def test_figures_that_a_gpu_does_not_support_are_left_out_and_memory_is_the_machines(devices: Devices) -> None:
    devices([{"uuid": "MIG-a", "utilisation": None, "temperature": None, "memory": None}])
    backend = open_backend("nvml")
    sample = backend.sample(set())[0]
    assert (sample.error, sample.utilisation, sample.untold, sample.temperature) == ("", 0, True, 0)
    assert sample.memory_total == backend.facts()[0].memory > GIB


def test_without_a_driver_there_are_no_gpus_and_that_is_in_order(
    devices: Devices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GRID_STANDIN_GPUS")
    backend = open_backend("nvml")
    assert (backend.facts(), backend.error, backend.note) == ((), "", "no NVIDIA driver")
    assert open_backend("auto", root=tmp_path).note == "no NVIDIA driver, no AMD GPU"


def test_a_driver_that_fails_is_an_error_and_not_a_machine_without_gpus(devices: Devices, tmp_path: Path) -> None:
    devices({"error": "LIB_RM_VERSION_MISMATCH"})
    for name in ("nvml", "auto"):
        backend = open_backend(name, root=tmp_path)
        assert backend.facts() == ()
        assert "NVML/RM version mismatch" in backend.error


def test_the_real_library_without_a_driver_says_so() -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has an NVIDIA driver")
    assert open_backend("nvml").note == "no NVIDIA driver"


def test_gputil_is_read_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        uuid="GPU-g", id=0, name="T4", load=0.25, memoryTotal=15360.0, memoryUsed=10.0, temperature=40
    )
    seen = [gpu]
    module = ModuleType("GPUtil")
    module.getGPUs = lambda: seen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "GPUtil", module)
    backend = open_backend("gputil")
    assert backend.facts() == (GpuFacts("GPU-g", 0, "T4", 15360 * MIB),)
    assert backend.sample(set())[0] == GpuSample("GPU-g", 25, 10 * MIB, 15360 * MIB, 40)
    seen.clear()
    assert backend.sample(set())[0].error == "not listed by nvidia-smi any more"


def test_a_gpu_whose_memory_gputil_does_not_know_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("GPUtil")
    module.getGPUs = lambda: [  # type: ignore[attr-defined]
        SimpleNamespace(
            uuid=f"GPU-{number}", id=number, name="m", memoryTotal=total, memoryUsed=0.0, load=0.0, temperature=40.0
        )
        for number, total in enumerate((8192.0, math.nan))
    ]
    monkeypatch.setitem(sys.modules, "GPUtil", module)
    backend = open_backend("gputil")
    assert [gpu.uuid for gpu in backend.facts()] == ["GPU-0"]
    assert [gpu.uuid for gpu in backend.sample(set())] == ["GPU-0"]
    assert backend.error == "GPU 1: nvidia-smi does not tell its memory"


def test_gputil_that_is_not_installed_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "GPUtil", None)
    with pytest.raises(GridError, match="needs the package GPUtil"):
        open_backend("gputil")
