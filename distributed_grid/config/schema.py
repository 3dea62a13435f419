"""The one schema of the configuration: every setting with its default, what it may hold, and what it means."""

from collections.abc import Iterator
from dataclasses import field, fields
from enum import Enum, StrEnum
from typing import Any, NamedTuple, TypeVar

from distributed_grid.config.kinds import (
    AMOUNT,
    CGROUP,
    CORES,
    FLAG,
    FRACTION,
    LIMIT,
    LIMIT_GB,
    LIMIT_JOBS,
    OUTPUT_SIZE,
    PAIRS,
    PERCENT,
    PORT,
    PORTS,
    PRIORITY,
    SECONDS,
    SECONDS_OR_NONE,
    SIZE,
    TEXT,
    WEIGHTS,
    WORDS,
    Kind,
    choice,
    count,
    number,
)
from distributed_grid.config.section import section
from distributed_grid.protocol.boosts import JOIN_WITHIN, RayAuth
from distributed_grid.protocol.bundle import BUNDLE_BYTES
from distributed_grid.protocol.jobs import NODE_PIDS, PASSED_ON
from distributed_grid.protocol.nodes import OwnerPolicy
from distributed_grid.protocol.placement import Strategy, Trust

T = TypeVar("T")
Path = tuple[str, ...]


def setting(default: T, kind: Kind, doc: str) -> T:
    """A field of a section: its default, what it may hold, and a line about it."""
    if isinstance(default, dict):
        made: T = field(default_factory=lambda: dict(default), metadata={"kind": kind, "doc": doc})  # type: ignore
        return made
    value: T = field(default=default, metadata={"kind": kind, "doc": doc})
    return value


class OffloadingMode(StrEnum):
    """What the grid does with idle capacity by itself."""

    OFFLOAD_ONLY = "offload_only"
    SHARE_AND_OFFLOAD = "share_and_offload"
    DYNAMIC_BALANCING = "dynamic_balancing"


