"""An audit log that is written and verified, for the tests of both."""

import json
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.audit.log import NOTHING, RequestLog
from distributed_grid.coordinator.audit.verify import Verified, files_of, read, verify


class Kept:
    """An anchor that a test can look at."""

    def __init__(self) -> None:
        self.at = (0, NOTHING)
        self.oldest = 0

    def read(self) -> tuple[int, str, int]:
        return *self.at, self.oldest

    def write(self, number: int, hashed: str, oldest: int) -> None:
        self.at, self.oldest = (number, hashed), oldest


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.log").read_bytes().splitlines()]


def written(folder: Path, count: int, anchor: Kept | None = None) -> None:
    audit = RequestLog(folder / "audit.log", anchor)
    for number in range(count):
        audit.request("ann", "cancel", jobs=[f"j-{number}"])
    audit.close()


def judged(folder: Path, anchor: Kept | None = None) -> Verified:
    return verify(read(files_of(folder / "audit.log")), anchor.read() if anchor is not None else (0, NOTHING, 0))
