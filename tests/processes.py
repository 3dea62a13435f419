"""Whose processes are, as a test that started them knows: by their environment, which a job could change."""

from pathlib import Path

_MARK = b"GRID_ALLOCATION_ID="


def allocation_of(pid: int) -> str:
    """The allocation that the process was started with; empty if it does not say."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((entry[len(_MARK) :].decode(errors="replace") for entry in entries if entry.startswith(_MARK)), "")