class SharingPolicy(StrEnum):
    """How eagerly it rebalances."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    PREDICTIVE = "predictive"


class GpuBackend(StrEnum):
    """How GPUs are read."""

    AUTO = "auto"
    NVML = "nvml"
    GPUTIL = "gputil"
    AMD = "amd"
    NONE = "none"


class WallsSetting(StrEnum):
    """Behind which walls a node runs jobs."""

    AUTO = "auto"
    USER = "user"
    NAMESPACE = "namespace"
    LANDLOCK = "landlock"
    NONE = "none"


@section(frozen=True)
class Coordinator:
    """The service on the master, and where to find it."""

    host: str = setting("127.0.0.1", TEXT, "address it listens on; none: its Unix socket only")
    port: int = setting(7433, PORT, "port it listens on, for agents and clients; 0 takes a free one")
    url: str = setting("", TEXT, "where agents and clients find it, as ws://HOST:PORT; empty: from host and port")
    user: str = setting("", TEXT, "another user of this machine whose coordinator may be used by ws://, without TLS")
    state_dir: str = setting("", TEXT, "where it keeps its state; empty: under the user's state directory")
    heartbeat: float = setting(2.0, SECONDS, "interval of agents' heartbeats, at most 3 s")
    lost_after: float = setting(
        60.0, SECONDS, "time a node may be disconnected (after 10 s of silence) before its jobs count as lost"
    )
    keep_days: float = setting(30.0, AMOUNT, "days that ended jobs are kept")
    keep_jobs: int = setting(
        1_000_000, count(0, 10**9, "a whole number from 0 up"), "maximum number of ended jobs that are kept"
    )
    keep_size: int = setting(2 << 30, SIZE, "maximum size of the store; the oldest ended jobs are removed first")
    event_log_size: int = setting(256 << 20, SIZE, "maximum size of the event log for grid replay; 0: no event log")
    memory_limit: int = setting(
        0, SIZE, "memory limit above which no new jobs are accepted; 0: four fifths of its cgroup's or machine's memory"
    )
    ship_quota: int = setting(
        0, SIZE, "quota of shipped files per user; 0: 10G, or a quarter of the free disk if that is less"
    )
    gang_ports: str = setting("29500-29999", PORTS, "ports for the rendezvous of gangs, on the node of rank 0")


@section(frozen=True)
class Agent:
    """The service on this machine. Empty lists of cores and GPUs and a memory of 0 mean all there is."""

    name: str = setting("", TEXT, "this node's name; empty: the host name")
    state_dir: str = setting("", TEXT, "where it keeps its state; empty: under the user's state directory")
    cores: tuple[int, ...] = setting((), CORES, "the cores it manages, such as 0-3,6")
    memory: int = setting(0, SIZE, "the memory it manages, such as 16G")
    gpus: tuple[str, ...] = setting((), WORDS, "the GPUs it manages, by UUID or index")
    gpu_backend: GpuBackend = setting(GpuBackend.AUTO, choice(GpuBackend), "how GPUs are read")
    reserve_cpu: float = setting(0.0, AMOUNT, "cores kept free for the owner")
    reserve_memory_gb: float = setting(0.5, AMOUNT, "memory kept free for the owner, in GB")
    labels: dict[str, str] = setting({}, PAIRS, "labels of this node")
    offer_after: float = setting(4.0, SECONDS_OR_NONE, "how long a core or GPU must be idle before it is offered")
    keep_days: float = setting(1.0, AMOUNT, "days that output and files of ended jobs are kept")
    keep_jobs: int = setting(
        1000,
        count(0, 10**9, "a whole number from 0 up"),
        "maximum number of ended jobs whose output and files are kept",
    )
    keep_size: int = setting(10 << 30, SIZE, "maximum disk space of these; the oldest are removed first")
    keep_output: int = setting(
        256 << 20,
        OUTPUT_SIZE,
        "maximum disk space of each output stream of a job; a job waits whose attached reader is further behind",
    )
    pids_limit: int = setting(
        NODE_PIDS,
        count(0, 1 << 22, "a whole number from 0 up"),
        "limit of processes and threads per job; 0: as the job asks",
    )
    nice: int = setting(15, count(0, 19, "a whole number from 0 to 19"), "niceness of jobs, from 0 (none) to 19")
    ray: str = setting("", TEXT, "the ray program for boosts; empty: that of this environment, or of the PATH")
    ray_ports: str = setting("20000-24999", PORTS, "where raylets of boosts listen on this node")
    ray_token: str = setting("", TEXT, "file with the Ray cluster's token, if it has one; empty: Ray's own place")
    cgroup: str = setting(
        "auto", CGROUP, "cgroup below which jobs get theirs: auto (what systemd delegated), none, or a path like /grid"
    )
    environment: tuple[str, ...] = setting(
        PASSED_ON,
        WORDS,
        "variables of the agent's environment that jobs get; * is a wildcard",
    )
    run_as: str = setting(
        "agent", TEXT, "user that jobs run as if the agent is root: agent (the same), submitter, or the name of a user"
    )
    walls: WallsSetting = setting(
        WallsSetting.AUTO,
        choice(WallsSetting),
        "walls behind which jobs run (docs/walls.md); auto: the strongest available",
    )
    owners: tuple[str, ...] = setting(
        (),
        WORDS,
        "users of the grid whose jobs run here also behind walls weaker than namespace; empty: the user of the agent",
    )
    trust: Trust = setting(
        Trust.OWNER,
        choice(Trust),
        "whose jobs run here behind walls weaker than namespace: owner (only those of its owners) or everyone",
    )
    virtual: bool = setting(False, FLAG, "number the cores without pinning to real ones (for trying out)")
    siblings: str = setting("", TEXT, "directory of sibling agents on this machine, whose jobs are not foreign")


@section(frozen=True)
class Thresholds:
    """When a node lends (judged on what others than the grid use), and when it counts as under pressure."""

    gpu_utilization_max: float = setting(20.0, PERCENT, "a GPU is offered while others use at most this percentage")
    gpu_memory_min_mb: float = setting(1024.0, AMOUNT, "a GPU is offered while this much memory is free, in MB")
    memory_percent_max: float = setting(50.0, PERCENT, "memory is offered while others use at most this percentage")
    memory_min_gb: float = setting(2.0, AMOUNT, "memory is offered from this much up, in GB")
    cpu_percent_max: float = setting(30.0, PERCENT, "cores are offered while others use at most this percentage")
    cpu_min_cores: float = setting(1.0, AMOUNT, "cores are offered from this many up")
    cpu_pressure_high: float = setting(0.8, FRACTION, "CPU pressure above which a node is to borrow")
    cpu_pressure_low: float = setting(0.3, FRACTION, "CPU pressure below which a node may lend")
    memory_pressure_high: float = setting(0.8, FRACTION, "memory pressure above which a node is to borrow")
    memory_pressure_low: float = setting(0.3, FRACTION, "memory pressure below which a node may lend")
    gpu_pressure_high: float = setting(0.8, FRACTION, "GPU pressure above which a node is to borrow")
    gpu_pressure_low: float = setting(0.3, FRACTION, "GPU pressure below which a node may lend")
    excess_threshold: float = setting(0.2, FRACTION, "share of a node that must be spare before it lends by itself")


@section(frozen=True)
class ResourceSharing:
    """Lending and borrowing."""

    enabled: bool = setting(True, FLAG, "false: nothing is offered and nothing is run")
    mode: OffloadingMode = setting(
        OffloadingMode.DYNAMIC_BALANCING, choice(OffloadingMode), "which balancing the grid does by itself"
    )
    policy: SharingPolicy = setting(SharingPolicy.BALANCED, choice(SharingPolicy), "how eagerly it rebalances")
    strategy: Strategy = setting(
        Strategy.BEST_FIT, choice(Strategy), "which node a job goes to, of those that could take it"
    )
    rebalance_interval_seconds: float = setting(30.0, SECONDS, "how often rebalancing is considered")
    monitoring_interval_seconds: float = setting(2.0, SECONDS, "how often a node measures itself")
    check_interval: float = setting(60.0, SECONDS, "maximum interval between repetitions of an unchanged offer")
    offer_expiry: float = setting(300.0, SECONDS, "lifetime of an offer")
    max_offers_per_node: int = setting(5, count(1, 10_000, "a whole number from 1 to 10000"), "items in one offer")
    owner_policy: OwnerPolicy = setting(
        OwnerPolicy.SUSPEND, choice(OwnerPolicy), "what happens to jobs while the owner uses the node"
    )
    owner_after: float = setting(1.0, SECONDS_OR_NONE, "time the owner must be active before jobs are affected")
    owner_quiet: float = setting(30.0, SECONDS_OR_NONE, "time the owner must be inactive before jobs continue")
    owner_most: float = setting(600.0, SECONDS_OR_NONE, "time a job is suspended before it is recalled; 0: no limit")
    owner_hold: float = setting(60.0, SECONDS_OR_NONE, "age before which a job is suspended rather than recalled")
    owner_pressure: float = setting(
        40.0, PERCENT, "percentage of time others' programs may wait for cpu, memory or io (PSI); 100: no limit"
    )
    owner_input: bool = setting(False, FLAG, "use of keyboard and terminals counts as activity of the owner")
    thresholds: Thresholds = field(default_factory=Thresholds)


class Placement(StrEnum):
    """Who has the last word on where a job goes."""

    EMBEDDED = "embedded"
    RAY = "ray"


class UnusedPolicy(StrEnum):
    """What becomes of a job that uses none of the GPUs it holds."""

    WARN = "warn"
    RELEASE_AFTER = "release-after"


@section(frozen=True)
class Unused:
    """Cores and GPUs that jobs hold and do not use."""

    window: float = setting(600.0, SECONDS, "time all samples must be below the threshold before the submitter is told")
    threshold: float = setting(0.15, FRACTION, "below this share of its cores, or of a GPU, a job does not use them")
    policy: UnusedPolicy = setting(UnusedPolicy.WARN, choice(UnusedPolicy), "what becomes of unused GPUs")
    time: float = setting(1800.0, SECONDS, "release-after: time between that notice and the end of the job")


@section(frozen=True)
class Shipping:
    """What a client sends along with a job."""

    ceiling: int = setting(BUNDLE_BYTES, SIZE, "maximum size of a directory that is shipped; read by who submits")


@section(frozen=True)
class FairShare:
    """Who is served next among users of one class of priority (docs/shares.md)."""

    half_life: float = setting(86_400.0, SECONDS, "half-life of past use")
    weights: dict[str, float] = setting({}, WEIGHTS, "weights of users, such as ann: 2; default 1")


@section(frozen=True)
class NodeSharing:
    """What one node lends at most, and its own owner's policy. Unset: all that is spare, and as in resource_sharing."""

    can_share: bool = setting(True, FLAG, "false: this node lends nothing")
    max_share_cpu: float | None = setting(None, AMOUNT, "cores lent at most")
    max_share_memory_gb: float | None = setting(None, AMOUNT, "memory lent at most, in GB")
    max_share_gpu: int | None = setting(None, count(0, 10_000, "a whole number from 0 up"), "GPUs lent at most")
    priority: float = setting(1.0, number(0, 1e6, "a number from 0 up"), "weight of this node when it is chosen")
    owner_policy: OwnerPolicy | None = setting(
        None, choice(OwnerPolicy), "what happens to jobs while its owner uses it"
    )
    owner_after: float | None = setting(None, SECONDS_OR_NONE, "time its owner must be active before jobs are affected")
    owner_quiet: float | None = setting(None, SECONDS_OR_NONE, "time its owner must be inactive before jobs continue")
    owner_most: float | None = setting(None, SECONDS_OR_NONE, "time a job is suspended there before it is recalled")
    owner_hold: float | None = setting(None, SECONDS_OR_NONE, "age before which a job is suspended, not recalled")
    owner_pressure: float | None = setting(None, PERCENT, "percentage of time its owner's programs may wait (PSI)")
    owner_input: bool | None = setting(None, FLAG, "use of its keyboard and terminals counts as activity of its owner")


