"""The coordinator's process: reads the settings, starts the parts of the service, and returns the exit code."""

import asyncio
import errno
import gc
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_grid.config import lending
from distributed_grid.config.places import NO_HOST
from distributed_grid.config.render import format_value
from distributed_grid.config.scaling import scaling_of
from distributed_grid.config.schema import SETTINGS, Placement, Ray, RightsOf, RightsSection, UnusedPolicy
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.config.sharing import ResourceSharing
from distributed_grid.coordinator.access.identities import PKI, has_authority
from distributed_grid.coordinator.api.blobs.cache import Blobs
from distributed_grid.coordinator.api.server import LOOPBACK, Server
from distributed_grid.coordinator.api.settings import Configured
from distributed_grid.coordinator.api.submissions import new_ids
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.audit.verify import StoreAnchor
from distributed_grid.coordinator.backup import accept_loss
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy, Preempting, Sharing, Unused
from distributed_grid.coordinator.driver import Clock, Driver, LedgerBroken, Trouble
from distributed_grid.coordinator.eventlog.write import EventLog
from distributed_grid.coordinator.history.history import History
from distributed_grid.coordinator.net.listener import OPEN_TO_PASS, closed_to_others
from distributed_grid.coordinator.predictor.service import NeedsService
from distributed_grid.coordinator.ray.balancing import Balancer
from distributed_grid.coordinator.ray.boosts import BoostService
from distributed_grid.coordinator.ray.bridge_client import Bridge, environment
from distributed_grid.coordinator.ray.reservations import RayReservations, sweep_until_done
from distributed_grid.coordinator.store import boost_import, evidence
from distributed_grid.coordinator.store.errors import DiskTrouble, Reserve, StoreFailed
from distributed_grid.coordinator.store.retention import DAY, Keep, Retention
from distributed_grid.coordinator.store.store import Store
from distributed_grid.identity.credentials import AUTHORITY
from distributed_grid.protocol.boosts import RayAuth
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import parse_ports
from distributed_grid.protocol.jobs import parse_priority
from distributed_grid.protocol.messages.rights import UNLIMITED, GroupRights, Rights, Rules
from distributed_grid.protocol.resources import GIB, MILLI
from distributed_grid.protocol.scaling.pools import Scaling
from distributed_grid.protocol.sharing.policies import Balancing, Marks
from distributed_grid.runtime.local import SCHEME, SOCKET
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import (
    announce,
    configure_logs,
    feed_watchdog,
    find_ray_token,
    forbid_dumps,
    locked,
    loop_factory,
    prepare,
    sd_notify,
)

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Pki
    from distributed_grid.coordinator.providers.service import MachineService

EX_SOFTWARE = 70
EX_CONFIG = 78

log = get_logger("coordinator")

CHECK_INTERVAL = 3600.0
"""Maximum interval between checks of the coordinator's own certificate (s)."""
ANOTHER = "use that one, stop it first, or give another --state-dir"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """The settings of a coordinator: as configured (port 0 is any free one, written to `coordinator.json` in the state
    directory). `insecure`: listen on an address that is not loopback, without TLS and authentication."""

    config: ClusterConfig
    insecure: bool = False
    log_level: str = "info"
    read: Callable[[], ClusterConfig] | None = None
    """Reads the configuration again, for `grid coordinator reload`."""

    @property
    def state_dir(self) -> Path:
        return self.config.coordinator_state_dir()


class CannotStart(GridError):
    """Why the coordinator does not run; `code` is its exit code."""

    def __init__(self, what: str, why: str = "", hint: str = "", code: int = 1) -> None:
        super().__init__(what, why, hint)
        self.code = code


