"""Messages about boosts, which people send. A boost is a job: it is watched, shown and ended (released) as one."""

import msgspec

from distributed_grid.protocol.bounds import Count, Finite, Number, Word
from distributed_grid.protocol.jobs import JobView, Priority, State
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import ResourceType
from distributed_grid.protocol.walls import Walls


class RequestBoost(Message, frozen=True, tag="request-boost"):
    """Lend so much (cores, GPUs, GB) to this node through its Ray cluster, for `duration` seconds. From `source` if one
    is named, else from the best; `wait`: also if there is no room now. `exclusive`: for programs that use its placement
    group alone. `walls`: from a node with walls of this level or a stronger one. Answered by Submitted, and then as a
    Submit."""

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
    as its labels say; `stray` says why that is no boost of this grid, where it is none."""

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
    stray: str = ""


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