@section(frozen=True)
class Node:
    """Settings of one node, by its name."""

    name: str = setting("", TEXT, "the node's name, as its agent gives it")
    resource_sharing: NodeSharing = field(default_factory=NodeSharing)


@section(frozen=True)
class Ray:
    """The Ray cluster, where there is one."""

    address: str = setting("", TEXT, "address of its head, HOST:PORT; empty: there is none")
    auth: RayAuth = setting(RayAuth.DISABLED, choice(RayAuth), "how Ray's processes know each other (RAY_AUTH_MODE)")
    token: str = setting("", TEXT, "file with the cluster's token, where auth is token; empty: Ray's own place")
    join_within: float = setting(
        JOIN_WITHIN, SECONDS, "time that a boost's raylet may take from its start until Ray shows it"
    )


@section(frozen=True)
class Preemption:
    """When an urgent job may take the place of others (docs/preemption.md)."""

    min_hold: float = setting(
        10.0, SECONDS_OR_NONE, "minimum run time before a job can be preempted; doubled after each preemption"
    )
    min_hold_most: float = setting(3600.0, SECONDS_OR_NONE, "maximum of min_hold after doubling")
    notice: float = setting(5.0, SECONDS_OR_NONE, "notice period, before the job's own grace period")
    grace_most: float = setting(60.0, SECONDS_OR_NONE, "maximum of notice and grace period together")
    hold: float = setting(10.0, SECONDS, "time that the freed resources are reserved beyond that")
    badput_budget: float = setting(
        3_600_000.0, AMOUNT, "core-seconds of work that preemption may lose per hour; 0: no preemption"
    )


