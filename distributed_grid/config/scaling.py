"""The sections of the configuration about machines that the grid creates by itself: `scaling`, `providers` and `pools`
(docs/scaling.md). Prices are per hour, in the same currency as the limits."""

import re
from collections.abc import Mapping
from dataclasses import field, fields
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from distributed_grid.config.kinds import (
    AMOUNT,
    FLAG,
    FRACTION,
    PAIRS,
    SECONDS,
    TEXT,
    WORDS,
    Kind,
    Problem,
    choice,
    count,
    did_you_mean,
    number,
    setting,
)
from distributed_grid.config.section import section
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import MILLI, Resources, parse_memory
from distributed_grid.protocol.scaling import pools
from distributed_grid.protocol.scaling.pools import Billing, Orphans, ScalingMode, Shape, check_pool_name

PRICE_MOST = 1e6
TYPES_MOST = 64
WORD_MOST = 255
"""Maximum length of a type, a zone, or a label and its value: more than any provider takes."""
ABANDONED_LEAST = 60.0
"""Least `abandoned_after` (s): a coordinator that is started again, or agents that all connect again, take a while."""
QUEUE_WITHIN = 86_400.0
_SECRET = re.compile(r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")
_SHAPE = ("cpus", "memory", "gpus", "gpu_model", "gpu_memory")


PRICE = number(0, PRICE_MOST, "a price from 0 up")
MACHINES = count(0, 100_000, "a whole number from 0 up")
_CPUS = number(0, 65536, "a number from 0 to 65536")
_GPUS = count(0, 1024, "a whole number from 0 to 1024")


def _prices(parts: list[str]) -> dict[str, float]:
    """Prices by type; of the only type by an empty name."""
    if len(parts) == 1 and "=" not in parts[0]:
        return {"": PRICE.parse(parts)} if parts[0].strip() else {}
    found = {}
    for part in parts:
        type, _, text = part.partition("=")
        found[type.strip()] = PRICE.parse([text])
    return found


def _shapes(parts: list[str]) -> dict[str, dict[str, str]]:
    """`TYPE.KEY=VALUE` as a map of maps."""
    found: dict[str, dict[str, str]] = {}
    for part in parts:
        path, equals, text = part.partition("=")
        type, dot, key = path.strip().rpartition(".")
        if not (equals and dot and type):
            raise ValueError
        if key not in _SHAPE:
            raise BadValue(f"unknown key {key!r} in the shape of {type}", hint=did_you_mean(key, _SHAPE))
        found.setdefault(type, {})[key] = text.strip()
    for type, one in found.items():
        _shape(type, one)
    return found


def _shape(type: str, keys: Mapping[str, str]) -> Shape:
    """A shape of its keys, without a price. Raises ValueError."""
    cpus, gpus = _CPUS.parse([keys.get("cpus", "0")]), _GPUS.parse([keys.get("gpus", "0")])
    memory = parse_memory(keys["memory"]) if keys.get("memory", "0") != "0" else 0
    gpu_memory = parse_memory(keys["gpu_memory"]) if keys.get("gpu_memory", "0") != "0" else 0
    wanted = Resources(int(cpus * MILLI), memory, gpus * MILLI)
    return Shape(type=type, resources=wanted, gpu_model=keys.get("gpu_model", ""), gpu_memory=gpu_memory)


def _secret(parts: list[str]) -> str:
    if parts[0] and not _SECRET.match(parts[0]):
        raise ValueError
    return parts[0]


PRICES = Kind(
    "a price per hour from 0 up for each type",
    _prices,
    {"anyOf": [PRICE.schema, {"type": "object", "additionalProperties": PRICE.schema}]},
    "map",
)
SHAPES = Kind(
    "for each type: " + ", ".join(_SHAPE),
    _shapes,
    {"type": "object", "additionalProperties": {"type": "object", "properties": {name: {} for name in _SHAPE}}},
    "maps",
)
SECRET = Kind(
    "${NAME}, a variable of the coordinator's environment: secrets stand in no file", _secret, {"type": "string"}
)


@section(frozen=True)
class ScalingSection:
    """Machines that the grid creates and ends by itself (docs/scaling.md)."""

    mode: ScalingMode = setting(
        ScalingMode.PLAN, choice(ScalingMode), "off; plan: tells what it would do; act: and does it"
    )
    max_workers: int = setting(20, MACHINES, "maximum number of machines of all pools together")
    max_cost_per_hour: float | None = setting(None, PRICE, "maximum of what all machines cost per hour together")
    max_cost_per_day: float | None = setting(None, PRICE, "maximum of what all machines cost in a day of UTC")
    target_utilization: float = setting(0.7, FRACTION, "utilisation that is left where a machine is removed")
    scale_up_threshold: float = setting(
        0.8, FRACTION, "utilisation over a window from which on one more machine is added while jobs wait"
    )
    scale_down_threshold: float = setting(
        0.3, FRACTION, "utilisation over a window down to which one machine is removed"
    )
    evaluation_window: float = setting(300.0, SECONDS, "the window over which utilisation counts")
    scale_up_cooldown: float = setting(300.0, SECONDS, "time between two machines added because of utilisation")
    scale_down_cooldown: float = setting(600.0, SECONDS, "time between two machines removed because of utilisation")
    worker_reassessment_interval: float = setting(3600.0, SECONDS, "maximum time between two plans")
    history_retention: float = setting(86_400.0, SECONDS, "time that machines are remembered that are gone")
    look: float = setting(30.0, SECONDS, "interval at which providers are asked for all their machines")
    orphans: Orphans = setting(
        Orphans.END, choice(Orphans), "what becomes of a machine of this grid that no record knows: end or report"
    )
    orphan_after: float = setting(300.0, SECONDS, "age from which on such a machine is ended")


@section(frozen=True)
class AwsCredentials:
    """Credentials of AWS; without them those of the coordinator's machine are used."""

    access_key_id: str = setting("", SECRET, "as ${AWS_ACCESS_KEY_ID}")
    secret_access_key: str = setting("", SECRET, "as ${AWS_SECRET_ACCESS_KEY}")
    session_token: str = setting("", SECRET, "as ${AWS_SESSION_TOKEN}")


@section(frozen=True)
class Aws:
    """Amazon EC2."""

    region: str = setting("", TEXT, "region, such as us-west-2")
    instance_types: dict[str, str] = setting({}, PAIRS, "types by use, such as cpu: c5.xlarge; pools may name the use")
    spot_instance_enabled: bool = setting(False, FLAG, "spot instances, where a pool does not say")
    image: str = setting("", TEXT, "machine image (AMI) with the grid installed")
    subnets: dict[str, str] = setting({}, PAIRS, "subnet by zone")
    security_groups: tuple[str, ...] = setting((), WORDS, "ids of security groups")
    instance_profile: str = setting("", TEXT, "name of the instance profile; empty: none")
    endpoint: str = setting("", TEXT, "another endpoint of the EC2 API")
    credentials: AwsCredentials = field(default_factory=AwsCredentials)


@section(frozen=True)
class Gcp:
    """Google Compute Engine."""

    project: str = setting("", TEXT, "the project")
    zone: str = setting("", TEXT, "zone, where a pool names none")
    machine_types: dict[str, str] = setting({}, PAIRS, "types by use, such as cpu: n2-standard-4")
    preemptible_enabled: bool = setting(False, FLAG, "spot machines, where a pool does not say")
    image: str = setting("", TEXT, "machine image with the grid installed")
    network: str = setting("", TEXT, "network; empty: the project's default")
    credentials_file: str = setting("", TEXT, "file with a service account's key; empty: those of this machine")
    endpoint: str = setting("", TEXT, "another endpoint of the Compute API")


@section(frozen=True)
class DockerLocal:
    """Containers on this machine."""

    image: str = setting("", TEXT, "image with the grid installed")
    cpu_limit: float = setting(0.0, AMOUNT, "cores of a container, where a pool does not say")
    memory_limit: str = setting("", TEXT, "memory of a container, such as 16g, where a pool does not say")
    network: str = setting("host", TEXT, "network of the containers")
    volumes: tuple[str, ...] = setting((), WORDS, "directories of this machine in them, such as /data:/data:ro")
    python: str = setting("python3", TEXT, "Python in the image that has the grid")
    socket: str = setting("", TEXT, "the engine's address; empty: DOCKER_HOST, or its usual socket")


@section(frozen=True)
class ProcessSection:
    """Agents as processes on this machine."""

    directory: str = setting("", TEXT, "where they keep their state; empty: below the coordinator's")


@section(frozen=True)
class SlurmSection:
    """Jobs of a Slurm cluster that run an agent each."""

    partition: str = setting("", TEXT, "partition, where a pool names none")
    account: str = setting("", TEXT, "account that pays")
    qos: str = setting("", TEXT, "quality of service")
    options: tuple[str, ...] = setting((), WORDS, "further options of sbatch, such as --output=grid-%x.log")
    directory: str = setting("", TEXT, "directory of agents on the compute nodes; empty: below /tmp")
    python: str = setting("", TEXT, "Python there that has the grid; empty: the coordinator's, by the same path")
    notice: float = setting(120.0, SECONDS, "time before the end of a job at which its agent takes no more jobs")


@section(frozen=True)
class CommandSection:
    """Your own programs, with JSON on stdin and stdout."""

    create: str = setting("", TEXT, "program that creates a machine")
    list: str = setting("", TEXT, "program that lists them")
    end: str = setting("", TEXT, "program that ends one")


@section(frozen=True)
class ProvidersSection:
    """Who creates machines, and how they are reached. Only those that a pool names are used."""

    aws: Aws = field(default_factory=Aws)
    gcp: Gcp = field(default_factory=Gcp)
    docker_local: DockerLocal = field(default_factory=DockerLocal)
    process: ProcessSection = field(default_factory=ProcessSection)
    slurm: SlurmSection = field(default_factory=SlurmSection)
    command: CommandSection = field(default_factory=CommandSection)


@section(frozen=True)
class PoolSection:
    """A pool of machines that are alike."""

    name: str = setting("", TEXT, "the pool's name")
    provider: str = setting("", TEXT, "who creates its machines: one of providers, or one that a package brings")
    types: tuple[str, ...] = setting((), WORDS, "types of machines, as the provider calls them")
    zones: tuple[str, ...] = setting((), WORDS, "zones, in the order in which they are tried")
    spot: bool | None = setting(None, FLAG, "machines that the provider may take back, for less; unset: as there")
    min: int = setting(0, MACHINES, "number of machines that are always there")
    max: int = setting(10, MACHINES, "maximum number of machines")
    idle: float = setting(600.0, SECONDS, "time without jobs after which a machine ends")
    boot: float = setting(60.0, SECONDS, "time a machine takes until it can run jobs, until that is learned")
    join_within: float = setting(600.0, SECONDS, "time after which a machine that has not joined has failed")
    abandoned_after: float = setting(
        900.0, SECONDS, "time without word from the coordinator after which a machine without jobs ends itself"
    )
    life: float = setting(43_200.0, SECONDS, "time after which each machine ends itself")
    queue_within: float | None = setting(
        None, SECONDS, "time for which one may wait in its provider's queue; unset: 24 h with slurm, else 0"
    )
    labels: dict[str, str] = setting({}, PAIRS, "labels of its nodes; each has pool=NAME, too")
    price: dict[str, float] = setting({}, PRICES, "price per hour, by type; none: it counts against max_workers alone")
    shape: dict[str, dict[str, str]] = setting({}, SHAPES, "what a node lends at most, by type")
    cpus: float = setting(0.0, AMOUNT, "cores that a node lends, where all types are alike")
    memory: str = setting("", TEXT, "memory that a node lends, such as 8G, where all types are alike")
    gpus: int = setting(0, _GPUS, "GPUs, where all types are alike")
    gpu_model: str = setting("", TEXT, "model of its GPUs, as its agent tells it")
    gpu_memory: str = setting("", TEXT, "memory of each GPU, such as 16G")
    billing: Billing = setting(
        Billing.SECOND, choice(Billing), "what is paid: each second, or each hour that has begun"
    )
    backlog: int = setting(0, MACHINES, "maximum number of machines on their way at once; 0: no limit of its own")
    max_cost_per_hour: float | None = setting(None, PRICE, "maximum of what its machines cost per hour")
    max_cost_per_day: float | None = setting(None, PRICE, "maximum of what its machines cost in a day of UTC")
    partition: str = setting("", TEXT, "Slurm: its partition")
    image: str = setting("", TEXT, "its image, over that of the provider")
    options: dict[str, str] = setting({}, PAIRS, "further options, for its provider alone")


KNOWN = tuple(one.name for one in fields(ProvidersSection))
"""Providers that the grid brings."""


def scaling_of(scaling: ScalingSection, providers: ProvidersSection, given: tuple[PoolSection, ...]) -> pools.Scaling:
    """Return the settings that the ledger decides by. The sections have been checked."""
    return pools.Scaling(
        mode=scaling.mode,
        pools=tuple(_pool(one, providers) for one in given),
        limits=pools.Limits(
            max_workers=scaling.max_workers,
            max_cost_per_hour=scaling.max_cost_per_hour,
            max_cost_per_day=scaling.max_cost_per_day,
        ),
        target=scaling.target_utilization,
        up=scaling.scale_up_threshold,
        down=scaling.scale_down_threshold,
        window=scaling.evaluation_window,
        up_cooldown=scaling.scale_up_cooldown,
        down_cooldown=scaling.scale_down_cooldown,
        reassessment=scaling.worker_reassessment_interval,
        retention=scaling.history_retention,
        look=scaling.look,
        orphans=scaling.orphans,
        orphan_after=scaling.orphan_after,
    )


def _pool(one: PoolSection, providers: ProvidersSection) -> pools.Pool:
    spot = one.spot
    if spot is None:
        said = {"aws": providers.aws.spot_instance_enabled, "gcp": providers.gcp.preemptible_enabled}
        spot = said.get(one.provider, False)
    zones = one.zones or ((providers.gcp.zone,) if one.provider == "gcp" else ("",))
    return pools.Pool(
        name=one.name,
        provider=one.provider,
        shapes=tuple(_shape_of(one, *named, providers) for named in types_of(one, providers)),
        zones=zones,
        spot=spot,
        min=one.min,
        max=one.max,
        idle=one.idle,
        boot=one.boot,
        join_within=one.join_within,
        abandoned_after=one.abandoned_after,
        life=one.life,
        queue_within=_queue_within(one),
        labels=dict(one.labels),
        billing=one.billing,
        backlog=one.backlog,
        max_cost_per_hour=one.max_cost_per_hour,
        max_cost_per_day=one.max_cost_per_day,
    )


def _queue_within(one: PoolSection) -> float:
    if one.queue_within is not None:
        return one.queue_within
    return QUEUE_WITHIN if one.provider == "slurm" else 0.0


def types_of(one: PoolSection, providers: ProvidersSection) -> tuple[tuple[str, str], ...]:
    """The types of a pool, as it names them and as its provider calls them: a use that the provider's section names
    stands for its type."""
    uses = {"aws": providers.aws.instance_types, "gcp": providers.gcp.machine_types}.get(one.provider, {})
    return tuple((type, uses.get(type, type)) for type in one.types) or (("", ""),)


def _shape_of(one: PoolSection, named: str, type: str, providers: ProvidersSection) -> Shape:
    plain = {"cpus": f"{one.cpus:g}", "memory": one.memory or "0", "gpus": str(one.gpus)}
    plain |= {"gpu_model": one.gpu_model, "gpu_memory": one.gpu_memory or "0"}
    if one.provider == "docker_local":
        local = providers.docker_local
        plain["cpus"] = plain["cpus"] if one.cpus else f"{local.cpu_limit:g}"
        plain["memory"] = one.memory or local.memory_limit or "0"
    shape = _shape(type, one.shape.get(type) or one.shape.get(named) or plain)
    price = next((one.price[name] for name in (type, named, "") if name in one.price), None)
    return replace(shape, price=price)


# --- what no single value can tell ------------------------------------------------------------------------------------


def check(
    scaling: ScalingSection,
    providers: ProvidersSection,
    given: tuple[PoolSection, ...],
    origins: Mapping[str, str] = MappingProxyType({}),
) -> list[Problem]:
    """Return everything that is contradictory, or would create and end machines in turn."""
    found: list[Problem] = []

    def wrong(name: str, what: str, hint: str = "") -> None:
        found.append(Problem(origins.get(name) or name, what, hint))

    if scaling.scale_down_threshold >= scaling.scale_up_threshold:
        low, high = scaling.scale_down_threshold, scaling.scale_up_threshold
        what = f"scale_down_threshold ({low:g}) is not below scale_up_threshold ({high:g}): the pool would oscillate"
        wrong("scaling.scale_down_threshold", what, "as 0.3 and 0.8")
    elif not scaling.scale_down_threshold < scaling.target_utilization <= scaling.scale_up_threshold:
        target = scaling.target_utilization
        what = f"target_utilization ({target:g}) does not lie between scale_down_threshold and scale_up_threshold"
        wrong("scaling.target_utilization", what, "as 0.3, 0.7 and 0.8")
    if scaling.worker_reassessment_interval < 1:
        wrong("scaling.worker_reassessment_interval", "is less than a second")
    names: dict[str, int] = {}
    for place, one in enumerate(given):
        at = f"pools.{one.name or place}"
        names[one.name] = names.get(one.name, 0) + 1
        if names[one.name] == 2:
            wrong(at, f"the pool {one.name!r} is listed twice")
        for what, hint in _wrong_in(one, providers):
            wrong(at, f"pool {one.name or place}: {what}", hint)
    least = sum(one.min for one in given)
    if least > scaling.max_workers:
        wrong("scaling.max_workers", f"is {scaling.max_workers}, and the pools are to have {least} at least (min)")
    return found


def _wrong_in(one: PoolSection, providers: ProvidersSection) -> Any:
    """Return what is wrong in one pool, each with a hint."""
    try:
        check_pool_name(one.name)
    except BadValue as error:
        yield error.what, error.hint
    for what, words in (("types", one.types), ("zones", one.zones), ("labels", (*one.labels, *one.labels.values()))):
        if long := next((word for word in words if len(word) > WORD_MOST), ""):
            yield f"{what} has {long[:20]!r}…, which is longer than {WORD_MOST} characters", ""
    if not one.provider:
        yield "it names no provider", f"provider: one of {', '.join(KNOWN)}"
    elif one.provider not in KNOWN and not _installed(one.provider):
        near = did_you_mean(one.provider, KNOWN)
        yield f"there is no provider {one.provider!r}", near or "install the package that brings it"
    if one.min > one.max:
        yield f"min ({one.min}) is more than max ({one.max})", ""
    if one.idle < one.boot:
        what = f"idle ({one.idle:g} s) is less than boot ({one.boot:g} s): machines would end and come again in turn"
        yield what, f"idle: {one.boot:g} or more"
    if one.join_within <= one.boot:
        yield f"join_within ({one.join_within:g} s) is not more than boot ({one.boot:g} s): no machine would join", ""
    if one.abandoned_after < ABANDONED_LEAST:
        what = f"abandoned_after ({one.abandoned_after:g} s) is less than {ABANDONED_LEAST:g} s"
        yield f"{what}: machines would end whenever the coordinator is started again", "abandoned_after: 15m"
    if one.life < one.boot + one.idle:
        yield f"life ({one.life:g} s) is less than boot and idle together: machines would hardly run anything", ""
    yield from _wrong_shapes(one, providers)
    if one.provider == "slurm" and one.zones:
        yield "zones have no meaning for slurm", "use partition"


def _wrong_shapes(one: PoolSection, providers: ProvidersSection) -> Any:
    types = types_of(one, providers)
    if len(types) > TYPES_MOST:
        yield f"{len(types)} types; {TYPES_MOST} are the most", ""
    for what, given in (("price", [*one.price]), ("shape", [*one.shape])):
        for type in given:
            if type and all(type not in both for both in types):
                known = [name for name, _ in types if name]
                yield f"{what} names the type {type!r}, which is not in types", did_you_mean(type, known)
    if one.provider in ("aws", "gcp") and not one.types:
        yield "it names no types", "types: [c5.xlarge], as the provider calls them"
    for named, type in types:
        try:
            shape = _shape_of(one, named, type, providers)
        except (BadValue, ValueError):
            yield f"the shape of {type or 'its machines'} cannot be read", "as {cpus: 4, memory: 8G}"
            continue
        if not shape.resources.cpu or not shape.resources.memory:
            what = f"of {type or 'its machines'} it is not known how many cores and how much memory they have"
            yield what, f"shape: {{{type}: {{cpus: 4, memory: 8G}}}}" if type else "cpus: 4, and memory: 8G"


def _installed(name: str) -> bool:
    """Whether an installed package brings a provider of this name."""
    from importlib.metadata import entry_points  # slow, and needed for others' providers alone

    return any(one.name == name for one in entry_points(group="distributed_grid.providers"))
