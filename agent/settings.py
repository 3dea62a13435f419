"""The settings in effect on this node. The settings of the grid are kept on disk, so an agent that starts before its
coordinator uses the last ones that it received."""

from pathlib import Path

import msgspec

from distributed_grid.agent.core.spare.settings import combine, limits_of
from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.protocol.nodes import Layer, Lending
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import write_whole

FILE = "settings.json"
MOST = 1 << 16

log = get_logger("agent")


class NodeSettings:
    """The grid's settings combined with the node's `own`. `base` are the limits that only the node itself sets."""

    def __init__(self, state_dir: Path, own: Layer, defaults: Lending, base: Limits) -> None:
        self._path = state_dir / FILE
        self._own, self._defaults, self._base = own, defaults, base
        self._grid = Layer()
        self._combine()

    def _combine(self) -> None:
        self.effective = combine(self._grid, self._own, self._defaults)
        self.limits = limits_of(self.effective, self._base)

    @property
    def priority(self) -> float:
        """The weight of this node when it is chosen."""
        priority = self.effective.values.priority
        return 1.0 if priority is None else priority

    @property
    def interval(self) -> float:
        """Seconds between two samples."""
        return self.effective.values.monitoring_interval_seconds or 2.0

    def load(self) -> None:
        """Load the grid's last settings. A file that cannot be read counts as missing."""
        try:
            with open(self._path, "rb") as file:
                self._grid = msgspec.json.decode(file.read(MOST), type=Layer)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the settings that the grid sent last cannot be read", file=str(self._path), why=str(error))
            return
        self._combine()

    def take(self, grid: Layer) -> bool:
        """Follow these settings of the grid from now on; returns whether the settings in effect change."""
        if grid == self._grid:
            return False
        self._grid, before = grid, self.effective
        self._combine()
        try:
            write_whole(self._path, msgspec.json.encode(grid).decode() + "\n")
        except OSError as error:
            log.warning("the grid's settings cannot be kept on disk", file=str(self._path), why=str(error))
        return self.effective != before