def main(settings: CoordinatorSettings) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Errors a person can act on go to stderr, in three lines."""
    try:
        _check_authority(settings)
        _check_address(settings)
        _check_ray(settings.config)
        configure_logs(settings.log_level)
        forbid_dumps()
        prepare(settings.state_dir, OPEN_TO_PASS)
        with locked(settings.state_dir, "coordinator", ANOTHER), closed_to_others(settings.state_dir):
            _allow_many_files()
            port: int | None = settings.config.coordinator.port
            while port is not None:
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    port = runner.run(_run(settings, port))
        return 0
    except CannotStart as error:
        return _fail(error, error.code)
    except StoreFailed as error:
        return _fail(error, 1 if isinstance(error, DiskTrouble) else EX_CONFIG)
    except GridError as error:
        return _fail(error, 1)
    except OSError as error:  # only at the start: later failures of the disk are handled where they occur
        what = f"the coordinator cannot work in {settings.state_dir}"
        hint = "see to the disk it is on (df -h, df -i), or give another --state-dir"
        why = error.strerror or str(error)
        return _fail(GridError(what, why=f"{error.filename}: {why}" if error.filename else why, hint=hint), 1)
    except LedgerBroken as error:
        what = "the coordinator stopped: its ledger found itself in an impossible state"
        hint = "start it again (it begins from what is stored) and report the log above"
        if settings.config.coordinator.event_log_size:
            hint += f", with what this says: grid replay {settings.state_dir}"
        return _fail(GridError(what, why=str(error), hint=hint), EX_SOFTWARE)


def _fail(error: GridError, code: int) -> int:
    print("\n".join(error.lines()), file=sys.stderr)
    return code


# --- before listening -------------------------------------------------------------------------------------------------


def _check_authority(settings: CoordinatorSettings) -> None:
    folder = settings.state_dir / PKI
    if not settings.insecure and not has_authority(folder) and (folder / AUTHORITY).exists():
        raise CannotStart(
            f"{folder}/ca.key is missing",
            why="this grid has an authority, and without its key nobody would be asked who they are",
            hint=f"put a copy of it back, or restore a backup; or move {folder} away, and nobody is a member any more",
            code=EX_CONFIG,
        )


def _check_address(settings: CoordinatorSettings) -> None:
    host = settings.config.coordinator.host
    if host not in (*LOOPBACK, NO_HOST) and not settings.insecure and not has_authority(settings.state_dir / PKI):
        raise CannotStart(
            f"the coordinator does not listen on {host}",
            why="this grid has no authority: whoever reaches it could run commands on every node",
            hint="run `grid init` first, for TLS and identities; or --insecure, where the network is yours alone",
            code=EX_CONFIG,
        )


def _ray_token(ray: Ray) -> str:
    """The path of the Ray cluster's token file; empty: none."""
    if ray.auth is RayAuth.TOKEN:
        return str(find_ray_token(ray.token, "ray.token"))
    if ray.token:
        why = f"ray.token names one, and ray.auth is {ray.auth}"
        raise CannotStart("the Ray cluster's token would not be used", why, "set ray.auth: token", EX_CONFIG)
    return ""


def _check_ray(config: ClusterConfig) -> None:
    if config.placement is Placement.RAY and not config.ray.address:
        raise CannotStart(
            "jobs are to be placed by Ray (placement: ray), and there is none",
            why="ray.address is empty, and so is RAY_ADDRESS",
            hint="set ray.address to HOST:PORT of the cluster's head, or placement: embedded",
            code=EX_CONFIG,
        )


