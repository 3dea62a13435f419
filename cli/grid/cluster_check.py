"""`grid cluster check`: whether the Ray cluster that boosts are lent to is set up correctly.

One line for each check: `ok`, `FAIL` with what to do, or `skip` with the reason if it cannot be made. Ray is asked from
this machine, through the same kind of process as the coordinator uses; the coordinator is asked what it has lent.
"""

import asyncio
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from distributed_grid import pip
from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current, printable
from distributed_grid.cli.lazy import Command
from distributed_grid.protocol.boosts import LABEL, RayAuth
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Boosts, GetStatus, Jobs, ListBoosts, ListJobs, RayNode, Status
from distributed_grid.protocol.text import counted
from distributed_grid.runtime.service import configure_logs, find_ray_token

FIRST_SECONDS = 60.0
"""How long Ray may take until it has answered once: it is imported first."""
ASK_SECONDS = 15.0
REACH_SECONDS = 3.0
RUN_SECONDS = 60.0
MOST_JOBS = 100_000


class Report:
    """The findings: printed line by line for people as they come, at the end for programs."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self.found: list[dict[str, str]] = []

    @property
    def failed(self) -> int:
        """The number of failed checks."""
        return sum(one["result"] == "fail" for one in self.found)

    def ok(self, what: str, text: str) -> None:
        self._add("ok", what, text)

    def fail(self, what: str, text: str, remedy: str) -> None:
        self._add("fail", what, text, remedy)

    def skip(self, what: str, why: str) -> None:
        self._add("skip", what, why)

    def error(self, what: str, error: GridError) -> None:
        self.fail(what, _words(error), error.hint)

    def _add(self, result: str, what: str, text: str, remedy: str = "") -> None:
        self.found.append({"check": what, "result": result, "text": text, "try": remedy})
        if self._invocation.output == "table":
            word = "FAIL" if result == "fail" else result
            formatting.emit(printable(f"{word:<5} {what}: {text}{f' → {remedy}' if remedy else ''}") + "\n")

    def close(self) -> None:
        """Print the summary."""
        made = sum(one["result"] != "skip" for one in self.found)
        match self._invocation.output:
            case "json" | "jsonl":
                formatting.emit_json(self._invocation, {"checks": self.found, "failed": self.failed}, rows="checks")
            case "quiet":
                formatting.emit(formatting.lines(one["check"] for one in self.found if one["result"] == "fail"))
            case _:
                formatting.emit(f"{counted(made, 'check')}, {self.failed or 'none'} failed\n")


@click.command(cls=Command)
@click.option("--run", "runs", is_flag=True, help="Also run an empty task on each boost.")
def check(runs: bool) -> None:
    """Check the Ray cluster that boosts are lent to.

    Checks the head and its token, the versions of Ray and Python on each node, whether each raylet can be reached, each
    boost, and leftovers of earlier boosts. Exits with 1 if a check fails. Changes nothing.
    """
    from distributed_grid.coordinator.ray.bridge_client import Bridge, environment

    invocation = current()
    configure_logs("critical")
    report = Report(invocation)
    grid, lent, live = _grid(report, invocation)
    found = _cluster(report, invocation, lent)
    if not _installed(report):
        found = None
    if found is not None:
        address, auth, token = found
        with _quiet_ray():
            asyncio.run(_check(report, Bridge(address, environment(auth.value, token)), grid, lent, live, runs))
    report.close()
    sys.exit(1 if report.failed else 0)


@contextmanager
def _quiet_ray() -> Iterator[None]:
    """Suppress the output of the process that queries Ray."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _installed(report: Report) -> bool:
    try:
        report.ok("ray", f"{importlib.metadata.version('ray')} is installed here")
    except importlib.metadata.PackageNotFoundError:
        report.fail("ray", "it is not installed for this Python", pip.install(*pip.EXTRAS["ray"]))
        return False
    return True


def _grid(report: Report, invocation: Invocation) -> tuple[Status | None, Boosts | None, set[str]]:
    """Return the coordinator's view: the nodes, what was lent, and which jobs live."""
    try:
        grid: Status = invocation.ask(lambda n: GetStatus(id=n))
        lent: Boosts = invocation.ask(lambda n: ListBoosts(n))
        jobs: Jobs = invocation.ask(lambda n: ListJobs(n, False, (), "", MOST_JOBS))
    except (GridError, OSError) as error:
        known = error if isinstance(error, GridError) else GridError("the coordinator cannot be asked", why=str(error))
        report.error("coordinator", known)
        return None, None, set()
    report.ok("coordinator", f"{counted(len(grid.nodes), 'node')}, {counted(len(lent.boosts), 'boost')}")
    return grid, lent, {job.id for job in jobs.jobs}


def _cluster(report: Report, invocation: Invocation, lent: Boosts | None) -> tuple[str, RayAuth, str] | None:
    """Return where Ray is according to the configuration, else according to the coordinator, and how its processes
    authenticate to each other."""
    remedy = "set ray.address to HOST:PORT of its head, or RAY_ADDRESS"
    try:
        config = invocation.whole_config()
        address, auth = config.ray.address, config.ray.auth
        token = str(find_ray_token(config.ray.token, "ray.token")) if auth is RayAuth.TOKEN else ""
    except GridError as error:
        report.error("configuration", error)
        return None
    told = lent.address if lent is not None else ""
    if not address and not told:
        report.fail("configuration", "no Ray cluster is configured", remedy)
        return None
    if told and address and told != address:
        report.fail("configuration", f"Ray is at {address} here, at {told} for the coordinator", "give both the same")
    elif lent is not None and not told:
        report.fail("configuration", "the coordinator knows of no Ray cluster", f"{remedy}, and start it again")
    else:
        report.ok("configuration", f"Ray at {address or told}")
    return address or told, auth, token


