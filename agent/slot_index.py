"""In which slot each allocation ran, kept over restarts: below it lies the allocation's working directory."""

import contextlib
import os
from pathlib import Path

_SPARE = 1000


class SlotIndex:
    """The file `slots` in the state directory, a line an allocation. What a power cut takes of it was not yet old
    enough for anybody to ask for its files: without its line those are not found, and are removed with their slot."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "slots"
        self._slots: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                allocation, _, slot = line.partition(" ")
                self._slots[allocation] = slot
        self._lines = len(self._slots)

    def note(self, allocation: str, slot: str) -> None:
        """It runs there. A disk that refuses this costs the files of a job whose node is restarted, nothing else."""
        if self._slots.get(allocation) == slot:
            return
        self._slots[allocation] = slot
        with contextlib.suppress(OSError), open(self._path, "a", opener=_private) as file:
            file.write(f"{allocation} {slot}\n")
            self._lines += 1

    def slot(self, allocation: str) -> str:
        """The name of its slot; empty if it is not known."""
        return self._slots.get(allocation, "")

    def in_use(self) -> set[str]:
        """The slots of all allocations that are known."""
        return {*self._slots.values()}

    def forget(self, allocation: str) -> None:
        """Nothing of it is left. The file is written anew when most of its lines are about such ones."""
        if self._slots.pop(allocation, "") and self._lines > 2 * len(self._slots) + _SPARE:
            fresh = self._path.with_suffix(".new")
            with contextlib.suppress(OSError):
                with open(fresh, "w", opener=_private) as file:
                    file.writelines(f"{one} {slot}\n" for one, slot in self._slots.items())
                os.replace(fresh, self._path)
                self._lines = len(self._slots)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
