"""The agent's process: reads the settings, starts the parts of the service, and returns the exit code."""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.cgroups.hierarchies import described, survey, take_leaf
from distributed_grid.agent.core.spare.lender import describe
from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.data.disk import Bounds
from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.launch import raylet
from distributed_grid.agent.launch.isolation import (
    NOT_AS_ROOT,
    ROOT_JOBS,
    Walled,
    WallSettings,
    check_run_as,
    end_proof,
    open_to_jobs,
    wall_facts,
)
from distributed_grid.agent.launch.launcher import Launcher, SupervisorGone
from distributed_grid.agent.launch.raylet import RaySettings
from distributed_grid.agent.launch.supervisor import start
from distributed_grid.agent.machine import HANDLE_VARIABLE
from distributed_grid.agent.runtime import Runtime, RuntimeSettings
from distributed_grid.agent.sampling.probe import Probe
from distributed_grid.agent.sampling.trees import sibling_roots
from distributed_grid.agent.settings import NodeSettings
from distributed_grid.agent.walls import forkserver, syscalls
from distributed_grid.agent.walls.enclosure import USER
from distributed_grid.config import lending
from distributed_grid.config.schema import Agent
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.identity.credentials import IDENTITY, has_identity
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import parse_ports
from distributed_grid.protocol.nodes import NodeFacts, Offer, Sample
from distributed_grid.protocol.placement import open_to_all
from distributed_grid.protocol.resources import GIB, MILLI, format_bytes, format_ranges
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
    write_whole,
)
from distributed_grid.runtime.unix import AGENT as PROCESS_NAME
from distributed_grid.runtime.unix import name_process

log = get_logger("agent")

MOST_INSTANCE = 64
COLLECT_AFTER = 10_000
"""New objects after which garbage is collected."""
ANOTHER = "use that one, stop it first, or give this one another --state-dir and --name"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The settings of the agent of node `name`: as configured; joining a grid may have set its `coordinator` and
    `labels`."""

    config: ClusterConfig
    name: str
    coordinator: str
    labels: dict[str, str]
    log_level: str = "info"

    @property
    def own(self) -> Agent:
        return self.config.agent

    @property
    def state_dir(self) -> Path:
        return self.config.agent_state_dir(self.name)

    def effective(self) -> NodeSettings:
        """The settings in effect: those of the configuration here, and what the grid said last."""
        made = settings_for(self.config, self.name, self.state_dir)
        made.load()
        return made


def settings_for(config: ClusterConfig, node: str, state_dir: Path) -> NodeSettings:
    """The settings of this node's agent by this configuration alone."""
    own = config.agent
    base = Limits(
        reserve_cpu=int(own.reserve_cpu * MILLI),
        reserve_memory=int(own.reserve_memory_gb * GIB),
        offer_after=own.offer_after,
    )
    return NodeSettings(state_dir, lending.of_agent(config, node), lending.defaults(), base)


