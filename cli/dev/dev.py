"""`grid dev`: a whole grid on this machine, to try it out and for tests."""

import fcntl
import json
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distributed_grid.cli.context import Invocation, client, complete_files, current
from distributed_grid.cli.dev import processes
from distributed_grid.cli.dev.plan import Plan, make_plan
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.config.places import NO_HOST, dev_dir, is_private_group, usual_address
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.text import counted
from distributed_grid.runtime.accounts import name_of
from distributed_grid.runtime.local import SCHEME, SOCKET

if TYPE_CHECKING:
    from distributed_grid.coordinator.client.blocking import GridClient
    from distributed_grid.protocol.messages import Shared

START_SECONDS = 60.0
"""That a process may take to start, on a slow machine; one that ends is told of at once."""
OFFER_SECONDS = 15.0
"""That nodes which are up may take to offer all they have, until it is told what they do not."""
JOBS_SECONDS = 8.0
PID_FILES = ("supervisor.pid", "agent.pid", "coordinator.pid")
LOG_LINES = 15


@click.group(cls=LazyGroup)
def dev() -> None:
    """Start and stop a whole grid on this machine, to try it out."""


@dev.command()
@click.option("--nodes", type=click.IntRange(1, 64), help="How many agents (2).")
@click.option("--fake-gpus", type=click.IntRange(0, 64), help="Stand-in GPUs, given to the nodes in turn.")
@click.option("--cores-per-node", type=click.IntRange(1, 1024), help="Cores of each agent (the machine's, shared out).")
@click.option("--port", type=click.IntRange(0, 65535), help="A port of the coordinator, too (none); 0: a free one.")
@click.option(
    "--cpu-percent-max",
    type=click.IntRange(0, 100),
    help="Lend while others use at most this percentage of the CPU (90).",
)
@click.option(
    "--dir", "directory", type=not_empty, metavar="DIR", shell_complete=complete_files, help="State directory."
)
def up(directory: str | None, **wanted: int | None) -> None:
    """Start a coordinator and agents on this machine; those that run already are left alone.

    Only you can use it: the coordinator listens on a Unix socket in the state directory, which only you can enter, and
    on a port of this machine only if you give one. The machine's cores and memory are divided among the agents. If
    there are more agents than cores, they get virtual cores: numbers that are not pinned to real cores. If the grid
    exists already, only the processes that have died are started.
    """
    invocation = current()
    if invocation.config_path:
        raise BadValue(
            f"a dev grid does not read {invocation.config_path}",
            why="it has a configuration of its own, which lends more than usual",
            hint="leave out --config; or `grid -c FILE coordinator run` and `grid -c FILE agent run`",
        )
    home = _home(directory)
    began = time.monotonic()
    with _locked(home):
        plan = _plan(home, wanted)
        plan.write()
        url = _start_coordinator(plan)
        started = _start_agents(plan, url)
        watched = {state.name: process for state, process in processes.services(home).items()} | started
    _await_offers(invocation, plan, url, watched)
    _tell(invocation, plan, url, list(started), time.monotonic() - began)


@dev.command()
@click.option(
    "--dir", "directory", type=not_empty, metavar="DIR", shell_complete=complete_files, help="State directory."
)
def down(directory: str | None) -> None:
    """Stop the dev grid: its jobs, agents and coordinator, and nothing else. Its state is kept."""
    invocation = current()
    home = _home(directory)
    if not (home / "dev.json").exists():
        invocation.say(f"there is no dev grid in {home}")
        return
    with _locked(home):
        ended = _end(home)
    invocation.say(f"ended {counted(ended, 'process', 'processes')} of the dev grid in {home}")


def _home(directory: str | None) -> Path:
    if directory:
        return Path(directory).absolute()
    return dev_dir()


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock of a directory: one `grid dev` at a time works on it."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_ours(home)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        why = "it is no directory" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise GridError(f"the directory {home} cannot be written", why=why, hint="give another with --dir") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _check_ours(home: Path) -> None:
    """Raise GridError for a directory in which another user could replace the coordinator's socket."""
    seen, why = home.stat(), ""
    if seen.st_uid != os.geteuid():
        why = f"it belongs to {name_of(seen.st_uid)}"
    elif seen.st_mode & stat.S_IWOTH or (seen.st_mode & stat.S_IWGRP and not is_private_group(seen)):
        why = "other users can write to it"
    if why:
        raise GridError(f"no dev grid can be in {home}", why, "give another directory with --dir")


# --- up ---------------------------------------------------------------------------------------------------------------


