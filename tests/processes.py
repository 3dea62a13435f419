"""Whose processes are, as a test that started them knows: by their environment, which a job could change."""

from distributed_grid.runtime.unix import read

_MARK = b"\0GRID_ALLOCATION_ID="


def allocation_of(pid: int) -> str:
    """The allocation that the process was started with; empty if it does not say. Tests ask for all processes of the
    machine again and again."""
    *_, rest = (b"\0" + read(f"/proc/{pid}/environ")).partition(_MARK)
    return rest.partition(b"\0")[0].decode(errors="replace")
