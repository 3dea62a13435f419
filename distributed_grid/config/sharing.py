"""The sections of the configuration about what is lent, by whom and when: `resource_sharing` for all nodes, and `nodes`
for single ones."""

from dataclasses import field

from distributed_grid.config.kinds import (
    AMOUNT,
    FLAG,
    FRACTION,
    PERCENT,
    SECONDS,
    SECONDS_OR_NONE,
    TEXT,
    choice,
    count,
    number,
    setting,
)
from distributed_grid.config.section import section
from distributed_grid.protocol.nodes import OwnerPolicy
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.sharing.policies import OffloadingMode, PolicyName


@section(frozen=True)
class Thresholds:
    """When a node lends (judged on what others than the grid use), and the marks of rebalancing."""

    gpu_utilization_max: float = setting(20.0, PERCENT, "a GPU is offered while others use at most this percentage")
    gpu_memory_min_mb: float = setting(1024.0, AMOUNT, "a GPU is offered while this much memory is free, in MB")
    memory_percent_max: float = setting(50.0, PERCENT, "memory is offered while others use at most this percentage")
    memory_min_gb: float = setting(2.0, AMOUNT, "memory is offered from this much up, in GB")
    cpu_percent_max: float = setting(30.0, PERCENT, "cores are offered while others use at most this percentage")
    cpu_min_cores: float = setting(1.0, AMOUNT, "cores are offered from this many up")
    cpu_pressure_high: float = setting(
        0.8, FRACTION, "part of what a Ray cluster has of CPU that is asked for, above which it is lent to"
    )
    cpu_pressure_low: float = setting(0.3, FRACTION, "CPU pressure of its owner below which a node lends by itself")
    memory_pressure_high: float = setting(
        0.8, FRACTION, "part of what a Ray cluster has of memory that is asked for, above which it is lent to"
    )
    memory_pressure_low: float = setting(
        0.3, FRACTION, "memory pressure of its owner below which a node lends by itself"
    )
    gpu_pressure_high: float = setting(
        0.8, FRACTION, "part of what a Ray cluster has of GPU that is asked for, above which it is lent to"
    )
    gpu_pressure_low: float = setting(0.3, FRACTION, "GPU pressure of its owner below which a node lends by itself")
    excess_threshold: float = setting(
        0.2, FRACTION, "part of a node that stays free when it lends by itself (balanced, predictive)"
    )


@section(frozen=True)
class ResourceSharing:
    """Lending and borrowing."""

    enabled: bool = setting(True, FLAG, "false: nothing is offered and nothing is run")
    mode: OffloadingMode = setting(
        OffloadingMode.DYNAMIC_BALANCING,
        choice(OffloadingMode),
        "offload_only: no boosts; share_and_offload: on request; dynamic_balancing: and the grid lends by itself",
    )
    policy: PolicyName = setting(PolicyName.BALANCED, choice(PolicyName), "how eagerly it does (docs/sharing.md)")
    strategy: Strategy = setting(
        Strategy.BEST_FIT, choice(Strategy), "which node a job goes to, of those that could take it"
    )
    rebalance_interval_seconds: float = setting(30.0, SECONDS, "interval between two passes of rebalancing")
    monitoring_interval_seconds: float = setting(2.0, SECONDS, "how often a node measures itself")
    check_interval: float = setting(60.0, SECONDS, "maximum interval between repetitions of an unchanged offer")
    offer_expiry: float = setting(300.0, SECONDS, "lifetime of an offer")
    max_offers_per_node: int = setting(
        5, count(1, 10_000, "a whole number from 1 to 10000"), "items in one offer: CPU, memory, and each GPU"
    )
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
    owner: str = setting("", TEXT, "user of the grid who lends it (docs/shares.md); in the master's file only")
    resource_sharing: NodeSharing = field(default_factory=NodeSharing)
