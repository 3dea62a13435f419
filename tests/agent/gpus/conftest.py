"""The stand-in NVML library, as what `import pynvml` finds."""

import ctypes
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STANDIN = Path(__file__).parents[3] / "cli/dev/standins/nvml/pynvml.py"


Devices = Callable[[object], None]


LIBRARY = "libnvidia-ml.so.1"
"""The driver's."""


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    """Writes the stand-in's devices; the stand-in is what `import pynvml` finds, and the driver has its library."""
    spec = importlib.util.spec_from_file_location("pynvml", STANDIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object() if name == LIBRARY else load(name))
    file = tmp_path / "gpus.json"
    monkeypatch.setenv("GRID_STANDIN_GPUS", str(file))
    yield lambda content: (file.write_text(json.dumps(content)), None)[1]
