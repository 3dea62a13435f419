"""What happens to machines that the grid creates by itself, and what the shell has to do about them."""

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed, Paused
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import Scaling


class ScalingConfigured(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The configuration was read again, and says this of scaling."""

    scaling: Scaling


class ScalingRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name orders something of scaling; `pool` empty: of all pools. `machine_type`: of one to
    create; `machine`: to end."""

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
    """A provider has told all machines of this grid, for the list of this number; None: it has not, because of this
    `trouble`. `credentials`: since it does not accept who asks."""

    provider: str
    number: int
    listed: tuple[Listed, ...] | None
    trouble: str = ""
    credentials: bool = False


class MachineMismatched(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An agent that says to be this machine was refused: what it says does not agree with the record."""

    machine: str
    why: str


# --- what the shell has to do -----------------------------------------------------------------------------------------


class RecordMachine(msgspec.Struct, frozen=True, gc=False):
    """Make this machine durable; None: it is not remembered any more."""

    name: str
    machine: Machine | None


class RecordPauses(msgspec.Struct, frozen=True, gc=False):
    """Make durable which pools are paused."""

    paused: dict[str, Paused]


class CreateMachine(msgspec.Struct, frozen=True, gc=False):
    """Ask the provider of this machine to create it; with the same name as token where it was asked before."""

    machine: Machine


class EndMachine(msgspec.Struct, frozen=True, gc=False):
    """Ask a provider to end a machine. `number`: of this call; 0: nobody waits for the answer."""

    provider: str
    name: str
    handle: str
    number: int = 0


class ListMachines(msgspec.Struct, frozen=True, gc=False):
    """Ask a provider for all machines of this grid."""

    provider: str
    number: int


class MachineOver(msgspec.Struct, frozen=True, gc=False):
    """A machine is to be no member of the grid any more: take back its certificates, cut its connections."""

    name: str
