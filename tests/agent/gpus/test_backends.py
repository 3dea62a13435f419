"""GPU backends: NVML through the stand-in library, AMD through a made-up sysfs, GPUtil through a made-up module."""

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distributed_grid.agent.gpus.backends import NAMES, open_backend
from distributed_grid.agent.gpus.base import Patient, Processes
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.nodes import GpuFacts, GpuSample
from distributed_grid.protocol.resources import GIB, MIB

STANDIN = Path(__file__).parents[3] / "standins/nvml/pynvml.py"
Devices = Callable[[object], None]


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    """Writes the stand-in's devices; the stand-in is what `import pynvml` finds."""
    spec = importlib.util.spec_from_file_location("pynvml", STANDIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    file = tmp_path / "gpus.json"
    monkeypatch.setenv("GRID_STANDIN_GPUS", str(file))
    yield lambda content: (file.write_text(json.dumps(content)), None)[1]


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
    assert [(one.pid, one.own, one.memory) for one in sample.processes] == [(1, False, 2 * MIB), (me, True, MIB)]
    assert sample.processes[0].user == "root"


def test_a_gpu_that_fails_has_its_error_and_recovers(devices: Devices) -> None:
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b"}])
    backend = open_backend("nvml")
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b", "error": "RESET_REQUIRED"}])
    assert [one.error for one in backend.sample(set())] == ["", "GPU requires restart"]
    devices([{"uuid": "GPU-a"}])
    assert [one.error for one in backend.sample(set())] == ["", "Not Found"], "it fell off the bus"
    devices([{"uuid": "GPU-a"}, {"uuid": "GPU-b"}])
    assert [one.error for one in backend.sample(set())] == ["", ""]


def test_figures_that_a_gpu_does_not_support_are_left_out_and_memory_is_the_machines(devices: Devices) -> None:
    devices([{"uuid": "MIG-a", "utilisation": None, "temperature": None, "memory": None}])
    backend = open_backend("nvml")
    sample = backend.sample(set())[0]
    assert (sample.error, sample.utilisation, sample.temperature) == ("", 0, 0)
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


def test_the_stand_in_has_what_is_used_of_the_real_library() -> None:
    """What gpus/nvml.py calls exists in both, or one of them would fail where the other does not."""
    import re

    import pynvml

    source = (STANDIN.parents[2] / "agent/gpus/nvidia.py").read_text()
    used = set(re.findall(r"nvml\.((?:nvml|NVML)\w+)", source))
    assert len(used) > 10
    spec = importlib.util.spec_from_file_location("standin", STANDIN)
    assert spec is not None and spec.loader is not None
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    assert {name for name in used if not hasattr(pynvml, name)} == set()
    assert {name for name in used if not hasattr(standin, name)} == set()


def test_an_agent_can_be_told_which_gpus_it_manages(devices: Devices) -> None:
    devices([{"uuid": "GPU-aaaaaaaa-1"}, {"uuid": "GPU-bbbbbbbb-2"}, {"uuid": "GPU-cccccccc-3"}])
    backend = open_backend("nvml", ["2", "GPU-aaaaaaaa"])
    assert [gpu.uuid for gpu in backend.facts()] == ["GPU-aaaaaaaa-1", "GPU-cccccccc-3"]
    assert [gpu.uuid for gpu in backend.sample(set())] == ["GPU-aaaaaaaa-1", "GPU-cccccccc-3"]
    with pytest.raises(BadValue, match="no GPU 7 on this machine"):
        open_backend("nvml", ["7"])


def test_an_unknown_backend_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BadValue) as caught:
        open_backend("nvlm")
    assert "did you mean nvml?" in caught.value.hint
    assert all(name in caught.value.hint for name in NAMES)


def amd_card(root: Path, card: str, **files: Any) -> Path:
    device = root / "sys/class/drm" / card / "device"
    (device / "hwmon/hwmon3").mkdir(parents=True)
    for name, content in ({"vendor": "0x1002"} | files).items():
        (device / name).write_text(f"{content}\n")
    return device


def test_amd_gpus_are_read_from_sysfs(tmp_path: Path) -> None:
    figures = {"mem_info_vram_total": 16 * GIB, "mem_info_vram_used": GIB, "gpu_busy_percent": 37}
    device = amd_card(tmp_path, "card10", unique_id="0x5A", product_name="Radeon", **figures)
    amd_card(tmp_path, "card2", unique_id="b7", device="0x740f", **figures)
    amd_card(tmp_path, "card0", vendor="0x8086")
    (device / "hwmon/hwmon3/temp1_input").write_text("61000\n")
    backend = open_backend("amd", root=tmp_path)
    assert [(gpu.uuid, gpu.model) for gpu in backend.facts()] == [("GPU-b7", "AMD GPU 0x740f"), ("GPU-5a", "Radeon")]
    assert backend.sample(set())[1] == GpuSample("GPU-5a", 37, GIB, 16 * GIB, 61)
    (device / "gpu_busy_percent").unlink()
    assert "gpu_busy_percent" in backend.sample(set())[1].error


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


def test_gputil_that_is_not_installed_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "GPUtil", None)
    with pytest.raises(GridError, match="needs the package GPUtil"):
        open_backend("gputil")


class Sick:
    """A backend whose driver hangs, or throws, when told to."""

    name, error, note = "sick", "", ""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.fail = False
        self.asked = 0

    def facts(self) -> tuple[GpuFacts, ...]:
        return (GpuFacts("GPU-s", 0, "m", GIB),)

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        self.asked += 1
        self.go.wait(100)
        if self.fail:
            raise RuntimeError("boom")
        return (GpuSample("GPU-s", memory_total=GIB),)


def test_a_driver_that_hangs_makes_its_gpus_unreadable_and_holds_up_nobody() -> None:
    sick = Sick()
    backend = Patient(sick, patience=0.5)
    began = time.monotonic()
    while backend.sample(set())[0].error:  # half a second is little on a busy machine
        assert time.monotonic() - began < 60
    sick.go.clear()
    asked, began = sick.asked, time.monotonic()
    for _ in range(5):
        assert backend.sample(set())[0].error.startswith("the driver has not answered for")
    assert time.monotonic() - began < 30
    assert sick.asked == asked + 1, "only one call hangs"
    assert backend.error.startswith("the driver has not answered for")
    sick.go.set()
    while backend.sample(set())[0].error:
        assert time.monotonic() - began < 90
    assert backend.error == ""


def test_a_library_that_throws_makes_its_gpus_unreadable() -> None:
    sick = Sick()
    backend = Patient(sick)
    sick.fail = True
    assert backend.sample(set())[0].error == "reading the GPUs failed: RuntimeError: boom"


def test_a_process_of_ours_that_just_ended_is_ours_while_the_driver_still_lists_it() -> None:
    gone = 4_000_000  # above any pid here
    told = Processes()
    assert told.tell("GPU-a", [(gone, 5)], {gone})[0].own
    assert told.tell("GPU-a", [(gone, 5)], set())[0].own
    assert told.tell("GPU-a", [], set()) == ()
    assert not told.tell("GPU-a", [(gone, 5)], set())[0].own, "a pid that came back is somebody else's"
