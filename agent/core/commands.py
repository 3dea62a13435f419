"""Input and output of the table of allocations (table.py): its events, beside the messages of the coordinator, and the
commands that the agent performs for it."""

import msgspec

from distributed_grid.protocol.messages import Ack, Exited, Extend, Launch, Renice, Signal, Stale, Started, Stop
from distributed_grid.protocol.resources import Grant


class Ready(msgspec.Struct, frozen=True):
    """The allocation is prepared: measured again and unpacked."""

    allocation: str


Event = Launch | Stop | Signal | Extend | Renice | Ack | Ready | Stale | Started | Exited


# --- commands -----------------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    """Measure again and unpack what was shipped; then report Ready, Stale, or Exited (failed)."""

    launch: Launch


class Run(msgspec.Struct, frozen=True):
    """Hand an allocation to the launcher; its lease, if any, counts from `leased_from`. `chain`: it waits until all
    earlier members of this chain have ended; empty: it is the head of its own."""

    launch: Launch
    leased_from: float = 0.0
    chain: str = ""


class Kill(msgspec.Struct, frozen=True):
    """Have the launcher end an allocation, and cancel its preparation."""

    stop: Stop


class Withdraw(msgspec.Struct, frozen=True):
    """Have the launcher end an allocation, unless it has started there."""

    stop: Stop


class SendSignal(msgspec.Struct, frozen=True):
    """Have the launcher send a signal to an allocation."""

    allocation: str
    signal: int


class Forget(msgspec.Struct, frozen=True):
    """Have the launcher forget the outcomes of these allocations."""

    allocations: tuple[str, ...]


class Report(msgspec.Struct, frozen=True):
    """Send to the coordinator. `freed` is what it held until now."""

    message: Started | Stale | Exited
    freed: Grant | None = None


class SetLimit(msgspec.Struct, frozen=True):
    """Have the launcher set the time limit of an allocation, in seconds from its start."""

    allocation: str
    limit: float


class SetNiceness(msgspec.Struct, frozen=True):
    """Have the launcher give an allocation the weight of jobs: it was started with a normal one."""

    allocation: str


Command = Prepare | Run | Kill | Withdraw | SendSignal | SetLimit | SetNiceness | Forget | Report
