"""Which GPU backend is used, and which GPUs of it."""

import ctypes
import sys
from pathlib import Path

import pytest

from distributed_grid.agent.gpus.backends import NAMES, open_backend
from distributed_grid.protocol.errors import BadValue
from tests.agent.gpus.conftest import LIBRARY, Devices


def test_an_agent_can_be_told_which_gpus_it_manages(devices: Devices) -> None:
    devices([{"uuid": "GPU-aaaaaaaa-1"}, {"uuid": "GPU-bbbbbbbb-2"}, {"uuid": "GPU-cccccccc-3"}])
    backend = open_backend("nvml", ["2", "GPU-aaaaaaaa"])
    assert [gpu.uuid for gpu in backend.facts()] == ["GPU-aaaaaaaa-1", "GPU-cccccccc-3"]
    assert [gpu.uuid for gpu in backend.sample(set())] == ["GPU-aaaaaaaa-1", "GPU-cccccccc-3"]
    with pytest.raises(BadValue, match="no GPU 7 on this machine"):
        open_backend("nvml", ["7"])


def test_without_a_driver_nothing_of_its_package_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def no_library(name: str) -> None:
        asked.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    backend = open_backend("auto", root=tmp_path)
    assert backend.facts() == () and "no NVIDIA driver" in backend.note and not backend.error
    assert "pynvml" not in sys.modules and asked == [LIBRARY]


def test_an_unknown_backend_is_refused_with_a_suggestion() -> None:
    with pytest.raises(BadValue) as caught:
        open_backend("nvlm")
    assert "did you mean nvml?" in caught.value.hint
    assert all(name in caught.value.hint for name in NAMES)
