"""Which GPU backend is used, and which GPUs of it."""

import pytest

from distributed_grid.agent.gpus.backends import NAMES, open_backend
from distributed_grid.protocol.errors import BadValue
from tests.agent.gpus.conftest import Devices


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
