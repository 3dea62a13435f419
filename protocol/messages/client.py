"""Messages between a client and the coordinator: jobs, boosts, status, shipped files, access."""

from typing import Any

import msgspec

from distributed_grid.protocol.groups import Array, GroupView
from distributed_grid.protocol.history.trends import NodeTrends
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import Dependency, JobSpec, JobView, Precedence, Priority, Reason, Request, State
from distributed_grid.protocol.messages.automation import GetBalancing
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.messages.history import GetTrends
from distributed_grid.protocol.messages.operator import Preemption
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import Code, Count, Finite, Grant, Number, ResourceType, Span, Text, Word
from distributed_grid.protocol.sharing.moves import LenderView


class RequestBoost(Message, frozen=True, tag="request-boost"):
    """Lend so much (cores, GPUs, GB) to this node through its Ray cluster, for `duration` seconds. From `source` if it
    has room, else from the best node; from `only_source` alone if one is named. `wait`: also if there is no room now.
    `exclusive`: for programs that use its placement group alone. `walls`: from a node with walls of this level or a
    stronger one. Answered by Submitted, and then as a Submit."""

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
    """Let this boost end so many seconds later. Answered by Done once it is on disk."""

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
    """A node as Ray shows it: its status (running, idle, draining), and what it has and what of it is free in Ray's own
    words and units (cores, GPUs, bytes). `boost`: the job whose raylet it is, lent by the node `source` for `target`,
    as its labels say; `orphan` says why that is no boost of this grid, where it is none."""

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
    """What waits in Ray: `count` tasks or actors that ask for `shape` each (in Ray's words and units); with `group` it
    is one placement group, and they are its bundles."""

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