def main(settings: AgentSettings) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Jobs continue without the agent. Errors a person can act on go to
    stderr, in three lines. Code 75: the service manager is to start the agent again, with its original privileges."""
    configure_logs(settings.log_level)
    gc.set_threshold(COLLECT_AFTER)
    try:
        forbid_dumps()
        _take_leaf()
        name_process(PROCESS_NAME)
        prepare(settings.state_dir)
        if settings.own.ray_token:
            find_ray_token(settings.own.ray_token, "agent.ray_token")
        check_run_as(settings.own.run_as, settings.state_dir, has_identity(settings.state_dir / IDENTITY))
        walled = _walled(settings)
        if walled.built == USER:
            open_to_jobs(settings.state_dir)
        with locked(settings.state_dir, "agent", ANOTHER):
            process = _start_supervisor(settings, walled.built)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_run(settings, walled, process))
    except GridError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return os.EX_TEMPFAIL if isinstance(error, SupervisorGone) else 1
    return 0


def detect(settings: AgentSettings) -> tuple[NodeFacts, Sample, Offer, dict[str, str]]:
    """Return the machine's facts, its present use, the offer of an agent with these settings with the reasons why it is
    no larger, and by controller why a job's limits cannot be enforced by cgroups. Needs neither a coordinator nor a
    state directory. Raises GridError."""
    probe = _probe(settings, tuple, settings.state_dir if settings.state_dir.exists() else Path("/"))
    effective = settings.effective()
    limits = effective.limits
    probe.watch(limits)
    facts = probe.facts(settings.name, 0, limits, settings.labels, __version__, effective.priority)
    probe.sample()
    # The first CPU figures are meaningless: they are over no time at all.
    time.sleep(0.6)
    sample = probe.sample()
    found = survey(settings.own.cgroup)
    walled = _walled(settings)
    ends = end_proof(walled.built, settings.own.run_as, found.home is not None)
    facts = msgspec.structs.replace(facts, limits=described(found), ends=ends, **walled.facts)
    return facts, sample, describe(limits, facts, sample, walled.hidden), found.missing


# --- before running ---------------------------------------------------------------------------------------------------


def _probe(settings: AgentSettings, own_roots: Callable[[], Iterable[int]], state_dir: Path) -> Probe:
    own, siblings = settings.own, Path(settings.own.siblings).expanduser()
    return Probe(
        own.cores or None,
        own.memory,
        open_backend(own.gpu_backend, own.gpus),
        own.virtual,
        own_roots,
        (lambda: sibling_roots(siblings)) if own.siblings else tuple,
        state_dir,
    )


def _walled(settings: AgentSettings) -> Walled:
    """The walls, and what is reported about them. Raises GridError if the configured ones are not available."""
    own = settings.own
    return wall_facts(WallSettings(settings.state_dir, own.run_as, str(own.walls), own.owners, str(own.trust)))


def _identity(state_dir: Path) -> tuple[int, str]:
    """Return this start's incarnation, one more than the last, and the node's instance, which is constant. Raises
    OSError."""
    incarnation = 1
    with contextlib.suppress(OSError, ValueError):
        incarnation = min(max(0, int((state_dir / "incarnation").read_text())), 1 << 52) + 1
    write_whole(state_dir / "incarnation", f"{incarnation}\n")
    return incarnation, _instance(state_dir)


def _directory(state_dir: Path) -> str:
    """An id that distinguishes a state directory from a copy of it, constant over restarts."""
    seen = state_dir.stat()
    return f"{seen.st_dev}:{seen.st_ino}"


def _instance(state_dir: Path) -> str:
    path = state_dir / "instance"
    with contextlib.suppress(OSError):
        known = path.read_bytes()[: MOST_INSTANCE + 1].decode(errors="replace").strip()
        if known.isascii() and known.isprintable() and 0 < len(known) <= MOST_INSTANCE:
            return known
        if known:
            log.warning("the file instance was damaged: to the grid this is another node now", file=str(path))
    write_whole(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()


# --- running ----------------------------------------------------------------------------------------------------------


async def _run(settings: AgentSettings, walled: Walled, process: subprocess.Popen[bytes] | None) -> None:
    """`process` is the supervisor, if it was just started."""
    own = settings.own
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _adopt_orphans()
    try:
        announce(settings.state_dir / "agent.pid")
        incarnation, instance = _identity(settings.state_dir)
    except OSError as error:
        raise _cannot_write(settings.state_dir, error) from None
    if walled.all_as_root:
        log.warning(ROOT_JOBS, hint=NOT_AS_ROOT)
    if walled.hidden:
        log.error("this node lends nothing", why=walled.hidden)
    runtimes: list[Runtime] = []
    launcher = Launcher(
        settings.state_dir,
        lambda message: runtimes[0].feed(message),
        log=lambda text: log.warning(text),
        output_limit=own.keep_output,
        pids_limit=own.pids_limit,
        nice=own.nice,
        cgroup=own.cgroup,
        walls=walled.built,
        owners=walled.facts["owners"],
        promise=walled.facts["walls"] if walled.facts["walls"] != walled.built else "",
        process=process,
    )
    # A driver may be slow to answer; only the start waits for it.
    probe, (ray, python) = await asyncio.gather(
        asyncio.to_thread(_probe, settings, lambda: _own(launcher), settings.state_dir),
        asyncio.to_thread(_ray_versions, own.ray),
    )
    effective = settings.effective()
    probe.watch(effective.limits)
    facts = probe.facts(settings.name, incarnation, effective.limits, settings.labels, __version__, effective.priority)
    facts = msgspec.structs.replace(
        facts,
        instance=instance,
        directory=_directory(settings.state_dir),
        ray=ray,
        ray_python=python,
        machine=os.environ.get(HANDLE_VARIABLE, ""),
        **walled.facts,
    )
    place = RuntimeSettings(
        settings.coordinator,
        settings.state_dir,
        Bounds(own.keep_days, own.keep_jobs, own.keep_size),
        own.run_as,
        own.environment,
        RaySettings(own.ray, *parse_ports(own.ray_ports), own.ray_token),
        settings.config.coordinator.user,
        walled.hidden,
    )
    runtime = Runtime(place, facts, effective, probe, launcher)
    runtimes.append(runtime)
    running = asyncio.create_task(runtime.run(lambda: _ready(settings, facts, probe)))
    watchdog = asyncio.create_task(feed_watchdog())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    sd_notify("STOPPING=1")
    for task in (running, watchdog, stopping):
        task.cancel()
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
    log.info("stopped; jobs go on")


def _start_supervisor(settings: AgentSettings, walls: str) -> subprocess.Popen[bytes] | None:
    """Start a supervisor if none is alive and its walls need our capabilities; then drop these, before there are
    threads. None if the launcher is to start it."""
    try:
        if walls == USER and os.geteuid() != 0:
            return start(settings.state_dir.absolute(), settings.own.keep_output, settings.own.cgroup, walls)
        return None
    except OSError as error:
        raise _cannot_write(settings.state_dir, error) from None
    finally:
        forkserver.give_up_privileges()


def _cannot_write(state_dir: Path, error: OSError) -> GridError:
    return GridError(
        f"the state directory {state_dir} cannot be written",
        why=error.strerror or str(error),
        hint="see to that disk, or give another directory with --state-dir; jobs that run there go on",
    )


def _take_leaf() -> None:
    """Under systemd before 254 we are in the parent of jobs' groups: move to a group of our own."""
    try:
        if leaf := take_leaf():
            log.info("the agent has a control group of its own, beside those of jobs", group=leaf)
    except OSError as error:
        log.warning(
            "the agent cannot make a control group of its own, so jobs get none",
            why=f"{error.strerror} ({error.filename})",
        )