@section(frozen=True)
class Certificates:
    """How long what the grid's authority signs holds (docs/security.md)."""

    agent_life: float = setting(
        7 * 86_400.0, SECONDS, "validity of a node's certificate, which is renewed automatically"
    )
    person_life: float = setting(90 * 86_400.0, SECONDS, "validity of a person's certificate, which is renewed on use")
    server_life: float = setting(
        90 * 86_400.0, SECONDS, "validity of the coordinator's certificate, which is renewed automatically"
    )
    renew_expired: float = setting(
        30 * 86_400.0, SECONDS_OR_NONE, "time after expiry in which a node with live jobs may renew its certificate"
    )


@section(frozen=True)
class RightsOf:
    """What somebody may ask for, hold and use (docs/rights.md). Unset, for a user: as in rights.default; for a group:
    unlimited, beside the rights of its members."""

    highest_priority: str | None = setting(None, PRIORITY, "highest priority of jobs")
    cores: float | None = setting(None, LIMIT, "cores held at once")
    memory_gb: float | None = setting(None, LIMIT_GB, "memory held at once, in GB")
    gpus: float | None = setting(None, LIMIT, "GPUs held at once")
    core_hours_per_day: float | None = setting(None, LIMIT, "core-hours used in a day of UTC")
    gpu_hours_per_day: float | None = setting(None, LIMIT, "GPU-hours used in a day of UTC")
    jobs_waiting: int | None = setting(None, LIMIT_JOBS, "jobs that wait, with the members of arrays and gangs")
    exclusive_boosts: bool | None = setting(None, FLAG, "may ask for exclusive boosts")
    reservations: bool | None = setting(None, FLAG, "a node is reserved for the first job that cannot start yet")


