"""What in a state directory, beside the store and its mark, shows that a coordinator has been at work there."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from distributed_grid.coordinator.access.pki import PKI, Pki
from distributed_grid.coordinator.core.rollback import Traces
from distributed_grid.coordinator.eventlog.format import BadLog, Header, files, read

NAMED = {
    "audit.log": "the audit log",
    "reserve": "the reserve",
    "coordinator.json": "what the last coordinator wrote of itself",
}
TAIL_BYTES = 256 << 10
"""So much of the audit log's end is read."""
LOOKED_AT = 8
"""Files of the event log that are tried for a readable head, the newest first."""


class _Line(msgspec.Struct):
    event: str
    at: str
    result: str = ""
    ids: list[str] = []


_line = msgspec.json.Decoder(_Line).decode


def look(state_dir: Path) -> Traces:
    """All of it. What cannot be read is taken for not there: the store has to be looked at in any case."""
    found: list[str] = []
    grid, epoch, count = _events(state_dir / "events")
    if count:
        found.append(f"the event log ({count} files" + (f", epoch {epoch})" if epoch else ")"))
    found += [words for name, words in NAMED.items() if _has_content(state_dir / name)]
    if Pki.exists(state_dir / PKI):
        found.append("the grid's authority")
        grid = grid or _grid_of(state_dir / PKI)
    return Traces(tuple(found), grid, epoch, tuple(_accepted(state_dir / "audit.log")))


def _has_content(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size > 0
    return False


def _accepted(path: Path) -> Iterator[tuple[str, float]]:
    """The jobs of the last submissions that were answered."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for line in file.read(TAIL_BYTES).split(b"\n"):
            with suppress(ValueError):  # the first may be cut, and what is no line of ours is none
                said = _line(line)
                if (said.event, said.result) == ("submit", "accepted"):
                    at = datetime.fromisoformat(said.at).timestamp()
                    yield from ((name, at) for name in said.ids)


def _events(folder: Path) -> tuple[str, int, int]:
    """The grid and epoch of the newest file that can be read, and how many there are."""
    try:
        there = files(folder)
    except OSError:
        return "", 0, 0
    for path in reversed(there[-LOOKED_AT:]):
        with suppress(BadLog, OSError):
            head = next(read(path), None)
            if isinstance(head, Header):
                return head.grid, head.epoch, len(there)
    return "", 0, len(there)


def _grid_of(pki: Path) -> str:
    """The grid that the coordinator's own certificate names; empty where it cannot be read."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from distributed_grid.coordinator.access.ca import identity_of
    from distributed_grid.identity.keys import certificate_in
    from distributed_grid.protocol.errors import GridError

    with suppress(GridError, OSError, ValueError):
        return identity_of(certificate_in(pki).public_bytes(Encoding.DER)).grid
    return ""
