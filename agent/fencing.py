"""Fencing: which coordinator this node obeys, saved on disk. A later agent then obeys neither an older coordinator nor
a second one with the same epoch. The rule itself is `Table.refuses` (core/table.py)."""

import contextlib
import os
from pathlib import Path

import msgspec

from distributed_grid.agent.core.table import Table
from distributed_grid.protocol.messages import Welcome
from distributed_grid.protocol.nodes import Stamp
from distributed_grid.runtime.faults import fault


class _Kept(msgspec.Struct, array_like=True):
    """The file's content."""

    grid: str
    epoch: int
    instance: str
    stamp: Stamp | None


class Fence:
    """The coordinator that `table` obeys, saved in the file `epoch` of the state directory. `stamp` proves that the
    coordinator has welcomed this node."""

    def __init__(self, state_dir: Path, table: Table) -> None:
        self._path = state_dir / "epoch"
        self._table = table
        self._kept: tuple[str, int, str] | None = None
        self.stamp: Stamp | None = None

    def load(self) -> None:
        """Load what an earlier agent saved."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
            self._table.welcome(kept.grid, kept.epoch, kept.instance)
            self._kept, self.stamp = self._table.epoch, kept.stamp

    def accept(self, welcome: Welcome) -> str:
        """Obey this coordinator from now on, and save that; returns why it is refused, if so."""
        why = self._table.refuses(welcome.grid, welcome.epoch, welcome.instance)
        if not why:
            self._table.welcome(welcome.grid, welcome.epoch, welcome.instance)
            self.stamp = welcome.stamp
            self.save()
        return why

    def save(self) -> str:
        """Save which coordinator is obeyed; if that fails, why nothing can be started for it yet."""
        if self._kept == self._table.epoch:
            return ""
        try:
            self._keep()
        except OSError as error:
            return f"the node cannot keep on disk which coordinator it obeys: {error.strerror}"
        self._kept = self._table.epoch
        return ""

    @fault("agent.epoch")
    def _keep(self) -> None:
        fresh = self._path.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(_Kept(*self._table.epoch, self.stamp)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
