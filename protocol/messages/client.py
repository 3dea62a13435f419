"""Messages between a client and the coordinator: boosts, the grid's status, its offers, access (jobs: jobs.py)."""

import msgspec

from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import JobView, Priority, State
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import Code, Count, Finite, Number, ResourceType, Span, Word


class RequestBoost(Message, frozen=True, tag="request-boost"):
    """Lend this amount (cores, GPUs, GB) to this node through its Ray cluster, for `duration` seconds. From `source` if
    it has room, else from the best node; from `only_source` alone if one is named. `wait`: also if there is no room
    now. `exclusive`: for programs that use its placement group alone. `walls`: from a node with walls of this level or
    a stronger one. Answered by Submitted, and then as a Submit."""

    id: Number
    key: Word
    target: Word
    kind: ResourceType
    amount: Finite
    priority: Priority = Priority.NORMAL
    duration: Finite = 3600.0
    source: Word = ""
    wait: bool = False
    watch: bool = False
    exclusive: bool = False
    walls: Walls = Walls.NONE
    only_source: Word = ""


class ExtendBoost(Message, frozen=True, tag="extend-boost"):
    """Let this boost end this many seconds later. Answered by Done once it is on disk."""

    id: Number
    boost: Word
    seconds: Finite


class ListBoosts(Message, frozen=True, tag="list-boosts"):
    """Which boosts live, of this target (empty: of all), and what Ray shows of them? Answered by Boosts. `past`: only
    the boosts that were requested after then, and the nodes of Ray behind the one of this id."""

    id: Number
    target: Word = ""
    past: tuple[Finite, str] | None = None


class RayNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as Ray shows it: its status (running, idle, draining), and its total and available resources in Ray's own
    names and units (cores, GPUs, bytes). `boost`: the job whose raylet it is, lent by the node `source` for `target`,
    according to its labels; `orphan` says why that is no boost of this grid, if it is none."""

    id: str
    ip: str = ""
    name: str = ""
    host: str = ""
    status: str = ""
    total: dict[str, Finite] = {}
    available: dict[str, Finite] = {}
    boost: str = ""
    source: str = ""
    target: str = ""
    orphan: str = ""


class Demand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Waiting demand in Ray: `count` tasks or actors that request `shape` each (in Ray's names and units); with `group`
    it is one placement group, and they are its bundles."""

    count: Count
    shape: dict[str, Finite] = {}
    group: bool = False


class BoostView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A boost. `node` is what Ray shows of it; `differs` says how that is not what we lent, where it is not."""

    job: JobView
    node: RayNode | None = None
    differs: str = ""

    @property
    def ending(self) -> str:
        """Why it ends, from when it is told to; empty: it was not, or one may not see why."""
        return self.job.story[-1].text if self.job.state is State.STOPPING and self.job.story else ""


class Boosts(Message, frozen=True, tag="boosts"):
    """The boosts, the oldest first, and all nodes that Ray shows, in the order of their ids, its versions, and what
    waits there for room; `trouble` says why it cannot be asked, if so. `past` is where to go on, where there is more
    than one answer holds."""

    id: Number
    boosts: tuple[BoostView, ...]
    address: str = ""
    nodes: tuple[RayNode, ...] = ()
    trouble: str = ""
    ray: str = ""
    python: str = ""
    demand: tuple[Demand, ...] = ()
    past: tuple[Finite, str] | None = None


class GetStatus(Message, frozen=True, tag="get-status"):
    """Request the status of the grid: answered by Status. `past`: only of the nodes behind the one of this name."""

    id: Number
    past: str = ""


class Durations(msgspec.Struct, frozen=True, array_like=True):
    """Quantiles of `count` durations (s), each within one percent."""

    count: Count
    median: Span
    p95: Span
    p99: Span


class Status(Message, frozen=True, tag="status"):
    """The status of the grid. `counts` are live jobs by state; `ended` those since the start by cause; `trouble`: why
    no new jobs are accepted, if so. The nodes are in the order of their names; `past` is the last one's if there are
    more than one answer holds. `at` is the coordinator's clock. `waits` and `runs`: how long the jobs that ended since
    the start waited and ran, of those that ran; of all that ended, `placed` were placed, and they held and used this
    many core-seconds. `moves`: the number of moves of rebalancing since the start."""

    id: Number
    grid: str
    software: str
    epoch: Number
    up_for: Finite
    nodes: tuple[NodeView, ...]
    counts: dict[str, Count]
    ended: dict[str, Count]
    at: Finite
    trouble: str = ""
    past: str = ""
    waits: Durations | None = None
    runs: Durations | None = None
    placed: Count = 0
    core_seconds_used: Finite = 0.0
    core_seconds_held: Finite = 0.0
    moves: Count = 0


class GetShared(Message, frozen=True, tag="get-shared"):
    """Request the offered and lent resources: answered by Shared. `past` as in GetStatus."""

    id: Number
    node: str = ""
    past: str = ""


class Shared(Message, frozen=True, tag="shared"):
    """All offers and all allocations, node by node. `past` as in Status. `lasting`: the probability that a node stays
    idle for two hours more, by its name, if there is a reliable forecast."""

    id: Number
    offers: tuple[OfferView, ...]
    allocations: tuple[AllocationView, ...]
    past: str = ""
    lasting: dict[str, Finite] = {}


class MakeToken(Message, frozen=True, tag="make-token"):
    """Make a token for joining: answered by TokenMade. `name`: of the node that joins, a pattern of its name, or empty;
    the name of a person is required. `ttl`: seconds. `bearer`: make a bearer token instead, which that person's
    programs show with each connection until it expires."""

    id: Number
    role: Role
    name: Word = ""
    ttl: Span = 3600.0
    uses: Code = 1
    labels: dict[str, str] = {}
    bearer: bool = False


class TokenMade(Message, frozen=True, tag="token-made"):
    """The token, which is not kept and cannot be told again; `pin` is that of the grid's authority."""

    id: Number
    token: str
    pin: str = ""


class ListAccess(Message, frozen=True, tag="list-access"):
    """List the tokens and certificates of the grid: answered by Access."""

    id: Number


class TokenView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token that still opens something; its secret is not known. Times are wall-clock seconds since the epoch."""

    id: str
    role: Role
    name: str
    uses: Code
    expires: Finite
    creator: str
    labels: dict[str, str] = {}


class MemberView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A certificate that was given out and has not expired; `revoked`: when it was taken back, 0: it holds. `bearer`:
    it is a bearer token, and `serial` its id."""

    role: Role
    name: str
    serial: str
    issued: Finite
    expires: Finite
    revoked: Finite = 0.0
    bearer: bool = False


class Access(Message, frozen=True, tag="access"):
    """The tokens that are open and the certificates that have not expired."""

    id: Number
    tokens: tuple[TokenView, ...] = ()
    members: tuple[MemberView, ...] = ()


class Withdraw(Message, frozen=True, tag="withdraw"):
    """Take back a token (by its id), or all certificates of a role and name, and end their connections at once."""

    id: Number
    token: Word = ""
    role: Role | None = None
    name: Word = ""