class Submission(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job to submit, or many with an `array`. `key` is made by the client, unique per user: submitting the same key
    again returns the job (or group) that is there already. It waits for all that is in `after`, and until `begin` (grid
    time) or for `delay` seconds."""

    key: Word
    spec: JobSpec
    request: Request
    array: Array | None = None
    after: tuple[Dependency, ...] = ()
    begin: Finite = 0.0
    delay: Finite = 0.0


class Submit(Message, frozen=True, tag="submit"):
    """Take these jobs, all or none; answered once on disk. `watch`: send JobUpdate for them from then on."""

    id: Number
    jobs: tuple[Submission, ...]
    watch: bool = False


class Submitted(Message, frozen=True, tag="submitted"):
    """The jobs' ids, or the groups', in the order of the submissions; `fit` is how many nodes of `nodes` could ever run
    the first."""

    id: Number
    jobs: tuple[str, ...]
    fit: Count = 0
    nodes: Count = 0


class Failed(Message, frozen=True, tag="failed"):
    """A request could not be done: what, why, what to try; `code` is a short stable word (unknown-job, never-fits,
    bad-value, not-allowed, unavailable, busy, internal)."""

    id: Number
    code: str
    what: str
    why: str = ""
    hint: str = ""


class Done(Message, frozen=True, tag="done"):
    """A request was done; `text` where there is something to say."""

    id: Number
    text: str = ""


class Watch(Message, frozen=True, tag="watch"):
    """Send JobUpdate for these jobs (id, unique prefix, name or `last`) now and whenever they change.
    `whole`: for groups send GroupUpdate, and nothing of their members."""

    id: Number
    jobs: tuple[str, ...]
    whole: bool = False


class JobUpdate(Message, frozen=True, tag="job-update"):
    """A watched job as it stands now."""

    job: JobView


class GroupUpdate(Message, frozen=True, tag="group-update"):
    """A watched group as it stands now; told when it has changed, at most five times a second, until it has ended."""

    group: GroupView


class Cancel(Message, frozen=True, tag="cancel"):
    """End these jobs, all or none; taken once it is on disk. Answered by Done, or by Failed if one is not known.
    Without `jobs`: all that live of this `user` (or, where it is said, of `every` user), in one of these `states`."""

    id: Number
    jobs: tuple[str, ...]
    reason: str = ""
    grace: Finite = -1.0
    user: str = ""
    states: tuple[State, ...] = ()
    every: bool = False


class SignalJob(Message, frozen=True, tag="signal-job"):
    """Send a signal to a running job."""

    id: Number
    job: str
    signal: Code


class ListJobs(Message, frozen=True, tag="list-jobs"):
    """Jobs, at most `limit`: those not ended, the newest first, and with `ended` then the others, the newest end first.
    `past`: the list goes on behind the job that had ended then (0: not yet), was submitted then, and has this id.
    `fold`: groups as wholes, without their members. `boosts`, `holds`: those alone. `failed`: of those that have ended,
    only those that failed (see `has_failed`), and of groups those that have some."""

    id: Number
    ended: bool = False
    states: tuple[State, ...] = ()
    user: str = ""
    limit: Code = 1000
    past: tuple[Finite, Finite, str] | None = None
    fold: bool = False
    boosts: bool = False
    failed: bool = False
    holds: bool = False


class Jobs(Message, frozen=True, tag="jobs"):
    """Jobs as they stand, and groups as wholes; stories are left out of long lists."""

    id: Number
    jobs: tuple[JobView, ...]
    more: bool = False
    groups: tuple[GroupView, ...] = ()


class ShowJobs(Message, frozen=True, tag="show-jobs"):
    """These jobs whole (id, unique prefix, name or `last`), with their stories. Answered by Jobs, where a group is one
    of its `groups`; with `members` there are its members too, in short."""

    id: Number
    jobs: tuple[str, ...]
    members: bool = False


class GetStatus(Message, frozen=True, tag="get-status"):
    """How the grid is: answered by Status. `past`: only of the nodes behind the one of this name."""

    id: Number
    past: str = ""


class Durations(msgspec.Struct, frozen=True, array_like=True):
    """Quantiles of so many durations (s), each within one percent."""

    count: Count
    median: Span
    p95: Span
    p99: Span


class Status(Message, frozen=True, tag="status"):
    """One screen of the grid. `counts` are live jobs by state; `ended` those since the start by cause; `trouble` says,
    where there is any, why no new jobs are taken. The nodes are in the order of their names; `past` is the last one's
    where there are more than one answer holds. `at` is the coordinator's clock. `waits` and `runs`: for how long the
    jobs that ended since the start waited and ran, of those that ran; so many of all that ended were `placed`, and held
    and used core-seconds. `moves` of rebalancing were made since the start."""

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
    """What is offered and what is lent: answered by Shared. `past` as in GetStatus."""

    id: Number
    node: str = ""
    past: str = ""


class Shared(Message, frozen=True, tag="shared"):
    """All offers and all allocations, node by node. `past` as in Status. `lasting`: how likely a node stays idle for
    two hours more, by its name, where that is forecast and believed."""

    id: Number
    offers: tuple[OfferView, ...]
    allocations: tuple[AllocationView, ...]
    past: str = ""
    lasting: dict[str, Finite] = {}


def next_page(asked: Any, page: Any, number: int) -> Any:
    """What to ask, with this number, for what is behind the answer to a ListJobs, GetStatus, GetShared, GetTrends,
    GetBalancing or ListBoosts; None: that was all, or as many as were wanted. A job that ends between two pages may be
    in both."""
    if not isinstance(asked, ListJobs):
        past = page.past if isinstance(asked, GetStatus | GetShared | GetTrends | GetBalancing | ListBoosts) else ""
        return msgspec.structs.replace(asked, id=number, past=past) if past else None
    left = asked.limit - len(page.jobs)
    if not page.more or not page.jobs or left <= 0:
        return None
    last = page.jobs[-1]
    return msgspec.structs.replace(asked, id=number, limit=left, past=(last.ended, last.submitted, last.id))


def joined(*pages: Any) -> Any:
    """One Jobs, Status, Shared, Trends, BalancingStatus or Boosts of several, each of which was asked for behind the
    one before. What is no list is the last one's."""
    last = pages[-1]
    lists: dict[str, Any] = {
        name: tuple({_key(view) or object(): view for page in pages for view in getattr(page, name)}.values())
        for name in ("jobs", "groups", "nodes", "offers", "allocations", "boosts")
        if hasattr(last, name)
    }
    if isinstance(last, Shared):
        lists["lasting"] = {name: seconds for page in pages for name, seconds in page.lasting.items()}
    return msgspec.structs.replace(last, **lists)


def _key(
    view: JobView | GroupView | NodeView | OfferView | AllocationView | BoostView | RayNode | NodeTrends | LenderView,
) -> str:
    match view:
        case BoostView():
            return view.job.id
        case NodeView():
            return view.facts.name
        case OfferView() | NodeTrends() | LenderView():
            return view.node
        case _:
            return view.id


class AskWhy(Message, frozen=True, tag="ask-why"):
    """Why is this job where it is; or, with `request` instead of `job`, where would it go (a dry run). `lasts`: the
    time limit of such a job with its grace, in seconds; 0: it has none."""

    id: Number
    job: str = ""
    request: Request | None = None
    lasts: Span = 0.0


class NodeVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What matching says of one node: `ok` with its scores by name and their weighted mean `confidence`, or the
    reason why not."""

    node: str
    ok: bool
    why: str = ""
    confidence: Finite = 0.0
    scores: dict[str, Finite] = {}


class FunnelStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many nodes are left after one more condition; `lost` says which went, for people."""

    what: str
    left: Count
    lost: str = ""


class Why(Message, frozen=True, tag="why"):
    """The explanation: a dominant reason, the funnel from all nodes to those that fit, and the verdict per node.
    `chosen` is the node it is on or would go to, with `grant`; `ahead` counts jobs before it in the queue; `hint` is
    the smallest single change that would start it now. `holders` hold what it lacks, who ends first foremost.
    `snapshot` numbers the state of the ledger that all of this was said of, since the start that `epoch` counts.
    `preempts`: who would give way to a request that finds no room. `precedence`: of a job in the queue, unless it is
    served by share. `lasting`: how long the chosen node stays idle, by its own past. `prospects`: for how long
    runs like it run, and how likely it is over when its submitter wants it to be."""

    id: Number
    reason: Reason
    funnel: tuple[FunnelStep, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
    chosen: str = ""
    grant: Grant | None = None
    ahead: Count = 0
    hint: str = ""
    job: JobView | None = None
    holders: tuple[AllocationView, ...] = ()
    snapshot: Number = 0
    epoch: Number = 0
    preempts: Preemption | None = None
    precedence: Precedence | None = None
    lasting: Text = ""
    prospects: Text = ""


class WantBlobs(Message, frozen=True, tag="want-blobs"):
    """Which of these blobs must the client still send: answered by MissingBlobs."""

    id: Number
    blobs: tuple[str, ...]


class MissingBlobs(Message, frozen=True, tag="missing-blobs"):
    """The blobs the coordinator has not got."""

    id: Number
    blobs: tuple[str, ...]


class PutBlob(Message, frozen=True, tag="put-blob"):
    """Bytes of a blob at `offset`, in order; with `end` the whole is checked against its hash and kept. Answered by
    Done once it is on disk (only the last part is answered)."""

    id: Number
    blob: Word
    offset: Count
    data: bytes
    end: bool = False


class MakeToken(Message, frozen=True, tag="make-token"):
    """Make a token with which somebody may join: answered by TokenMade. `name`: what a node will be called, a pattern
    of what it may be called, or empty; a person's name is needed. `ttl`: seconds. `bearer`: one to be shown with each
    connection of that person's programs instead, as long as it holds."""

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
    """Who may come in: answered by Access."""

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