@section(frozen=True)
class DefaultRights(RightsOf):
    """The rights of all users but operators; unset: unlimited."""

    highest_priority: str | None = setting("high", PRIORITY, "highest priority of jobs")


@section(frozen=True)
class UserRights(RightsOf):
    """The rights of one user, by name. Unset: as in rights.default."""

    name: str = ""


@section(frozen=True)
class GroupOfUsers(RightsOf):
    """The rights of a group, by name: quotas that its members share, and what each member may ask for."""

    name: str = ""
    members: tuple[str, ...] = setting((), WORDS, "users of the grid")


@section(frozen=True)
class RightsSection:
    """What users and groups may ask for, hold and use (docs/rights.md)."""

    default: DefaultRights = field(default_factory=DefaultRights)
    users: tuple[UserRights, ...] = ()
    groups: tuple[GroupOfUsers, ...] = ()


@section(frozen=True)
class Root:
    """The whole file."""

    name: str = setting("grid", TEXT, "what this grid is called")
    placement: Placement = setting(
        Placement.EMBEDDED,
        choice(Placement),
        "ray: Ray reserves what a job is granted before it starts (docs/placement-by-ray.md)",
    )
    coordinator: Coordinator = field(default_factory=Coordinator)
    agent: Agent = field(default_factory=Agent)
    resource_sharing: ResourceSharing = field(default_factory=ResourceSharing)
    nodes: tuple[Node, ...] = ()
    ray: Ray = field(default_factory=Ray)
    unused: Unused = field(default_factory=Unused)
    preemption: Preemption = field(default_factory=Preemption)
    fair_share: FairShare = field(default_factory=FairShare)
    shipping: Shipping = field(default_factory=Shipping)
    certificates: Certificates = field(default_factory=Certificates)
    rights: RightsSection = field(default_factory=RightsSection)


class Setting(NamedTuple):
    """One setting of a section: its name, what it may hold, its default, and its line of documentation."""

    name: str
    kind: Kind
    default: Any
    doc: str


def settings_of(section: type[Any]) -> list[Setting]:
    """The settings of a section, without its subsections."""
    blank = section()
    return [
        Setting(f.name, f.metadata["kind"], getattr(blank, f.name), f.metadata["doc"])
        for f in fields(section)
        if "kind" in f.metadata
    ]


def sections_of(section: type[Any]) -> dict[str, type[Any]]:
    """The subsections of a section by name; the list of nodes, and the name of a section, are none."""
    blank = section()
    return {
        f.name: type(value)
        for f in fields(section)
        if "kind" not in f.metadata and not isinstance(value := getattr(blank, f.name), tuple | str)
    }


def walk(section: type[Any], at: Path = ()) -> Iterator[tuple[Path, Setting]]:
    """Every setting below a section, with its path."""
    for one in settings_of(section):
        yield (*at, one.name), one
    for name, below in sections_of(section).items():
        yield from walk(below, (*at, name))


SETTINGS: dict[Path, Setting] = dict(walk(Root))
NODE_SETTINGS: dict[Path, Setting] = dict(walk(Node))
NAMED: dict[Path, type[Any]] = {("rights", "users"): UserRights, ("rights", "groups"): GroupOfUsers}
"""Maps from names that people choose to sections."""

