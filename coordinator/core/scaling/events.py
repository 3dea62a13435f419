"""Events about machines that the grid creates by itself, and the commands of the ledger about them."""

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed, Paused
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import Scaling


class ScalingConfigured(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The configuration was read again; this is its part about scaling."""

    scaling: Scaling


class ScalingRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` gives an order about scaling; `pool` empty: for all pools. `machine_type`: of a machine to
    create; `machine`: one to end."""

    token: int
    order: ScaleOrder
    pool: str = ""
    by: str = ""
    why: str = ""
    machine_type: str = ""
    machine: str = ""


class MachineAnswered(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A provider has answered the call of this kind and number for a machine, or there was no answer (LOST). `handle`:
    what the provider calls the machine; `text`: what it says."""

    machine: str
    call: CallKind
    number: int
    answer: Answer
    handle: str = ""
    text: str = ""


class MachinesListed(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A provider has listed all machines of this grid, for the list of this number; None: it failed, because of this
    `trouble`. `credentials`: because it refuses our credentials."""

    provider: str
    number: int
    listed: tuple[Listed, ...] | None
    trouble: str = ""
    credentials: bool = False


class MachineMismatched(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An agent that claims to be this machine was refused: its identity does not match the record."""

    machine: str
    why: str


# --- what the shell has to do -----------------------------------------------------------------------------------------


class RecordMachine(msgspec.Struct, frozen=True, gc=False):
    """Save this machine; None: delete its record."""

    name: str
    machine: Machine | None


class RecordPauses(msgspec.Struct, frozen=True, gc=False):
    """Save which pools are paused."""

    paused: dict[str, Paused]


class CreateMachine(msgspec.Struct, frozen=True, gc=False):
    """Ask the provider of this machine to create it. Its name is the token that keeps a repeated call from creating
    another one."""

    machine: Machine


class EndMachine(msgspec.Struct, frozen=True, gc=False):
    """Ask a provider to end a machine. `number`: of this call; 0: the answer is not awaited."""

    provider: str
    name: str
    handle: str
    number: int = 0


class ListMachines(msgspec.Struct, frozen=True, gc=False):
    """Ask a provider for all machines of this grid."""

    provider: str
    number: int


class MachineOver(msgspec.Struct, frozen=True, gc=False):
    """End the membership of a machine: revoke its certificates, cut its connections."""

    name: str
