"""Messages of operators: orders for nodes, receipts of preemptions, and users' shares."""

import msgspec

from distributed_grid.protocol.jobs import Precedence, Priority
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.nodes import Layer, Lending
from distributed_grid.protocol.resources import Code, Count, Finite, Grant, Number, Resources, ResourceType, Word


class Victim(msgspec.Struct, frozen=True, omit_defaults=True):
    """An allocation whose place is taken back. `seconds` it had run, `lost` in core-seconds: see docs/preemption.md.
    `gang`: how many members its gang has, which all end with it and are in what is lost; 0: it has none. `node`: where
    it gives way, if that is for a gang; else it is the one node that all is about. `walls`: behind which it ran."""

    allocation: str
    job: str
    user: str
    priority: Priority
    grant: Grant
    seconds: Finite = 0.0
    lost: Finite = 0.0
    gang: Count = 0
    node: str = ""
    walls: str = ""


class Place(msgspec.Struct, frozen=True, gc=False):
    """The resources of a node that are earmarked for one member of a gang."""

    node: str
    grant: Grant


class Alternative(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another node that was considered: how many victims it would have taken there, and what they would have lost; or
    `why` it could not be there."""

    node: str
    victims: Count = 0
    lost: Finite = 0.0
    why: str = ""


class Preemption(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The preemption that a request would cause now if it were submitted: these victims would lose `lost` core-seconds
    and have ended `within` seconds, and `grant` would be earmarked for it; of a gang that is the place of its first
    member, and `more` are those of the others."""

    node: str
    grant: Grant
    victims: tuple[Victim, ...]
    lost: Finite = 0.0
    within: Finite = 0.0
    alternatives: tuple[Alternative, ...] = ()
    more: tuple[Place, ...] = ()


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One preemption. `grant` is what is earmarked for the preemptor, `lost` what all victims lose (core-seconds). Of a
    gang, the `job` is its first member, `node` and `grant` are its place, and `more` are those of the others. `result`
    is empty while it is under way, then `started` (after `waited` seconds, on that set) or `returned` (to the victims),
    and `text` says why. Times are grid time."""

    id: str
    job: str
    user: str
    priority: Priority
    wanted: Resources
    node: str
    grant: Grant
    at: Finite
    victims: tuple[Victim, ...]
    lost: Finite = 0.0
    why: str = ""
    alternatives: tuple[Alternative, ...] = ()
    result: str = ""
    closed: Finite = 0.0
    waited: Finite = 0.0
    text: str = ""
    more: tuple[Place, ...] = ()


class DrainNodes(Message, frozen=True, tag="drain-nodes"):
    """Give these nodes no new job; all of them, or none if one is not known. What still runs there `deadline` seconds
    from now is taken back (below zero: nothing is). Answered by Done once it is on disk."""

    id: Number
    nodes: tuple[str, ...]
    reason: str = ""
    deadline: Finite = -1.0


class UndrainNodes(Message, frozen=True, tag="undrain-nodes"):
    """Give these nodes jobs again. Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]


class LabelNodes(Message, frozen=True, tag="label-nodes"):
    """Set these labels of these nodes; None removes one. Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]
    labels: dict[str, str | None]


class SetNodes(Message, frozen=True, tag="set-nodes"):
    """Limit what these nodes lend to `values`, which override the grid's configuration; the settings in `unset` follow
    the configuration again. Only the names in ORDERED are allowed. Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]
    values: Lending = Lending()
    unset: tuple[Word, ...] = ()


class DeclareNode(Message, frozen=True, tag="declare-node"):
    """Declare the resources of a node without agent, and how much of them is `free`: holds that name the node take of
    that, and nothing is ever started there. `known`: only the free amounts of a node that was declared before have
    changed, except those of the `kept` kinds. `gpu_memory`: bytes of each GPU. Answered as DrainNodes; a node that has
    an agent is refused."""

    id: Number
    node: Word
    whole: Resources
    free: Resources
    gpu_model: Word = ""
    gpu_memory: Count = 0
    labels: dict[Word, Word] = {}
    known: bool = False
    kept: tuple[ResourceType, ...] = ()


class ReloadSettings(Message, frozen=True, tag="reload-settings"):
    """Read the grid's configuration again and hand it to the nodes. Answered by Done, which says what has changed and
    what will only at the next start; by Failed, and nothing has changed, where there is a mistake in it."""

    id: Number


class GetSettings(Message, frozen=True, tag="get-settings"):
    """Which settings are in effect on this node, and where does each come from? Answered by NodeSettings."""

    id: Number
    node: Word


class NodeSettings(Message, frozen=True, tag="node-settings"):
    """The settings in effect on the node with their origins, as its agent tells them; `connected` False: it is not
    connected, and these are the grid's alone. `closed`: why it offers nothing now; empty: it does."""

    id: Number
    node: str
    settings: Layer
    connected: bool = True
    closed: str = ""


class ForgetNodes(Message, frozen=True, tag="forget-nodes"):
    """Remove these nodes with all orders for them. Refused for a node that is connected, or on which something is held.
    Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]


class GetReceipts(Message, frozen=True, tag="get-receipts"):
    """Request receipts of preemptions, at most `limit`, the newest first. `job` (id, unique prefix, name or `last`):
    only those in which it took or gave a place; `node`: only those there. Answered by Receipts."""

    id: Number
    job: str = ""
    node: str = ""
    limit: Code = 100


class Receipts(Message, frozen=True, tag="receipts"):
    """The receipts, as they are on disk."""

    id: Number
    receipts: tuple[Receipt, ...]


class GetShares(Message, frozen=True, tag="get-shares"):
    """Request the shares of all users: answered by Shares."""

    id: Number


class UserShare(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A user. `held` is the dominant share of what they hold now, `past` the decayed average of what they held (parts
    of the whole grid), `share` both together by their `weight`: the smallest is served next. `running` counts
    allocations, `waiting` jobs by the word of their priority. `position` in the order of service; 0: nothing waits.
    `precedence`: of the job that is served next, unless jobs are served by share. `credit`: what loans take off the
    share in the order of service (docs/shares.md)."""

    user: str
    holds: Resources
    held: Finite
    past: Finite
    share: Finite
    weight: Finite = 1.0
    running: Count = 0
    waiting: dict[str, Count] = {}
    position: Count = 0
    precedence: Precedence | None = None
    credit: Finite = 0.0


class Shares(Message, frozen=True, tag="shares"):
    """The users in the order in which they are served next; `capacity` is what all known nodes may lend together, and
    `half_life` (seconds) says how fast the past is forgotten."""

    id: Number
    users: tuple[UserShare, ...]
    capacity: Resources
    half_life: Finite