_SHARING = ("resource_sharing",)
UNUSED: frozenset[Path] = frozenset(
    (*_SHARING, name) for name in ("mode", "policy", "rebalance_interval_seconds")
) | frozenset(
    (*_SHARING, "thresholds", name)
    for name in Thresholds.__dataclass_fields__
    if name == "excess_threshold" or "_pressure_" in name
)
"""Settings that are accepted and used by nothing yet."""
MOVED: dict[Path, Path] = {("execution", "resource_sharing"): _SHARING}
"""Sections that may also stand elsewhere."""
ALIASES: dict[Path, Path] = {
    ("cluster",): ("name",),
    ("cluster", "name"): ("name",),
    (*_SHARING, "rebalance_interval"): (*_SHARING, "rebalance_interval_seconds"),
    (*_SHARING, "monitoring_interval"): (*_SHARING, "monitoring_interval_seconds"),
    (*_SHARING, "check_interval_seconds"): (*_SHARING, "check_interval"),
    (*_SHARING, "offer_expiry_seconds"): (*_SHARING, "offer_expiry"),
    (*_SHARING, "excess_threshold"): (*_SHARING, "thresholds", "excess_threshold"),
} | {
    (*_SHARING, "pressure_thresholds", what, level): (*_SHARING, "thresholds", f"{what}_pressure_{level}")
    for what in ("cpu", "memory", "gpu")
    for level in ("high", "low")
}
"""Other names of single settings, as the seeds have them."""


def format_value(value: Any) -> str:
    """A value as it would be written in the file."""
    if value is None or value == "":
        return '""' if value == "" else "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def template() -> str:
    """A file to start from: every setting with its default and a line about it; those seldom changed are comments."""
    lines = [
        "# Settings of the grid. What is left out has the default shown. Durations: seconds, 30m, 1h30m.",
        "# Check this file with: grid config check",
        "",
    ]
    lines += _section(Root, 0, "")
    lines += [
        "",
        "# Settings of single nodes, by name.",
        "# nodes:",
        "# - name: gpu-master",
        "#   resource_sharing:",
    ]
    for one in settings_of(NodeSharing):
        lines.append(f"#     {one.name}: {format_value(one.default)}  # {one.doc}")
    return "\n".join(lines) + "\n"


_PLAIN = {"name", "enabled", "host", "port", "check_interval", "offer_expiry", "max_offers_per_node"}


def _section(section: type[Any], depth: int, above: str) -> Iterator[str]:
    indent = "  " * depth
    for one in settings_of(section):
        plain = above in ("", "coordinator", "resource_sharing") and one.name in _PLAIN or above == "thresholds"
        unused = ((*_SHARING, above, one.name) if above == "thresholds" else (above, one.name)) in UNUSED
        about = one.doc + "; used by nothing yet" * unused
        yield f"{indent}{'' if plain and not unused else '# '}{one.name}: {format_value(one.default)}  # {about}"
    for name, below in sections_of(section).items():
        if depth == 0:
            yield ""
        yield f"{indent}{name}:  # {_first_line(below)}"
        yield from _section(below, depth + 1, name)
    if section is RightsSection:
        yield f"{indent}# users: {{ann: {{highest_priority: urgent, cores: 64}}}}  # single users, by name"
        yield f"{indent}# groups: {{lab: {{members: [ann, bob], gpus: 8}}}}  # groups, by name"


def _first_line(section: type[Any]) -> str:
    return (section.__doc__ or "").partition("\n")[0].rstrip(".")


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors. It has the other names too; what contradicts itself only the check
    finds."""
    root = _schema_of(Root)
    node = _schema_of(Node)
    node["required"] = ["name"]
    root["properties"]["nodes"] = {"type": "array", "items": node}
    for path, below in NAMED.items():
        _put(root, path, {"type": ["object", "null"], "additionalProperties": _schema_of(below)})
    for alias, target in sorted(ALIASES.items(), key=lambda item: len(item[0])):
        _put(root, alias, _property(SETTINGS[target]) | {"description": f"the same as {'.'.join(target)}"})
    for there, here in MOVED.items():
        _put(root, there, root["properties"][here[0]])
    root["properties"]["cluster"] = {
        "anyOf": [{"type": "string"}, {"type": "object", "properties": {"name": {"type": "string"}}}]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Distributed Grid"} | root


def _schema_of(section: type[Any]) -> dict[str, Any]:
    properties = {one.name: _property(one) for one in settings_of(section)}
    properties |= {name: _schema_of(below) for name, below in sections_of(section).items()}
    return _object(properties) | {"description": _first_line(section)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    # A section whose settings are all comments reads as null.
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _property(one: Setting) -> dict[str, Any]:
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    return dict(one.kind.schema) | {"description": one.doc, "default": default}


def _put(schema: dict[str, Any], path: Path, what: dict[str, Any]) -> None:
    for name in path[:-1]:
        schema = schema["properties"].setdefault(name, _object({}))
        schema.setdefault("properties", {})
    schema["properties"][path[-1]] = what
