"""A node on the wire: its facts, measurements, offers and allocations; the operator's orders for it; and checks of its
facts that concern several fields together, beyond the bounds of each field (resources.py)."""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Outcome, State
from distributed_grid.protocol.placement import Trust
from distributed_grid.protocol.resources import (
    MILLI,
    MOST_CPU,
    MOST_GPU,
    Code,
    Count,
    Finite,
    Grant,
    Index,
    Number,
    Pid,
    Place,
    Resources,
    Span,
    Text,
    Thousandths,
    Word,
)

REASON_CHARS = 500
"""What of a reason is kept."""
LABELS_MOST = 100
"""Labels that may be ordered for one node."""
_KEY = r"^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
_VALUE_CHARS = 63


class Drain(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node gets no new job: since when (grid time), by whom, why, and until when its running jobs may continue
    (`deadline`, grid time; 0: to their end)."""

    since: Finite
    by: str = ""
    reason: str = ""
    deadline: Finite = 0.0


class Aside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The grid itself gives a node no new job after `failures` launches in a row failed there: for how many `seconds`,
    `until` when (grid time; 0: that time is over, and the node is on trial), and why the last launch failed."""

    until: Finite
    seconds: Finite
    failures: Count
    why: str = ""


class OwnerPolicy(StrEnum):
    """What happens to a node's jobs when its owner uses it."""

    CONTINUE = "continue"
    SUSPEND = "suspend"
    RECALL = "recall"


Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""Cores, or GB or MB of memory, as the configuration has them."""


class Lending(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Settings of what a node lends, and what becomes of its jobs when its owner is active: those of `resource_sharing`
    and of `nodes[].resource_sharing` that its agent follows, with the names and units of the configuration. None: not
    set."""

    enabled: bool | None = None
    can_share: bool | None = None
    max_share_cpu: Amount | None = None
    max_share_memory_gb: Amount | None = None
    max_share_gpu: Annotated[int, msgspec.Meta(ge=0, le=10_000)] | None = None
    priority: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    gpu_utilization_max: Percent | None = None
    gpu_memory_min_mb: Amount | None = None
    memory_percent_max: Percent | None = None
    memory_min_gb: Amount | None = None
    cpu_percent_max: Percent | None = None
    cpu_min_cores: Amount | None = None
    monitoring_interval_seconds: Span | None = None
    check_interval: Span | None = None
    offer_expiry: Span | None = None
    max_offers_per_node: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    owner_policy: OwnerPolicy | None = None
    owner_after: Span | None = None
    owner_quiet: Span | None = None
    owner_most: Span | None = None
    owner_hold: Span | None = None
    owner_pressure: Percent | None = None
    owner_input: bool | None = None

    def given(self) -> dict[str, Any]:
        """The settings that are set."""
        return {name: value for name in LENDING if (value := getattr(self, name)) is not None}


LENDING = Lending.__struct_fields__
ORDERED = ("can_share", "max_share_cpu", "max_share_memory_gb", "max_share_gpu")
"""What an operator may set for one node."""
ORIGIN_CHARS = 300
Origin = Annotated[str, msgspec.Meta(max_length=ORIGIN_CHARS)]


class Layer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings with the origin of each by its name: those of one source, or of several together."""

    values: Lending = Lending()
    origins: Annotated[dict[Word, Origin], msgspec.Meta(max_length=2 * len(LENDING))] = {}


NO_SETTINGS = Layer()


def over(*layers: Layer) -> Layer:
    """Merge these layers: what is set in a later one replaces what is set in an earlier one."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.values.given().items():
            values[name], origins[name] = value, layer.origins.get(name, "")[:ORIGIN_CHARS]
    return Layer(Lending(**values), origins)


class LendingOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The settings of a node that the operator `by` this name has set, `since` then (grid time)."""

    values: Lending
    since: Finite
    by: str = ""


class NodeOrders(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All orders for a node, by operators and (`aside`) by the grid itself. `labels` override those of its agent; None:
    the node has no such label, whatever its agent reports. `lending` overrides the configuration of the grid."""

    drain: Drain | None = None
    labels: dict[str, str | None] = {}
    aside: Aside | None = None
    lending: LendingOrder | None = None

    @property
    def open(self) -> bool:
        """Whether new jobs may start there: it is neither drained nor set aside."""
        return self.drain is None and (self.aside is None or not self.aside.until)

    def over(self, told: Mapping[str, str]) -> dict[str, str]:
        """The labels of the node: those its agent told, as the operator changed them."""
        if not self.labels:
            return dict(told)
        both = {**told, **self.labels}
        return {key: value for key, value in both.items() if value is not None}


NO_ORDERS = NodeOrders()


def parse_labels(words: Iterable[str]) -> dict[str, str | None]:
    """Parse `K=V` (set) and `K-` (remove). Raises BadValue."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not key.endswith("-"):
            raise BadValue(f"{word!r} is not a label", hint=f"{word}=VALUE sets it, {word}- removes it")
        key = key if equals else key[:-1]
        if key in found:
            raise BadValue(f"the label {key} is given twice", hint="give it once")
        found[key] = value if equals else None
    check_labels(found)
    return found


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Raise BadValue for names and values that labels cannot have."""
    if not labels:
        raise BadValue("no label is given", hint="KEY=VALUE sets one, KEY- removes it")
    if len(labels) > LABELS_MOST:
        raise BadValue(f"{len(labels)} labels at once", hint=f"{LABELS_MOST} are the most")
    for key, value in labels.items():
        if not re.match(_KEY, key):
            hint = "letters, digits, and . _ / - between them, up to 63"
            raise BadValue(f"a label cannot be called {key[:80]!r}", hint=hint)
        if value is not None and (len(value) > _VALUE_CHARS or not value.isprintable()):
            raise BadValue(
                f"the label {key} cannot have the value {value[:80]!r}", hint="up to 63 printable characters"
            )


class NodeState(StrEnum):
    """The state of a node's link, as the coordinator sees it: silent 6 s is suspect, 10 s disconnected, then lost."""

    UP = "up"
    SUSPECT = "suspect"
    DISCONNECTED = "disconnected"
    LOST = "lost"


Seal = Annotated[str, msgspec.Meta(max_length=64)]
OWNERS_MOST = 256
Owners = Annotated[tuple[Word, ...], msgspec.Meta(max_length=OWNERS_MOST)]
"""Users whom a node names as its owners."""


class GpuFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The constant properties of a GPU; `memory` in bytes. `stand_in`: announced as no real device. `numa`: the number
    of the NUMA node it is attached to (-1: not known)."""

    uuid: Word
    index: Place
    model: Word
    memory: Count
    stand_in: bool = False
    numa: Place = -1


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The properties of a node that do not change while its agent runs.

    `cores` are the cores the agent manages (numbers as the kernel's, or virtual ones); `memory` bytes it manages;
    `lendable` is the most it could ever lend, after `max_share_*` and `can_share`: what no request may exceed.
    `instance` is the same for all agents that ever run on one state directory, and of no others but those on a copy of
    it, which `directory` tells apart: the directory's device and inode. `address` is where the agent connects from, as
    the coordinator sees it. `limits` says who keeps a job's limits of memory, pids, cpuset and cpu: `cgroup v2`,
    `cgroup v1`, `polling`, `none`. `numa` holds the cores of each NUMA node by its number; empty: not known. `smt`
    holds the cores of each physical core that has several (protocol/sharing/slack.py). `ray` and `ray_python` are the
    versions of the Ray that would run its boosts, and of that one's Python; empty: none. `walls` is the level behind
    which jobs run there (protocol/placement.py), `walls_why` why none stronger; empty counts as `none`. Below
    `namespace` the node runs jobs of its `owners` (users of the grid) only, unless it `trusts` everyone. `nameless`:
    why the users of jobs there have no entry in what these see as /etc/passwd, behind walls `user`; empty: they have.
    `ends` says by what the node knows that nothing of a job lives (agent/launch/isolation.py). `machine`: the
    provider's name of this machine, as the machine itself was told; empty: not known. `unknown`: why the node does not
    know what ran on it before, and whether it lives; empty: it knows. `declared`: the free resources of a node without
    agent, as an operator declared them (coordinator/core/nodes/declared.py); None: it has an agent. Set by the
    coordinator, never by a node.
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
    smt: tuple[tuple[Index, ...], ...] = ()
    ray: Word = ""
    ray_python: Word = ""
    walls: Word = ""
    walls_why: Text = ""
    owners: Owners = ()
    trusts: Word = Trust.OWNER.value
    unknown: Text = ""
    nameless: Text = ""
    ends: Word = ""
    machine: Word = ""
    declared: Resources | None = None


_LOSS = "~"


def loss_suffix(instance: str, loss: str) -> str:
    """The `instance` of a node from when it lost the records of what ran on it."""
    return f"{instance.partition(_LOSS)[0]}{_LOSS}{loss}"


def lost_records(instance: str, before: str) -> bool:
    """Whether a node of this instance lost its records since it had that one."""
    base, mark, _ = instance.partition(_LOSS)
    return bool(mark) and before != instance and before.partition(_LOSS)[0] in ("", base)


class GpuProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that has memory on a GPU (bytes); `own` if it belongs to one of the grid's jobs. `graphics`: it only
    draws, as a display server does, and `utilisation` is what it used of the GPU lately, in percent (below 0: its
    driver does not tell)."""

    pid: Pid
    memory: Count = 0
    user: Word = ""
    own: bool = False
    graphics: bool = False
    utilisation: Finite = -1.0


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measurement of one GPU: utilisation in percent, bytes, degrees Celsius. A GPU that could not be read has
    `error` and nothing else; it is never taken for idle. `untold`: its driver does not tell the utilisation, as of MIG
    instances."""

    uuid: Word
    utilisation: Finite = 0.0
    memory_used: Count = 0
    memory_total: Count = 0
    temperature: Finite = 0.0
    processes: tuple[GpuProcess, ...] = ()
    error: Text = ""
    untold: bool = False

    def foreign_utilisation(self, lent: bool) -> float:
        """Return the utilisation by all except the grid's jobs, in percent. A driver reports it by process only for
        those that draw: beside a foreign process that computes, all of it is foreign. If it reports no processes, all
        is the grid's if a job holds this GPU (`lent`)."""
        if not self.processes:
            return 0.0 if lent else self.utilisation
        others = [one for one in self.processes if not one.own]
        if len(others) < len(self.processes) and all(one.graphics and one.utilisation >= 0 for one in others):
            return min(self.utilisation, sum(one.utilisation for one in others))
        return self.utilisation


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
    """A GPU as it is offered: `milli` of it is spare, with `memory_free` of its `memory` bytes."""

    uuid: Word
    index: Place
    model: Word
    memory: Count
    memory_free: Count
    milli: Thousandths = MILLI


class Withheld(msgspec.Struct, frozen=True, omit_defaults=True):
    """Resources that a node does not offer now, and why; `what` is cpu, memory, gpu, a GPU's UUID, or node."""

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
    """Resources of one node that one job holds, or, where there is a `next_after`, takes over when that job has ended.
    `suspended`: why it is frozen now for its owner, or (`by_holder`) for the job on whose cores it runs;
    `awaits_reader`: why until its output is read; empty where it is not."""

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
    awaits_reader: str = ""
    next_after: str = ""
    by_holder: bool = False


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

    @property
    def link(self) -> str:
        """Its state as text: `no agent` for a declared node."""
        return "no agent" if self.facts.declared is not None else str(self.state)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The coordinator's own word of how far its store had come when it told a node something: its epoch and the number
    of its last commit. `seal` is over both, the node and what it was told; only the coordinator can make and check it.
    A node keeps the stamp with what it was told and shows it with what it says of that."""

    epoch: Number
    commits: Number
    seal: Seal


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
    """One allocation an agent knows of, sent in full after every reconnect. `outcome` once it is over; `walls` is the
    level behind which its command runs or ran; `stamp` that of its launch. `awaits_reader`: why it is frozen until the
    reader of its output has read more, if so."""

    allocation: Word
    state: State
    outcome: Outcome | None = None
    started_for: Span = 0.0
    walls: str = ""
    stamp: Stamp | None = None
    awaits_reader: Text = ""


NAME_CHARS = 255
MOST_LABELS = 256
MOST_GPUS = 1024
MOST_NODE_MEMORY = 1 << 52
"""4 PiB. The sum over a whole grid stays within 63 bits."""


def check_facts(facts: NodeFacts) -> None:
    """Raise BadValue for facts that no node has, with the field and its bound."""
    for field, limit in (("memory", facts.memory), ("lendable.memory", facts.lendable.memory)):
        if limit > MOST_NODE_MEMORY:
            raise _out(field, limit, MOST_NODE_MEMORY)
    if facts.lendable.cpu > MOST_CPU:
        raise _out("lendable.cpu", facts.lendable.cpu, MOST_CPU)
    if facts.lendable.gpu > min(MOST_GPU, MOST_GPUS * MILLI):
        raise _out("lendable.gpu", facts.lendable.gpu, min(MOST_GPU, MOST_GPUS * MILLI))
    if len(facts.labels) > MOST_LABELS:
        raise _out("labels", len(facts.labels), MOST_LABELS)
    if len(facts.gpus) > MOST_GPUS:
        raise _out("gpus", len(facts.gpus), MOST_GPUS)
    if len({*facts.cores}) < len(facts.cores):
        raise BadValue("the facts of this node cannot be used", why="cores: a core is named twice")
    threads = [core for group in facts.smt for core in group]
    if len({*threads} & {*facts.cores}) < len(threads):
        raise BadValue(
            "the facts of this node cannot be used", why="smt: a core is named twice, or is none of the cores"
        )
    if len({gpu.uuid for gpu in facts.gpus}) < len(facts.gpus):
        raise BadValue("the facts of this node cannot be used", why="gpus: a GPU is named twice")
    named = [
        ("hostname", (facts.hostname,)),
        ("boot_id", (facts.boot_id,)),
        ("instance", (facts.instance,)),
        ("machine", (facts.machine,)),
        ("software", (facts.software, facts.python, facts.ray, facts.ray_python)),
        ("labels", (*facts.labels, *facts.labels.values())),
        ("limits", (*facts.limits, *facts.limits.values())),
        ("gpus.uuid", [gpu.uuid for gpu in facts.gpus]),
        ("gpus.model", [gpu.model for gpu in facts.gpus]),
    ]
    for field, words in named:
        _check_words(field, words)
    if not all(facts.labels) or not all(gpu.uuid for gpu in facts.gpus):
        raise BadValue("the facts of this node cannot be used", why="labels, gpus.uuid: a name is empty")


def _check_words(field: str, words: Iterable[str]) -> None:
    for word in words:
        if len(word) > NAME_CHARS or not word.isprintable():
            raise BadValue(
                "the facts of this node cannot be used",
                why=f"{field}: {word[:40]!r} is not at most {NAME_CHARS} printable characters",
            )


def _out(field: str, value: int, most: int) -> BadValue:
    return BadValue("the facts of this node cannot be used", why=f"{field} is {value}, and at most {most}")