async def _check(
    report: Report, bridge: Any, grid: Status | None, lent: Boosts | None, live: set[str], run: bool
) -> None:
    from distributed_grid.coordinator.ray.bridge_client import NoRay
    from distributed_grid.coordinator.ray.compare import ray_node

    try:
        try:
            cluster = await bridge.ask("cluster", seconds=FIRST_SECONDS)
            nodes = (await bridge.ask("nodes", seconds=ASK_SECONDS))["nodes"]
        except NoRay as error:
            report.error("head", error)
            return
        size = counted(len(nodes), "node")
        report.ok("head", f"Ray {cluster['ray']} at {bridge.address}, {size}, authentication as configured")
        _versions(report, cluster, grid)
        await _ports(report, nodes)
        if lent is not None:
            _boosts(report, bridge.address, lent, [ray_node(one) for one in nodes])
            await _groups(report, bridge, lent, live)
            if run:
                await _tasks(report, bridge, lent)
    finally:
        await bridge.close()


def _versions(report: Report, cluster: dict[str, Any], grid: Status | None) -> None:
    """Ray takes its own version only, and Python's to the minor number as we start it."""
    there = cluster["ray"], cluster["python"]
    here = cluster["here"]["ray"], cluster["here"]["python"]
    sides = [("this machine", here)] + [
        (node.facts.name, (node.facts.ray, node.facts.ray_python)) for node in (grid.nodes if grid is not None else ())
    ]
    for name, (ray, python) in sides:
        what = f"version of {name}"
        if not ray:
            report.skip(what, "no Ray there, so that it lends no boosts (docs/boosts.md)")
        elif ray != there[0] or _minor(python) != _minor(there[1]):
            remedy = f"pip install ray=={there[0]} there, with Python {_minor(there[1])}, and start its agent again"
            report.fail(what, f"Ray {ray}, Python {python}; the cluster has {there[0]}, {there[1]}", remedy)
        else:
            report.ok(what, f"Ray {ray}, Python {python}")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


async def _ports(report: Report, nodes: list[dict[str, Any]]) -> None:
    """Whether each raylet can be reached, as each has to be from each other."""
    for node in nodes:
        what, where = f"port of {node['name'] or node['ip']}", f"{node['ip']}:{node['port']}"
        try:
            async with asyncio.timeout(REACH_SECONDS):
                _, writer = await asyncio.open_connection(node["ip"], node["port"])
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer within {REACH_SECONDS:g} s"
            report.fail(what, f"its raylet at {where} cannot be reached: {why}", "open agent.ray_ports in its firewall")
        else:
            writer.close()
            report.ok(what, where)


def _boosts(report: Report, address: str, lent: Boosts, nodes: list[RayNode]) -> None:
    """Check that Ray shows each boost with what was lent, and no others."""
    from distributed_grid.coordinator.ray.compare import compared, marked

    running = frozenset(one.job.id for one in lent.boosts if one.job.state is State.RUNNING)
    for one in compared([view.job for view in lent.boosts if view.job.id], nodes, address, running, time.time()):
        what = f"boost {one.job.id}"
        if one.differs:
            report.fail(what, one.differs, f"grid job events {one.job.id}, grid boost release {one.job.id}")
        elif one.node is None:
            report.skip(what, f"it is {one.job.state}, and not in Ray")
        else:
            report.ok(what, f"{one.job.state} on {one.job.node}, {one.node.status} in Ray with what was lent")
    known = frozenset(one.job.id for one in lent.boosts)
    orphans = [one for one in marked(nodes, known) if one.orphan]
    for node in orphans:
        remedy = f"if it stays, end `ray start … --node-name={node.name}` there"
        report.fail("orphaned raylets", f"{node.boost} on {node.source or node.host}: {node.orphan}", remedy)
    if not orphans:
        report.ok("orphaned raylets", "none")


async def _groups(report: Report, bridge: Any, lent: Boosts, live: set[str]) -> None:
    """Whether each placement group of the grid belongs to something that lives."""
    from distributed_grid.coordinator.ray.bridge_client import BOOSTS, JOBS, NoRay

    try:
        groups = await bridge.ask("reserved", seconds=ASK_SECONDS)
    except NoRay as error:
        report.skip("placement groups", _words(error))
        return
    known = live | {one.job.id for one in lent.boosts}
    ours = [name for name in sorted(groups) if name.startswith((JOBS, BOOSTS))]
    left = [name for name in ours if not any(_is_of(name, job) for job in known)]
    for name in left:
        report.fail("placement groups", f"{name} is left over ({groups[name]})", "start the coordinator again")
    if not left:
        report.ok("placement groups", f"{len(groups)} of the grid, none is left over")


def _is_of(name: str, job: str) -> bool:
    """Whether this is the group of this job, or of one of its attempts."""
    from distributed_grid.coordinator.ray.bridge_client import BOOSTS, JOBS

    return any(name == kind + job or name.startswith(kind + job + ".") for kind in (JOBS, BOOSTS))


async def _tasks(report: Report, bridge: Any, lent: Boosts) -> None:
    """Whether a task runs on each boost."""
    from distributed_grid.coordinator.ray.bridge_client import NoRay

    for one in lent.boosts:
        if one.job.state is not State.RUNNING or not one.job.id:
            continue
        what = f"task on {one.job.id}"
        try:
            asked = {"selector": {LABEL: one.job.id}, "within": RUN_SECONDS}
            where = await bridge.ask("run_probe", seconds=RUN_SECONDS + ASK_SECONDS, **asked)
        except NoRay as error:
            report.fail(what, _words(error), "see the logs of its raylet: grid logs")
        else:
            report.ok(what, f"ran on {where[:12]}")


def _words(error: GridError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what
