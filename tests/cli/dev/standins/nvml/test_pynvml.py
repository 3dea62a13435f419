"""The stand-in for the NVML library has what the agent uses of it."""

import importlib.util

from tests.agent.gpus.conftest import STANDIN


def test_the_stand_in_has_what_is_used_of_the_real_library() -> None:
    """What gpus/nvidia.py calls exists in both, or one of them would fail where the other does not."""
    import re

    import pynvml

    source = (STANDIN.parents[4] / "agent/gpus/nvidia.py").read_text()
    used = set(re.findall(r"nvml\.((?:nvml|NVML)\w+)", source))
    assert len(used) > 10
    spec = importlib.util.spec_from_file_location("standin", STANDIN)
    assert spec is not None and spec.loader is not None
    standin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(standin)
    assert {name for name in used if not hasattr(pynvml, name)} == set()
    assert {name for name in used if not hasattr(standin, name)} == set()
