"""The input of one pass of rebalancing, as plain data: demand reported by Ray, nodes that could lend, and boosts
lent."""

import math
from functools import lru_cache

import msgspec

from distributed_grid.protocol.boosts import JOIN_WITHIN, OVERHEAD, RayAuth
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import SharingPolicy
from distributed_grid.protocol.sharing.pressure import Pressure


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """Demand that waits in Ray: `count` tasks, or bundles of one placement group (`group`), that ask for `each`. `text`
    describes and identifies it. Bundles may have to be on one node (`together`) or on different ones (`apart`). `fits`:
    some node of Ray has that much in total; `odd`: why no boost can serve it."""

    text: str
    each: Resources
    count: int
    group: bool = False
    together: bool = False
    apart: bool = False
    fits: bool = True
    odd: str = ""


class RayLook(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Ray's report for one pass. `target`: the node of its head, which boosts are lent to; `total` and `used`: of all
    its nodes; `idle`: seconds without work of each raylet that was lent, by its boost (0: at work); `members`: nodes of
    the grid that are nodes of this Ray cluster by themselves. `user`: the user whose boosts they are. The rest is the
    data of the cluster in each boost, as in Boost."""

    target: str
    address: str
    user: str
    auth: RayAuth = RayAuth.DISABLED
    ray: str = ""
    python: str = ""
    join_within: float = JOIN_WITHIN
    total: Resources = Resources()
    used: Resources = Resources()
    waiting: tuple[Waiting, ...] = ()
    idle: dict[str, float] = {}
    members: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True, gc=False):
    """A node that may lend: its unused cores and GPUs (whole ones, thousandths) and memory, what it has of each in all,
    its owner's pressure (None: not measured), for how many seconds it is idle, its `priority`, and why it lends nothing
    by itself, whatever it has (`closed`). `stays`: how likely it stays idle for as long as the policy wants of a
    lender (None: not known)."""

    name: str
    free: Resources
    total: Resources
    owner: Pressure | None
    idle: float
    priority: float = 1.0
    closed: str = ""
    stays: float | None = None

    def excess(self, headroom: float) -> Resources:
        """Return the free resources beyond this part of the node: whole cores, and GPUs that are not kept."""
        kept_cores, kept_gpus = _kept(headroom, self.total.cpu, self.total.gpu)
        cores, gpus = self.free.cpu // MILLI - kept_cores, self.free.gpu // MILLI - kept_gpus
        memory = self.free.memory - math.ceil(headroom * self.total.memory)
        return Resources(cores * MILLI if cores > 0 else 0, max(memory, 0), gpus * MILLI if gpus > 0 else 0)


@lru_cache
def _kept(headroom: float, cpu: int, gpu: int) -> tuple[int, int]:
    """Return the whole cores and GPUs that a node of this size keeps."""
    return math.ceil(round(headroom * cpu / MILLI, 6)), math.floor(round(headroom * gpu / MILLI, 6))


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """A live boost for the cluster. `automatic`: the grid has lent it by itself, with room for this many `tasks`, each
    with the request `asks` (empty: not known any more); `joined`: since when Ray has it (grid time; 0: not yet); `new`:
    it has not joined, or only just; `idle`: seconds without work according to Ray (None: not reported); `in_way`: the
    job that waits in the grid for what it holds."""

    boost: str
    user: str
    source: str
    target: str
    resources: Resources
    automatic: bool
    asks: str = ""
    tasks: int = 0
    joined: float = 0.0
    new: bool = False
    idle: float | None = None
    in_way: str = ""


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """A running job on `source`, whose owner `returns` with this probability `within` this many seconds, in which it
    does not end (`soon`: within the `looked` seconds that decide whether it may leave). It has run for `ran` seconds on
    `work` cores (as preemption counts them). It could go to `target` (empty: nowhere), whose owner returns with
    `target_returns` and `target_soon`; it is `protected` until then (grid time). `recalls` and `target_recalls`: the
    probability that an owner who returns stays long enough for a recall, and not only a freeze."""

    job: str
    source: str
    resources: Resources
    work: float
    ran: float
    within: float
    returns: float
    soon: float
    looked: float
    target: str = ""
    target_returns: float = 1.0
    target_soon: float = 1.0
    protected: float = 0.0
    recalls: float = 1.0
    target_recalls: float = 1.0


class Steady(msgspec.Struct, frozen=True):
    """Demand that waited without interruption: the minimum count, and for how long (s)."""

    count: int
    waited: float


class Moved(msgspec.Struct, frozen=True):
    """The last move of a node: when (grid time), which, and for whom."""

    at: float
    kind: MoveKind
    target: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The whole input of a pass. `steady`: by the text of demand; `moved`: by node; `vain`: by the text of demand, the
    boost that was lent for it and that Ray left unused. `stays`: jobs on nodes whose owners are likely to return;
    `badput_left`: core-seconds that may be lost by moving them (and by preemption) in this hour."""

    look: RayLook
    sources: tuple[Source, ...] = ()
    loans: tuple[Loan, ...] = ()
    steady: dict[str, Steady] = {}
    moved: dict[str, Moved] = {}
    vain: dict[str, str] = {}
    stays: tuple[Stay, ...] = ()
    badput_left: float = 0.0


MARGIN = 1.5
"""A move has to gain this multiple of what it costs."""


def lends_from(moved: Moved, values: SharingPolicy) -> float:
    """Return when a node may lend again after this move, or take the job that left it (grid time)."""
    return moved.at + (values.cooldown if moved.kind is MoveKind.LEND else max(values.min_hold, values.cooldown))


GPU_CORES = 8
"""Cores that one GPU counts as, where amounts of different kinds are compared."""
CORE_MEMORY = 4 * GIB
"""Memory that counts as one core there."""


def weight(amount: Resources) -> float:
    """An amount in cores' worth: that of its largest kind, and at least 1, since no less than a core is lent."""
    return max(1.0, amount.cpu / MILLI, GPU_CORES * amount.gpu / MILLI, amount.memory / CORE_MEMORY)


def room_for(each: Resources, tasks: int) -> Resources:
    """Return the resources of a raylet with room for this many tasks: whole cores and GPUs, at least one core, and one
    for each GPU; with memory, what the raylet needs itself. A task with a part of a GPU has it on one device."""
    gpus = _gpus(each.gpu, tasks)
    cores = max(1, gpus, math.ceil(each.cpu * tasks / MILLI))
    return Resources(cores * MILLI, each.memory * tasks + OVERHEAD if each.memory else 0, gpus * MILLI)


def _gpus(gpu: int, tasks: int) -> int:
    if not gpu:
        return 0
    return math.ceil(tasks / (MILLI // gpu)) if gpu < MILLI else tasks * math.ceil(gpu / MILLI)


def tasks_in(each: Resources, room: Resources, most: int) -> int:
    """Return how many such tasks a raylet with this capacity can run, at most `most`."""
    fit = most
    if each.cpu:
        fit = min(fit, room.cpu // each.cpu)
    if each.memory:
        fit = min(fit, max(0, room.memory - OVERHEAD) // each.memory)
    if each.gpu:
        gpus = min(room.gpu, room.cpu) // MILLI  # each GPU brings a core
        fit = min(fit, gpus * (MILLI // each.gpu) if each.gpu < MILLI else gpus // math.ceil(each.gpu / MILLI))
    return max(0, fit) if room.cpu >= MILLI else 0