def _allow_many_files() -> None:
    """Raise the limit on open files: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- running ----------------------------------------------------------------------------------------------------------


def _policy(config: ClusterConfig) -> Policy:
    sharing, unused = config.resource_sharing, config.unused
    ends = unused.policy is UnusedPolicy.RELEASE_AFTER
    return Policy(
        lost_after=config.coordinator.lost_after,
        gang_ports=parse_ports(config.coordinator.gang_ports),
        preempting=Preempting(**asdict(config.preemption)),
        sharing=_sharing(config),
        unused=Unused(window=unused.window, threshold=unused.threshold, release_after=unused.time if ends else 0.0),
        by_ray=config.placement is Placement.RAY,
        rights=_rules(config.rights),
        owner_rule=True,
        balancing=_balancing(config.resource_sharing),
        scaling=_scaling(config),
    ).by_strategy(sharing.strategy)


def _sharing(config: ClusterConfig) -> Sharing:
    fair, owners = config.fair_share, {node.name: node.owner for node in config.nodes if node.owner}
    return Sharing(
        half_life=fair.half_life, weights=dict(fair.weights), order=fair.order, owners=owners, credit=fair.credit
    )


_BALANCING = [
    path
    for path in SETTINGS
    if path[0] == "resource_sharing"
    and (path[-1] in ("mode", "policy", "rebalance_interval_seconds", "excess_threshold") or "_pressure_" in path[-1])
]
"""The settings of `_balancing`, which a reload puts into effect."""


def _balancing(sharing: ResourceSharing) -> Balancing:
    at = sharing.thresholds
    marks = Marks(
        cpu_high=at.cpu_pressure_high,
        cpu_low=at.cpu_pressure_low,
        memory_high=at.memory_pressure_high,
        memory_low=at.memory_pressure_low,
        gpu_high=at.gpu_pressure_high,
        gpu_low=at.gpu_pressure_low,
    )
    return Balancing(
        mode=sharing.mode,
        policy=sharing.policy,
        excess=at.excess_threshold,
        marks=marks,
        interval=sharing.rebalance_interval_seconds,
    )


def _scaling(config: ClusterConfig) -> Scaling:
    return scaling_of(config.scaling, config.providers, config.pools)


def _providers(config: ClusterConfig) -> dict[str, dict[str, Any]]:
    """The settings of all providers, as their processes get them."""
    found = asdict(config.providers)
    if not found["process"]["directory"]:
        found["process"]["directory"] = str(config.coordinator_state_dir().absolute() / "machines")
    return found


def _of_pools(config: ClusterConfig) -> dict[str, dict[str, Any]]:
    """Return the settings of each pool for its provider."""
    return {
        one.name: {
            "labels": dict(one.labels),
            "options": {"partition": one.partition, "image": one.image, **one.options},
        }
        for one in config.pools
    }


def configured(config: ClusterConfig) -> Configured:
    """Return the configuration for the grid's nodes."""
    whose = "grid"
    nodes = {node.name: lending.of_node(config, node.name, whose) for node in config.nodes}
    handed_out = {".".join(path) for path in (*lending.GENERAL.values(), *_BALANCING)}
    rest = {
        row.name: format_value(row.value)
        for row in config.rows()
        if row.name not in handed_out and not row.name.startswith(("nodes.", "scaling.", "providers.", "pools."))
    } | {f"nodes.{node.name}.owner": node.owner for node in config.nodes if node.owner}
    balancing, scaling = _balancing(config.resource_sharing), _scaling(config)
    general = lending.of_all(config, whose)
    return Configured(general, nodes, rest, balancing, scaling, _providers(config), _of_pools(config))


def _reader(settings: CoordinatorSettings) -> Callable[[], Awaitable[Configured]] | None:
    """Reads the configuration again, if it can be."""
    if (read := settings.read) is None:
        return None
    read_again = read

    async def again() -> Configured:
        return configured(await asyncio.to_thread(read_again))

    return again


def _rules(section: RightsSection) -> Rules:
    return Rules(
        default=_rights(section.default),
        users={one.name: _rights(one) for one in section.users},
        groups={one.name: GroupRights(one.members, _rights(one)) for one in section.groups},
    )


def _rights(of: RightsOf) -> Rights:
    return Rights(
        highest_priority=parse_priority(of.highest_priority) if of.highest_priority is not None else None,
        cores=_limit(of.cores, MILLI),
        memory=_limit(of.memory_gb, GIB),
        gpus=_limit(of.gpus, MILLI),
        core_hours=_limit(of.core_hours_per_day, MILLI),
        gpu_hours=_limit(of.gpu_hours_per_day, MILLI),
        jobs_waiting=of.jobs_waiting,
        exclusive_boosts=of.exclusive_boosts,
        reservations=of.reservations,
    )


def _limit(value: float | None, scale: int) -> int | None:
    return UNLIMITED if value == UNLIMITED else None if value is None else round(value * scale)


