"""One allocation in the agent's table: its stage, the moves between stages, and the data of its launch."""

from dataclasses import dataclass

import msgspec

from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.nodes import Stamp
from distributed_grid.protocol.resources import Grant


class Preparing(msgspec.Struct, frozen=True):
    """Accepted. Its preparation runs (`begun`) or waits for its turn in the chain; or it is `ready`, and waits for an
    earlier member of its chain that is not."""

    launch: Launch
    ready: bool = False
    begun: bool = True


class Starting(msgspec.Struct, frozen=True):
    """The allocation was handed to the launcher."""


class Running(msgspec.Struct, frozen=True):
    """The command runs since `began`; `pid` (0: unknown) is its first process."""

    began: float
    pid: int = 0
    walls: str = ""


class Stopping(msgspec.Struct, frozen=True):
    """The allocation was told to end; `began` is 0 if it is not known to have run."""

    began: float = 0.0
    pid: int = 0
    walls: str = ""


class Ended(msgspec.Struct, frozen=True):
    """The allocation has ended, and the coordinator has not acknowledged that. `walls`: those it ran behind, if its
    start was not reported."""

    outcome: Outcome
    walls: str = ""


Stage = Preparing | Starting | Running | Stopping | Ended


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a launch that is needed as long as its allocation is known. The supervisor's journal keeps it for the
    next agent."""

    user: str = ""
    grant: Grant = Grant()
    stamp: Stamp | None = None
    lease: float = 0.0
    grace: float = 0.0
    raylet: bool = False
    stdin: bool = False
    workdir: str = ""
    chain: str = ""
    """The chain it is in, which the supervisor reads, too; empty: the one that it began."""


def keep(launch: Launch, chain: str = "") -> Kept:
    """Return the part of this launch that is kept, for an allocation in this chain (empty: a chain of its own)."""
    spec = launch.spec
    raylet = spec.boost is not None
    asked = launch.stamp, launch.lease, spec.grace, raylet, bool(spec.stdin), spec.workdir
    return Kept(launch.user, launch.grant, *asked, chain)


# None: not in the table. An earlier agent's are found running, stopping or ended; a stop before the launch leads to
# Stopping at once, and a withdrawal to Starting, as the supervisor may have started it for an earlier agent; what was
# declined or lost is removed without an end.
ENTRY_MOVES: dict[type[Stage] | None, frozenset[type[Stage] | None]] = {
    None: frozenset({Preparing, Starting, Running, Stopping, Ended}),
    Preparing: frozenset({Starting, Running, Stopping, Ended, None}),
    Starting: frozenset({Running, Stopping, Ended, None}),
    Running: frozenset({Stopping, Ended, None}),
    Stopping: frozenset({Ended, None}),
    Ended: frozenset({None}),
}


class IllegalMove(Exception):
    """A transition that ENTRY_MOVES does not have."""


@dataclass(slots=True)
class Entry:
    """One allocation: its stage, and the data of all stages. A lease counts from `leased_from`, which each renewal
    sets."""

    stage: Stage
    kept: Kept = Kept()
    leased_from: float = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing of it is alive."""
        return isinstance(self.stage, Ended)
