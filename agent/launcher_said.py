"""What the supervisor says after its hello, as the agent takes it."""

import os
from pathlib import Path

import msgspec

from distributed_grid.agent import workdir
from distributed_grid.agent.walls import beneath
from distributed_grid.protocol.jobs import TAIL_BYTES, Outcome
from distributed_grid.protocol.messages import Suspended


class Said(msgspec.Struct):
    """An allocation was started, or has exited with this outcome, or (`op` is `frozen`) is frozen for that `why`; where
    that is empty it goes on. `proven`: nothing lives of what was lost with the loss `id`."""

    id: str
    op: str = ""
    pid: int = 0
    outcome: Outcome | None = None
    why: str = ""
    lasted: float = 0.0
    in_all: float = 0.0
    slot: str = ""
    walls: str = ""


SAID = msgspec.json.Decoder(Said)


def suspended(said: Said) -> Suspended:
    """The same for the coordinator."""
    return Suspended(allocation=said.id, why=said.why, lasted=said.lasted, in_all=said.in_all)


def tail(state_dir: Path, allocation: str, stream: str) -> tuple[int, bytes]:
    """Size and last bytes of an output; nothing if there is none."""
    folder = workdir.place(state_dir, allocation)
    try:
        if not os.lstat(f"{folder}/{stream}").st_size:
            return 0, b""
        with workdir.opened(folder) as above:
            fd = beneath.open_regular(above, stream)
    except OSError:
        return 0, b""
    try:
        size = os.fstat(fd).st_size
        return size, os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
    finally:
        os.close(fd)