async def _run(settings: CoordinatorSettings, port: int) -> int | None:
    """Run until stopped. Returns the port to restart with, if an operator has accepted a loss meanwhile."""
    config, own, state_dir = settings.config, settings.config.coordinator, settings.state_dir
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    reserve = Reserve(state_dir)
    reserve.ease()
    store = Store(state_dir / "grid.db", reserve, evidence.find_traces(state_dir))
    clock = Clock(store.clock)
    audit = RequestLog(state_dir / "audit.log", StoreAnchor(state_dir / "grid.db"))
    _accept(settings, store, clock(), audit)
    store.forget_nodes(clock() - (own.keep_days + 1) * DAY)
    for place in boost_import.places(state_dir) if config.ray.address else ():
        boost_import.ResourceBoostPersistence(place).import_into(store, clock())
    living = store.load()
    ledger = Ledger(store.epoch, policy=_policy(config))
    lost = store.loss.found if store.loss is not None else ()
    begin = (
        clock(), store.restored, living.orders, living.groups, living.shares, lost, living.rights, living.spent,
        living.balancing, living.lent, living.machines, living.paused, living.returns,
    )  # fmt: skip
    ledger.state.preempting.remember(living.receipts)
    try:
        restored = ledger.restore(living.jobs, living.allocations, living.nodes, *begin)
    except (AssertionError, KeyError, ValueError) as error:
        raise _contradicts(settings, error) from None
    _tune_garbage_collector()
    events = None
    if own.event_log_size:
        events = EventLog(ledger, state_dir / "events", own.event_log_size, store.grid)
    driver = Driver(events or ledger, store, clock)

    def bundles(user: str | None = None) -> Iterator[str]:
        """The manifests that live jobs (of one user) need."""
        return (job.spec.bundle for job in ledger.state.jobs.values() if job.spec.bundle and user in (None, job.user))

    blobs = Blobs(state_dir / "blobs", bundles, quota=own.ship_quota, needed_by=bundles)
    pki = None
    if has_authority(state_dir / PKI) and not settings.insecure:
        from distributed_grid.coordinator.access.ca import Lives, Pki  # slow: cryptography

        signed = config.certificates
        lives = Lives(signed.agent_life, signed.person_life, signed.server_life, signed.renew_expired)
        pki = Pki(state_dir / PKI, store.grid, lives)
        pki.refresh_self(own.url)
    bridge = None
    if config.ray.address:
        bridge = Bridge(config.ray.address, environment(config.ray.auth.value, _ray_token(config.ray)))
    boosts = BoostService(ledger.state, bridge, config.ray.auth, driver.put, clock, config.ray.join_within)
    placing = RayReservations(ledger.state, bridge, driver.put)
    history = History(state_dir / "history.db", own.history_size, clock)
    balancer = Balancer(ledger.state, bridge, config.ray.auth, driver.put, new_ids, config.ray.join_within)
    needs = NeedsService(state_dir / "usage.db", config.predictor.history_retention, clock, blobs.shipped_size)
    machines: list[MachineService] = []

    def machine_service() -> "MachineService":
        """Made when the ledger wants something of a provider for the first time."""
        if not machines:
            from distributed_grid.coordinator.providers.service import MachineService  # only where there are pools

            where = lambda: _reached_at(settings, port, pki)  # noqa: E731
            given = _providers(config), _of_pools(config)
            machines.append(MachineService(store.grid, driver.put, pki, where, *given, clock))
        return machines[0]

    more = (
        own.memory_limit,
        boosts,
        placing,
        own.heartbeat,
        configured(config),
        _reader(settings),
        history,
        balancer,
        needs,
        machine_service,
    )
    server = Server(ledger.state, store, driver, blobs, audit, clock, pki, *more)
    if lost:
        driver.trouble.alarm(*lost)
    driver.begin(server.perform, restored)
    keep = Keep(own.keep_days, own.keep_jobs, own.keep_size)
    connected = lambda: [name for name, node in list(ledger.state.nodes.items()) if node.session]  # noqa: E731
    retention = Retention(state_dir / "grid.db", keep, clock, connected)
    accepted = asyncio.create_task(_wait_for_acceptance(state_dir, driver.trouble, store))
    try:
        if own.host != NO_HOST:
            port = await _listen(server, own.host, port)
        server.reached_at = _reached_at(settings, port, pki)
        await server.listen_locally(state_dir)
        _announce(settings, port, store, len(living.jobs), driver.trouble, pki)
        retention.start()
        boosts.begin()
        placing.stir()
        balancer.begin()
        stopping = asyncio.create_task(stop.wait())
        background = [asyncio.create_task(feed_watchdog()), asyncio.create_task(history.run())]
        background.append(asyncio.create_task(needs.run(ledger.state, driver.put)))
        background.append(asyncio.create_task(server.idle.run()))
        if bridge is not None:
            background.append(asyncio.create_task(sweep_until_done(ledger.state, bridge)))
        if pki is not None:
            background.append(asyncio.create_task(_renew_certificate(pki, server)))
        ends: list[asyncio.Future[Any]] = [stopping, driver.failed, accepted]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in background:
            task.cancel()
        if not accepted.done():
            sd_notify("STOPPING=1")
    finally:
        again = accepted.done() and not stop.is_set()
        accepted.cancel()
        for service in machines:
            await service.close()
        await balancer.close()
        await placing.close()
        await boosts.close()
        await server.close()
        await driver.close()
        server.idle.keep()
        await history.close()
        await needs.close()
        retention.close()
        if events is not None:
            events.close()
        audit.close()
        if pki is not None:
            pki.close()
        store.abandon() if driver.failed.done() else store.close()
    if driver.failed.done():
        driver.failed.result()
    log.info("restarts" if again else "stopped; agents and jobs go on")
    return port if again else None


