"""GPUs of AMD, through a made-up sysfs."""

from pathlib import Path
from typing import Any

from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.protocol.nodes import GpuSample
from distributed_grid.protocol.resources import GIB


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
    assert backend.environment(["GPU-5a", "GPU-b7"]) == {
        "ROCR_VISIBLE_DEVICES": "GPU-5a,GPU-b7",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert {*backend.environment([]).values()} == {""}, "which hides all of them"
    (device / "gpu_busy_percent").unlink()
    assert "gpu_busy_percent" in backend.sample(set())[1].error


def test_a_gpu_without_a_uuid_is_shown_by_its_number(tmp_path: Path) -> None:
    amd_card(tmp_path, "card0", unique_id="b7", mem_info_vram_total=GIB)
    amd_card(tmp_path, "card1", mem_info_vram_total=GIB)
    backend = open_backend("amd", root=tmp_path)
    named = [gpu.uuid for gpu in backend.facts()]
    assert named == ["GPU-b7", "PCI-device"]
    assert backend.environment(named[1:])["ROCR_VISIBLE_DEVICES"] == "1"
