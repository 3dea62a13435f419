"""The one schema of the configuration: every setting with its default, its kind of value, and its meaning."""

from dataclasses import field
from enum import StrEnum
from typing import Any

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
    PORT,
    PORTS,
    PRIORITY,
    SECONDS,
    SECONDS_OR_NONE,
    SIZE,
    TEXT,
    WEIGHTS,
    WORDS,
    Path,
    Setting,
    choice,
    count,
    setting,
    walk,
)
from distributed_grid.config.scaling import PoolSection, ProvidersSection, ScalingSection
from distributed_grid.config.section import section
from distributed_grid.config.sharing import (
    Node,
    ResourceSharing,
)
from distributed_grid.protocol.boosts import JOIN_WITHIN, RayAuth
from distributed_grid.protocol.bundle import BUNDLE_BYTES
from distributed_grid.protocol.jobs import NODE_PIDS, PASSED_ON, ServiceOrder
from distributed_grid.protocol.placement import Trust


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

    host: str = setting("127.0.0.1", TEXT, "address it listens on (::, of IPv6 alone); none: its Unix socket only")
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
    history_size: int = setting(512 << 20, SIZE, "maximum size of the history of nodes' use (history.db); 0: none")
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
    memory: int = setting(0, SIZE, "the memory it manages, such as 16G; 0: all there is")
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


class Placement(StrEnum):
    """Who has the last word on where a job goes."""

    EMBEDDED = "embedded"
    RAY = "ray"


class UnusedPolicy(StrEnum):
    """What becomes of a job that uses none of the GPUs it holds."""

    WARN = "warn"
    RELEASE_AFTER = "release-after"


@section(frozen=True)
class PredictorSection:
    """What commands need, learned from what their runs used (docs/needs.md)."""

    history_retention: float = setting(90 * 86400.0, SECONDS, "for how long what runs used is kept, in usage.db")


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

    order: ServiceOrder = setting(
        ServiceOrder.WAITING,
        choice(ServiceOrder),
        "by waiting time, against limit and share; or by share, then age",
    )
    half_life: float = setting(86_400.0, SECONDS, "half-life of past use")
    weights: dict[str, float] = setting({}, WEIGHTS, "weights of users, such as ann: 2; default 1")
    credit: float = setting(0.1, FRACTION, "part of a share that what a user lent others, or borrowed, counts at most")


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
    predictor: PredictorSection = field(default_factory=PredictorSection)
    preemption: Preemption = field(default_factory=Preemption)
    fair_share: FairShare = field(default_factory=FairShare)
    shipping: Shipping = field(default_factory=Shipping)
    certificates: Certificates = field(default_factory=Certificates)
    rights: RightsSection = field(default_factory=RightsSection)
    scaling: ScalingSection = field(default_factory=ScalingSection)
    providers: ProvidersSection = field(default_factory=ProvidersSection)
    pools: tuple[PoolSection, ...] = ()


SETTINGS: dict[Path, Setting] = dict(walk(Root))
NODE_SETTINGS: dict[Path, Setting] = dict(walk(Node))
POOL_SETTINGS: dict[Path, Setting] = dict(walk(PoolSection))
NAMED: dict[Path, type[Any]] = {("rights", "users"): UserRights, ("rights", "groups"): GroupOfUsers}
"""Maps from names that people choose to sections."""

_SHARING = ("resource_sharing",)
MOVED: dict[Path, Path] = {("execution", "resource_sharing"): _SHARING} | {
    (name,): ("providers", name) for name in ("aws", "gcp", "docker_local")
}
"""Sections that may also stand elsewhere, as the seeds have them."""
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
