"""What a node is and what it measures, offers and holds, as it travels on the wire."""

from enum import StrEnum
from typing import Annotated

import msgspec

from distributed_grid.protocol.jobs import Outcome, State
from distributed_grid.protocol.numbers import (
    Code,
    Count,
    Finite,
    Index,
    Number,
    Pid,
    Place,
    Span,
    Text,
    Thousandths,
    Word,
)
from distributed_grid.protocol.orders import NO_ORDERS, NodeOrders
from distributed_grid.protocol.resources import MILLI, Grant, Resources
from distributed_grid.protocol.walls import Trust


class NodeState(StrEnum):
    """What the coordinator thinks of a node's link: silent 6 s is suspect, 10 s disconnected, then lost."""

    UP = "up"
    SUSPECT = "suspect"
    DISCONNECTED = "disconnected"
    LOST = "lost"


class OwnerPolicy(StrEnum):
    """What becomes of a node's jobs when its owner uses it himself."""

    CONTINUE = "continue"
    SUSPEND = "suspend"
    RECALL = "recall"


Seal = Annotated[str, msgspec.Meta(max_length=64)]
OWNERS_MOST = 256
Owners = Annotated[tuple[Word, ...], msgspec.Meta(max_length=OWNERS_MOST)]
"""Users whom a node names as its owners."""


class GpuFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What does not change about a GPU; `memory` in bytes. `stand_in`: announced as no real device. `numa`: the number
    of the NUMA node it is attached to (-1: not known)."""

    uuid: Word
    index: Place
    model: Word
    memory: Count
    stand_in: bool = False
    numa: Place = -1


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What does not change about a node while its agent runs.

    `cores` are the cores the agent manages (numbers as the kernel's, or virtual ones); `memory` bytes it manages;
    `lendable` is the most it could ever lend, after `max_share_*` and `can_share`: what no request may exceed.
    `instance` is the same for all agents that ever run on one state directory, and of no others but those on a copy of
    it, which `directory` tells apart: the directory's device and inode. `address` is where the agent connects from, as
    the coordinator sees it.
    `limits` says who keeps a job's limits of memory, pids, cpuset and cpu: `cgroup v2`, `cgroup v1`, `polling`, `none`.
    `numa` holds the cores of each NUMA node by its number; empty: not known.
    `ray` and `ray_python` are the versions of the Ray that would run its boosts, and of that one's Python; empty: none.
    `walls` is the level behind which jobs run there (protocol/walls.py), `walls_why` why none stronger; empty
    counts as `none`. Below `namespace` the node runs jobs of its `owners` (users of the grid)
    only, unless it `trusts` everyone.
    `nameless`: why the users of jobs there have no entry in what these see as /etc/passwd, behind walls `user`; empty:
    they have.
    `unknown`: why the node does not know what ran on it before, and whether it lives; empty: it knows.
    """

    name: Word
    hostname: Word
    boot_id: Word
    incarnation: Number
    cores: tuple[Index, ...]
    memory: Count
    lendable: Resources
    virtual: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    labels: dict[Word, Word] = {}
    software: Word = ""
    python: Word = ""
    priority: Finite = 1.0
    instance: Word = ""
    directory: Word = ""
    address: Word = ""
    limits: dict[Word, Word] = {}
    numa: tuple[tuple[Index, ...], ...] = ()
    ray: Word = ""
    ray_python: Word = ""
    walls: Word = ""
    walls_why: Text = ""
    owners: Owners = ()
    trusts: Word = Trust.OWNER.value
    unknown: Text = ""
    nameless: Text = ""


_LOSS = "~"


def loss_suffix(instance: str, loss: str) -> str:
    """The `instance` of a node from when it lost the records of what ran on it."""
    return f"{instance.partition(_LOSS)[0]}{_LOSS}{loss}"