def _plan(home: Path, wanted: dict[str, int | None]) -> Plan:
    """Return the plan to run: that of the live services, else the requested one, else the one that ran here before."""
    given = {name: value for name, value in wanted.items() if value is not None}
    before = Plan.read(home)
    if before is not None and _living(home):
        other = {name: value for name, value in given.items() if before.asked.get(name) != value}
        if other:
            flags = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in other.items())
            raise GridError(
                f"a dev grid of {counted(len(before.agents), 'node')} runs in {home}",
                why=f"it was not started with {flags}",
                hint="grid dev down first, or give another --dir",
            )
        return before
    given = given or (before.asked if before else {})
    from distributed_grid.agent.gpus.backends import open_backend

    real = [] if given.get("fake_gpus") else [gpu.uuid for gpu in open_backend().facts()]
    return make_plan(home, given, real)


def _living(home: Path) -> set[processes.Process]:
    """Return all services that run, or are about to: another `grid dev up` may have been interrupted."""
    recorded = {one for name in PID_FILES for one in _recorded(home, name)}
    return recorded | set(processes.services(home).values())


def _recorded(home: Path, name: str) -> list[processes.Process]:
    """The processes that run, of those which the pid files of this name tell of."""
    found = (processes.read(path) for path in sorted(home.glob(f"*/{name}")))
    return [process for process in found if process is not None]


def _start_coordinator(plan: Plan) -> str:
    """The coordinator's address, once it listens: that of its socket."""
    state = plan.home / "coordinator"
    told = state / "coordinator.json"
    log = plan.home / "coordinator.log"
    begin = log.stat().st_size if log.exists() else 0
    if (coming := processes.services(plan.home).get(state)) is not None:
        _await(told, coming, log, begin, "the coordinator")
    elif processes.read(state / "coordinator.pid") is None:
        state.mkdir(mode=0o700, exist_ok=True)
        state.chmod(0o700)  # the socket in it is open to all who get there
        if "port" in plan.asked:
            # It comes back where who has its address looks for it.
            where = ["--port", str(plan.port if plan.port is not None else plan.asked["port"])]
        else:
            where = ["--host", NO_HOST]
        told.unlink(missing_ok=True)
        child = processes.start(
            _grid("-c", plan.config, "coordinator", "run", *where, "--state-dir", str(state)),
            plan.environment({}),
            plan.home,
            log,
        )
        _await(told, child, log, begin, "the coordinator")
    if "port" in plan.asked:
        plan.port = int(str(json.loads(told.read_text())["url"]).rpartition(":")[2])
        plan.write()
    return f"{SCHEME}{state / SOCKET}"


