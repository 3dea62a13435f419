"""Messages between an agent and the coordinator on their control connection (bulk data: data.py)."""

from typing import Annotated

import msgspec

from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.history.buckets import PER_MESSAGE, Bucket
from distributed_grid.protocol.jobs import JobSpec, Outcome, Use
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.nodes import Known, Layer, Sample, Stamp
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import Code, Finite, Grant, Number, Pid, Resources, Span, Text, Word

# --- agent to coordinator ---------------------------------------------------------------------------------------


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """The agent lives; with its newest sample. `at` is the node's boot-time clock when it was sent, given only while
    the node holds leased allocations: it asks for Renewed."""

    sample: Sample
    at: Finite = 0.0


class Inventory(Message, frozen=True, tag="inventory"):
    """All allocations the agent knows of, sent after every hello: a missing one is unknown to it."""

    known: tuple[Known, ...]


class Started(Message, frozen=True, tag="started"):
    """The allocation's command runs since now, behind these `walls` (protocol/placement.py)."""

    allocation: Word
    pid: Pid = 0
    walls: Word = ""


class Stale(Message, frozen=True, tag="stale"):
    """The agent measured again at the claim and did not start the allocation: what it was to get is not spare.
    Nothing of it ran; nothing of it is held. `device` names the core or GPU in the way, where it is one."""

    allocation: Word
    reason: Text
    device: Word = ""


class Exited(Message, frozen=True, tag="exited"):
    """The allocation is over and nothing of it is alive. Told until acknowledged. `returned`: what it held is spare
    again and in the agent's offer from now on (the coordinator adds it to the offer it has). `stamp`: of its launch.
    `walls`: as in Started, of a job that was over before its start was told."""

    allocation: Word
    outcome: Outcome
    returned: bool = False
    stamp: Stamp | None = None
    walls: Word = ""


class Suspended(Message, frozen=True, tag="suspended"):
    """The node's owner is active (`why` says how), and the allocation has been frozen for `lasted` seconds; or, if
    `why` is empty, it continues after that time. `in_all`: seconds it was frozen so far, by which its time limit is
    extended. Sent again after every reconnect. `by_holder`: it is frozen not for the owner, but for the allocation that
    holds the cores it runs on."""

    allocation: Word
    why: Text = ""
    lasted: Span = 0.0
    in_all: Span = 0.0
    by_holder: bool = False


class AwaitsReader(Message, frozen=True, tag="awaits-reader"):
    """The allocation has been frozen for `lasted` seconds, since an attached reader is so far behind its output
    (`why`); or, if `why` is empty, it continues after that time. Its time limit is not extended."""

    allocation: Word
    why: Text = ""
    lasted: Span = 0.0


class Recalled(Message, frozen=True, tag="recalled"):
    """The node's owner takes back what the allocation holds, for that `why`: it has `grace` seconds to end. Told again
    after every reconnect until it has. `closing`: not for the owner's own use; the node lends nothing any more.
    `by_holder`: for the allocation that holds the cores it runs on."""

    allocation: Word
    why: Text
    grace: Span = 0.0
    closing: bool = False
    by_holder: bool = False


class Noted(Message, frozen=True, tag="noted"):
    """A note of the node for the allocation's events: that it left its cores, or that something of it lives though it
    was killed. Sent once."""

    allocation: Word
    text: Text


class InUse(Message, frozen=True, tag="in-use"):
    """The use of the allocations that run on a node since the last such message. An allocation that is missing was not
    measured."""

    uses: tuple[Use, ...]


class Buckets(Message, frozen=True, tag="buckets"):
    """Measurements of the node, in buckets of ten seconds, the oldest first. `at` is the node's boot-time clock when
    this was sent. A bucket is sent once on a connection, and again on the next one until BucketsKept acknowledges it,
    for an hour at most."""

    at: Finite
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=PER_MESSAGE)]


class InEffect(Message, frozen=True, tag="in-effect"):
    """The settings in effect on the node, with their origins: the grid's, and its own where they lend less. `lendable`
    is what its facts have of that name from now on. Told after every hello and when they change."""

    settings: Layer
    lendable: Resources


# --- coordinator to agent ---------------------------------------------------------------------------------------


class Launch(Message, frozen=True, tag="launch"):
    """Start this command with exactly these resources. Sent again after a reconnect; an agent that knows the
    allocation already answers with its state and starts nothing.

    `lease`: seconds for which it may run on without word from the coordinator, counted from the sending of the newest
    heartbeat that was answered by Renewed; then the node's supervisor ends it by itself (0: it runs on for ever).
    `heard` is the `at` of the newest sample that the coordinator has of the node: it counts as such a sending.

    `gang`: it is a member of one. The node of rank 0 answers Stale, with the device `port`, where the port is taken.

    `walls`: it asks for this level at least. An agent whose walls are weaker, or that does not run jobs of this user,
    answers Stale: it may have restarted since it told its facts. `stamp`: shows that it was granted.

    `predecessor`: it is the successor of this allocation, has its cores and memory, and holds nothing until nothing of
    that one is alive: then it starts at once. If that one is over or unknown there, this is a launch like any other."""

    allocation: Word
    job: Word
    user: str
    epoch: Number
    grant: Grant
    spec: JobSpec
    lease: Finite = 0.0
    heard: Finite = 0.0
    gang: Gang | None = None
    walls: Walls = Walls.NONE
    stamp: Stamp | None = None
    predecessor: Word = ""


class Stop(Message, frozen=True, tag="stop"):
    """End the allocation: SIGTERM, `grace` seconds, SIGKILL to all of it. `cause` becomes the outcome's cause.
    Also for an allocation the agent never heard of: then it answers Exited with `started` False, and will refuse a
    late launch of it.

    `unless_started`: take back a successor. One that has started runs on; that is told by its Started."""

    allocation: Word
    grace: Finite = 5.0
    cause: str = "cancelled"
    text: Text = ""
    unless_started: bool = False


class Signal(Message, frozen=True, tag="signal"):
    """Send this signal to the job's process group, nothing else."""

    allocation: Word
    signal: Code


class Extend(Message, frozen=True, tag="extend"):
    """Set another time limit for this allocation, in seconds from its start; 0 is none."""

    allocation: Word
    limit: Finite


class Renice(Message, frozen=True, tag="renice"):
    """Ray shows the raylet of this allocation: it gives way to others' programs from now on, as jobs do. It was started
    with a normal weight, to get there on a busy node. Sent again after a reconnect."""

    allocation: Word


class Ack(Message, frozen=True, tag="ack"):
    """The outcome of these allocations is on the coordinator's disk: the agent may forget them."""

    allocations: tuple[str, ...]


class BucketsKept(Message, frozen=True, tag="buckets-kept"):
    """The coordinator keeps the node's buckets up to the one of this number: the agent may forget them."""

    through: Number


class Renewed(Message, frozen=True, tag="renewed"):
    """The heartbeat sent at `at` (the node's own clock) was received: all leases there are renewed from that moment."""

    at: Finite


class NewSettings(Message, frozen=True, tag="new-settings"):
    """The grid's settings for this node are these from now on, in place of those of the welcome."""

    settings: Layer


class OpenData(Message, frozen=True, tag="open-data"):
    """Open the second connection, for bulk data."""