def lost_records(instance: str, before: str) -> bool:
    """Whether a node of this instance lost its records since it had that one."""
    base, mark, _ = instance.partition(_LOSS)
    return bool(mark) and before != instance and before.partition(_LOSS)[0] in ("", base)


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that has memory on a GPU (bytes); `own` if it belongs to one of the grid's jobs."""

    pid: Pid
    memory: Count = 0
    user: Word = ""
    own: bool = False


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of one GPU: utilisation in percent, bytes, degrees Celsius. A GPU that could not be read has
    `error` and nothing else; it is never taken for idle."""

    uuid: Word
    utilisation: Finite = 0.0
    memory_used: Count = 0
    memory_total: Count = 0
    temperature: Finite = 0.0
    processes: tuple[GpuProcess, ...] = ()
    error: Text = ""


class Sample(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One measurement of a node, split into own use (the grid's jobs) and foreign use (everyone else).

    `at` is the node's boot-time clock in seconds. `cores` maps each managed core to its foreign use in percent, whole
    numbers; `own_cpu` and `foreign_cpu` are cores' worth (1.5 = one and a half cores busy). Memory in bytes:
    `memory_own` is our jobs' resident memory, `memory_foreign` what all others use. Rates are bytes per second.
    `pressure`: percent of time that programs of others waited for cpu, memory or io; `input_idle`: seconds since
    somebody used keyboard or terminal (below 0: not seen, or not looked at).
    """

    at: Finite
    cores: dict[Index, Code] = {}
    own_cpu: Finite = 0.0
    foreign_cpu: Finite = 0.0
    memory_total: Count = 0
    memory_foreign: Count = 0
    memory_own: Count = 0
    load: Finite = 0.0
    disk_total: Count = 0
    disk_free: Count = 0
    disk_read: Finite = 0.0
    disk_written: Finite = 0.0
    net_received: Finite = 0.0
    net_sent: Finite = 0.0
    gpus: tuple[GpuSample, ...] = ()
    gpu_error: Text = ""
    pressure: dict[Word, Finite] = {}
    input_idle: Finite = -1.0


class GpuOffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as it is lent: `milli` of it is spare, with `memory_free` of its `memory` bytes."""

    uuid: Word
    index: Place
    model: Word
    memory: Count
    memory_free: Count
    milli: Thousandths = MILLI


class Withheld(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node does not offer now and why; `what` is cpu, memory, gpu, a GPU's UUID, or node."""

    what: Word
    why: Text


class Offer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag="offer"):
    """All that a node lends until `expires_in` seconds from its sending; a newer offer replaces it.

    `cores` are spare whole cores, best first; `shares` maps a core that fractional jobs share already to what is
    spare of it in milli-cores. `counting` holds the ids of the allocations already taken off: room on the node is
    this offer less the holding allocations that are not in `counting`.
    """

    number: Number
    expires_in: Span
    cores: tuple[Index, ...] = ()
    shares: dict[Index, Thousandths] = {}
    memory: Count = 0
    gpus: tuple[GpuOffer, ...] = ()
    counting: tuple[Word, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    idle_since: Finite = 0.0

    @property
    def resources(self) -> Resources:
        """The spare amount, names taken off."""
        cpu = len(self.cores) * MILLI + sum(self.shares.values())
        return Resources(cpu, self.memory, sum(gpu.milli for gpu in self.gpus))


class OfferView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node's offer as clients see it: what is left of it now, seconds until it expires, and why not more."""

    node: str
    state: NodeState
    room: Resources
    total: Resources
    cores: tuple[Index, ...] = ()
    virtual: bool = False
    gpus: tuple[GpuOffer, ...] = ()
    expires_in: Finite = 0.0
    idle_for: Finite = 0.0
    withheld: tuple[Withheld, ...] = ()


class AllocationView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Resources of one node that one job holds. `suspended`: why it is frozen now, empty where it is not."""

    id: str
    job: str
    user: str
    node: str
    state: State
    grant: Grant
    priority: str
    since: Finite
    ends: Finite = 0.0
    name: str = ""
    suspended: str = ""


class NodeView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node as clients see it; `silent_for` is seconds since it was heard, `labels` those that count: its agent's, as
    the operator's orders changed them."""

    facts: NodeFacts
    state: NodeState
    silent_for: Finite = 0.0
    sample: Sample | None = None
    offered: Resources = Resources()
    lent: Resources = Resources()
    jobs: Count = 0
    withheld: tuple[Withheld, ...] = ()
    orders: NodeOrders = NO_ORDERS
    labels: dict[str, str] = {}


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The coordinator's own word of how far its store had come when it told a node something: its epoch and the number
    of its last commit. `seal` is over both, the node and what it was told; only the coordinator can make and check it.
    A node keeps the stamp with what it was told and shows it with what it says of that."""

    epoch: Number
    commits: Number
    seal: Seal


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """One allocation an agent knows of, told whole after every reconnect. `outcome` once it is over; `walls` is the
    level behind which its command runs or ran; `stamp` that of its launch."""

    allocation: Word
    state: State
    outcome: Outcome | None = None
    started_for: Span = 0.0
    walls: str = ""
    stamp: Stamp | None = None