def _await(told: Path, child: processes.Process, log: Path, begin: int, what: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not told.exists():
        if not child.alive or time.monotonic() > until:
            raise _not_started(what, log, begin)
        time.sleep(0.02)


def _not_started(what: str, log: Path, begin: int) -> GridError:
    """Return the error of a service that ended at its start: its own, or the end of its log."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if found:
        parts = {key: text for key, _, text in (line.strip().partition(": ") for line in lines[found[0] :][:3])}
        return GridError(
            f"{what} did not start: {parts['error']}", parts.get("why", ""), parts.get("try", f"see {log}")
        )
    text = " | ".join(line.strip() for line in lines[-LOG_LINES:])
    return GridError(f"{what} did not start in time", why=text[-1000:] or "it said nothing", hint=f"see {log}")


def _start_agents(plan: Plan, url: str) -> dict[str, processes.Process]:
    """Start the agents that do not run; these, by name."""
    started = {}
    coming = processes.services(plan.home)
    for agent in plan.agents:
        state = plan.home / agent.name
        if state in coming or processes.read(state / "agent.pid") is not None:
            continue
        state.mkdir(mode=0o700, exist_ok=True)
        agent.write_gpus(state)
        argv = _grid(
            "-c", plan.config, "--coordinator", url, "agent", "run", "--name", agent.name, "--state-dir", str(state),
            "--siblings", str(plan.home), *agent.flags(),
        )  # fmt: skip
        log = plan.home / f"{agent.name}.log"
        started[agent.name] = processes.start(argv, plan.environment(agent.environment(state)), plan.home, log)
    return started


def _grid(*words: str) -> list[str]:
    return [sys.executable, "-m", "distributed_grid.cli.main", *words]


def _await_offers(invocation: Invocation, plan: Plan, url: str, watched: dict[str, processes.Process]) -> None:
    """Wait until every node is up and offers; one that is up and withholds is told, and what keeps the coordinator from
    taking jobs; one that is not up is an error, at once where its process has ended."""

    died: list[str] = []
    began = time.monotonic()
    grid = client(url).connect()
    try:
        while True:
            offers = _offers(grid, {agent.name for agent in plan.agents if agent.stand_ins or agent.gpus})
            missing = [name for name in plan.names if offers.get(name, "not up")]
            if not missing:
                break
            not_up = [name for name in missing if offers.get(name, "not up") == "not up"]
            died = [name for name in not_up if name in watched and not watched[name].alive]
            if died or time.monotonic() > began + (START_SECONDS if not_up else OFFER_SECONDS):
                break
            time.sleep(0.05)
        trouble = grid.status().trouble
    finally:
        grid.close()
    for name in died or missing:
        if offers.get(name, "not up") == "not up":
            raise _not_started(name, plan.home / f"{name}.log", 0)
        invocation.say(f"{name} is up and does not offer all it has now: {offers[name]}")
    if trouble:
        invocation.say(trouble)


def _offers(grid: "GridClient", with_gpus: set[str]) -> dict[str, str]:
    """Return for each node the problem with it: none, that it is not up, or why it offers no CPU or no GPU."""

    answer: Shared = grid.shared()
    found = {}
    held = {one.node for one in answer.allocations}
    for offer in answer.offers:
        if offer.state != "up":
            found[offer.node] = "not up"
        elif (offer.room.cpu and (offer.room.gpu or offer.node not in with_gpus)) or offer.node in held:
            found[offer.node] = ""
        else:
            found[offer.node] = "; ".join(f"{one.what}: {one.why}" for one in offer.withheld) or "nothing offered yet"
    return found


def _tell(invocation: Invocation, plan: Plan, url: str, started: list[str], seconds: float) -> None:
    from distributed_grid.cli import formatting

    found = usual_address()
    lines = [f"a grid of {counted(len(plan.agents), 'node')} runs on this machine, for you alone ({seconds:.1f} s)"]
    for agent in plan.agents:
        state = "" if agent.name in started else " (ran already)"
        lines.append(f"  {agent.name}  {agent.describe()}{state}")
    lines += [
        f"thresholds   lenient, for trying out: {plan.thresholds}",
        f"state        {plan.home}",
        f"coordinator  {url}" + (f", ws://127.0.0.1:{plan.port}" if plan.port is not None else ""),
        "",
        "try:",
    ]
    if found != url:
        lines.append(f"  export GRID_COORDINATOR={shlex.quote(url)}")
    where = f" --dir {shlex.quote(str(plan.home))}" if plan.home != _home(None) else ""
    lines += [
        "  grid run-shared -t cpu -a 1 --no-ship sh -c 'echo hello from $GRID_NODE'",
        "  grid shared-status",
        f"  grid dev down{where}",
    ]
    content = {"coordinator": url, "port": plan.port, "dir": str(plan.home), "nodes": plan.names, "started": started}
    formatting.show(invocation, content, "".join(line + "\n" for line in lines), f"{url}\n")


# --- down -------------------------------------------------------------------------------------------------------------


def _end(home: Path) -> int:
    """End all of it; how many services that were."""
    living = _living(home)
    agents = processes.services(home)
    coordinators = {agents.pop(home / "coordinator", None)}
    if (recorded := processes.read(home / "coordinator" / "coordinator.pid")) is not None:
        coordinators.add(recorded)
        _end_jobs(home)
    # Agents first: one that is left would start a new supervisor.
    for agent in {*_recorded(home, "agent.pid"), *agents.values()}:
        agent.end(5.0)
    for supervisor in [*_recorded(home, "supervisor.pid"), *processes.supervisors(home)]:
        processes.end_tree(supervisor, 5.0)
    for stray in processes.jobs_under(home):
        stray.end(0.0)
    for coordinator in coordinators:
        if coordinator is not None:
            coordinator.end(5.0)
    return len(living)


def _end_jobs(home: Path) -> None:
    """End the jobs as usual, SIGTERM first, so that their records say so; this waits for a moment at most."""

    try:
        grid = client(f"{SCHEME}{home / 'coordinator' / SOCKET}", connect_seconds=1.0).connect()
        until = time.monotonic() + JOBS_SECONDS
        live = grid.jobs()
        if live:
            grid.cancel(*(view.id for view in live), reason="grid dev down", grace=2.0)
        while live and time.monotonic() < until:
            time.sleep(0.05)
            live = grid.jobs()
        grid.close()
    except GridError:
        return  # they are ended without it
