"""What the tests of providers share: the user's programs (fake_cloud.py) as settings."""

import shlex
import sys
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.providers.base import WorkerSpec
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import NAME_CHARS

CLOUD = Path(__file__).with_name("fake_cloud.py")
LONGEST = f"{'x' * NAME_CHARS}-{0xFFFFFFF:x}-{0xFFFFFFF:x}"
"""The longest name of a machine."""
SPEC = WorkerSpec(name="a-1-1", pool="a", resources=Resources(2000, GIB), ends_by=2e9)


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    said = {what: shlex.join([sys.executable, str(CLOUD), str(folder), what]) for what in ("create", "list", "end")}
    return {**said, **more}