def _ray_versions(named: str) -> tuple[str, str]:
    """Return the versions of Ray and its Python for boosts; empty, without an error, if there is none."""
    try:
        return raylet.versions(raylet.program(named))
    except GridError:
        return "", ""


def _own(launcher: Launcher) -> Iterable[int]:
    return (os.getpid(), launcher.supervisor_pid) if launcher.supervisor_pid else (os.getpid(),)


def _adopt_orphans() -> None:
    """Become the subreaper: if the supervisor is killed, its jobs become children of this process, so that they are
    recognised and reaped."""
    syscalls.become_subreaper()

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    # Not by the loop, which would take over this signal: nothing else here waits for children.
    signal.signal(signal.SIGCHLD, reap)


def _ready(settings: AgentSettings, facts: NodeFacts, probe: Probe) -> None:
    gpus = ", ".join(f"{gpu.model}{' (stand-in)' if gpu.stand_in else ''}" for gpu in facts.gpus)
    log.info(
        f"agent {facts.name} is up",
        coordinator=settings.coordinator,
        cores=format_ranges(facts.cores) + (" (virtual)" if facts.virtual else ""),
        memory=format_bytes(facts.memory),
        gpus=gpus or probe.gpus.error or probe.gpus.note or "none",
        lends=str(facts.lendable),
        walls=facts.walls,
        runs_jobs_of="everyone" if open_to_all(facts.walls, facts.trusts) else ", ".join(facts.owners),
        state_dir=str(settings.state_dir),
        incarnation=facts.incarnation,
    )
    sd_notify(f"READY=1\nSTATUS=serving {settings.coordinator}")