def _accept(settings: CoordinatorSettings, store: Store, now: float, audit: RequestLog) -> None:
    """Apply the operator's acceptance of a loss, if there is one."""
    if store.loss is not None and (accepted := accept_loss.read(settings.state_dir, store.loss)) is not None:
        try:
            accept_loss.apply(store, store.loss, accepted, now, audit)
        except (AssertionError, KeyError, ValueError) as error:
            raise _contradicts(settings, error) from None
    if store.loss is None:
        accept_loss.remove(settings.state_dir)


async def _wait_for_acceptance(state_dir: Path, trouble: Trouble, store: Store) -> None:
    """Wait until an operator has accepted a loss: that ends this run, and another one begins."""
    while not trouble.found or accept_loss.read(state_dir, store.loss) is None:  # noqa: ASYNC110
        await asyncio.sleep(accept_loss.LOOK_EVERY)


def _contradicts(settings: CoordinatorSettings, error: Exception) -> CannotStart:
    what = f"the store in {settings.state_dir} contradicts itself"
    hint = f"grid coordinator check --state-dir {settings.state_dir}, then restore a backup"
    return CannotStart(what, str(error), hint, EX_CONFIG)


async def _renew_certificate(pki: "Pki", server: Server) -> None:
    """Renew the coordinator's own certificate before it expires; connections stay."""
    while True:
        await asyncio.sleep(min(CHECK_INTERVAL, pki.lives.server / 20))
        try:
            if await asyncio.to_thread(pki.refresh_self):
                server.take_certificate()
                log.info("own certificate renewed")
        except (OSError, GridError) as error:
            log.error("the coordinator's own certificate cannot be renewed now", error=str(error))


def _tune_garbage_collector() -> None:
    """Exempt present objects from garbage collection, and collect rarely: hardly any are in cycles. The default of
    every 700 new objects takes most of the time of accepting 100,000 jobs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _listen(server: Server, host: str, port: int) -> int:
    try:
        return await server.listen(host, port)
    except (OSError, OverflowError) as error:
        address = f"{host}:{port}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"{address} is in use",
                why="another program listens there, perhaps another coordinator",
                hint="give another --port (0 takes any free one), or stop the other program",
            ) from None
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CannotStart(f"cannot listen on {address}", why=why, hint="give another --host or --port") from None


def _reached_at(settings: CoordinatorSettings, port: int, pki: "Pki | None") -> str:
    """Return the address at which others reach the coordinator: as configured, or where it listens, by a name in its
    certificate."""
    own = settings.config.coordinator
    if own.url or own.host == NO_HOST or pki is None or not (hosts := pki.hosts()) or own.host in hosts:
        return own.url or _listens_on(settings, port, pki)
    return _url("wss", hosts[0], port)


def _listens_on(settings: CoordinatorSettings, port: int, pki: "Pki | None") -> str:
    host = settings.config.coordinator.host
    if host == NO_HOST:
        return f"{SCHEME}{settings.state_dir.absolute() / SOCKET}"
    return _url("wss" if pki is not None else "ws", host, port)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _announce(
    settings: CoordinatorSettings, port: int, store: Store, jobs: int, trouble: Trouble, pki: "Pki | None"
) -> None:
    host, url = settings.config.coordinator.host, _listens_on(settings, port, pki)
    announce(settings.state_dir / "coordinator.pid")
    announce(settings.state_dir / "coordinator.json", url=url)
    log.info(f"listening on {url}", grid=store.grid, epoch=store.epoch, jobs=jobs, state_dir=str(settings.state_dir))
    if pki is None and host not in (*LOOPBACK, NO_HOST):
        log.warning("INSECURE: no TLS, no authentication; whoever reaches this address can run commands on every node")
    ready = f"listening on {url}"
    trouble.on_change = lambda words: sd_notify(f"STATUS={words or ready}")
    sd_notify(f"READY=1\nSTATUS={trouble.words() or ready}")
