"""`make chaos`: a grid of real processes under faults, and at the end what it says held against what is true.

    make chaos ARGS="--minutes 20 --seed 1"

The same seed draws the same jobs and the same faults; when exactly each meets the other is the machine's. The exit code
is 1 where a promise was broken, and then all that was written stays for inspection.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.eventlog.replay import replay
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Status
from distributed_grid.protocol.nodes import NodeState
from tests.chaos.clients import FOREVER, Users
from tests.chaos.faults import Faults
from tests.chaos.jobs import read_records
from tests.chaos.judge import Verdict, judge
from tests.chaos.report import progress, stories, summary
from tests.chaos.world import CORES, INIT, World, unavailable, until, uptime

PATIENCE = 180.0
"""Seconds that everything may take to be over once all is whole again."""


class Watch:
    """Observes the grid all the time: how many jobs are not over, and how long killed services take to be back."""

    def __init__(self, world: World, users: Users) -> None:
        self._world = world
        self._users = users
        self._lives: dict[str, int] = {}
        self.returns: dict[str, list[float]] = {"coordinator": [], "agent": []}
        """Seconds from each start to the first answer, or to being counted on."""
        self.status: Status | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        async with GridClient(self._world.url, user="watch", patience=FOREVER) as client:
            while True:
                self.status = status = await client.status()
                self._users.waiting = sum(status.counts.values())
                self._seen("coordinator", "coordinator", status.epoch)
                for node in status.nodes:
                    if node.state is NodeState.UP:
                        self._seen("agent", node.facts.name, node.facts.incarnation)
                await asyncio.sleep(0.1)

    def _seen(self, kind: str, name: str, life: int) -> None:
        if self._lives.get(name) != life:
            self._lives[name] = life
            self.returns[kind].append(uptime() - self._world.services[name].starts[-1])


async def campaign(arguments: argparse.Namespace, place: Path) -> bool:
    """The whole of it; whether all promises were kept."""
    world = World(place, arguments.nodes)
    users = Users(world, arguments.seed, 4, arguments.rate)
    faults = Faults(world, arguments.seed, arguments.pace)
    watch = Watch(world, users)
    await begin(world)
    await users.connect()
    watching = asyncio.create_task(watch.run())
    begun = uptime()
    tasks = [asyncio.create_task(users.submit()), asyncio.create_task(faults.run())]
    with contextlib.suppress(asyncio.CancelledError):  # ^C: end it here and tell what was found until now
        await endure(world, tasks, arguments.minutes * 60, lambda: progress(begun, users, faults))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    busy = uptime() - begun
    print("all is whole again; waiting for the end of everything", flush=True)
    left = await settle(world, users, watch)
    verdict = await pronounce(world, users, faults, left)
    watching.cancel()
    await users.close()
    print(summary(arguments, verdict, users, faults, watch.returns, busy), flush=True)
    if verdict.violations:
        print(stories(verdict, users, faults, world), flush=True)
    return not verdict.violations


async def begin(world: World) -> None:
    """Start everything, and wait until all nodes offer all they have."""
    for name in world.services:
        world.start(name)

    async def whole() -> bool:
        return not await unfit(world)

    if not await until(whole, PATIENCE):
        raise SystemExit(f"the grid did not come up: {await unfit(world)}")


async def endure(world: World, tasks: list["asyncio.Task[None]"], seconds: float, report: Callable[[], str]) -> None:
    """Let the campaign go on for this many seconds, with a line every ten seconds. A task or service that fails ends
    it."""
    end = uptime() + seconds
    while uptime() < end and not world.died_alone():
        done, _ = await asyncio.wait(tasks, timeout=min(10.0, end - uptime()), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        print(report(), flush=True)


async def settle(world: World, users: Users, watch: Watch) -> list[str]:
    """Wait until nothing is to be done any more (not where a service died by itself); what is left then."""
    patience = 5.0 if world.died_alone() else PATIENCE
    await users.finish(patience)

    async def over() -> bool:
        return watch.status is not None and not users.waiting

    async def fit() -> bool:
        return not await unfit(world) and not world.strangers()

    await until(over, patience)
    await until(fit, min(60.0, patience), 0.5)
    left = [f"left over: {process}" for process in world.strangers()]
    again = await asyncio.to_thread(decided_otherwise, world)
    return [*await unfit(world), *left, *world.died_alone(), *world.tracebacks(), *again]


def decided_otherwise(world: World) -> list[str]:
    """Return where a replay of the coordinators' event log, with all their deaths, has another result."""
    found = replay(world.place / "coordinator").difference
    return [] if found is None else [f"decided otherwise when it was replayed: {found}"]


async def unfit(world: World) -> list[str]:
    """Return what is missing for a whole and idle grid: every node up, nothing lent, and everything offered."""
    try:
        async with GridClient(world.url, user="watch", patience=5) as client:
            nodes = {node.facts.name: node for node in await client.nodes()}
            shared = await client.shared()
    except GridError as error:
        return [f"{error.what}: {error.why}"]
    found = [f"{name} is not there" for name in world.nodes if name not in nodes]
    found += [f"{name} is {node.state.value}" for name, node in nodes.items() if node.state is not NodeState.UP]
    found += [f"{one.id} is still held on {one.node}" for one in shared.allocations]
    for offer in shared.offers:
        if len(offer.cores) != CORES or offer.room.cpu != CORES * 1000:
            found.append(f"{offer.node} offers {offer.room} of {CORES} cores: {offer.withheld}")
    offering = {offer.node for offer in shared.offers}
    return found + [f"{name} offers nothing" for name in world.nodes if name not in offering]


async def pronounce(world: World, users: Users, faults: Faults, left: list[str]) -> Verdict:
    """Query the grid for the end of every job, and judge it."""
    views = await users.views()
    await users.read_again(views)
    verdict = judge(users.told, views, read_records(world.records), faults.log)
    verdict.wrong += [("", text) for text in left]
    return verdict


def main() -> int:
    """Enter a separate world, and run a campaign there."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come (5)")
    parser.add_argument("--seed", type=int, default=1, help="what the jobs and the faults are drawn from (1)")
    parser.add_argument("--nodes", type=int, default=4, help="how many nodes (4)")
    parser.add_argument("--rate", type=float, default=14.0, help="jobs a second (14)")
    parser.add_argument("--pace", type=float, default=1.0, help="how much faster than usual the faults come (1)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.inside:
        if why := unavailable():
            print(f"no campaign on this machine: it {why}", file=sys.stderr)
            return 77
        os.execvp(INIT[0], [*INIT, sys.executable, "-m", "tests.chaos.campaign", "--inside", *sys.argv[1:]])  # noqa: S606
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    kept = False
    with asyncio.Runner() as runner:
        kept = runner.run(campaign(arguments, place))
    if kept:
        shutil.rmtree(place)
    else:
        print(f"all that was written is in {place}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
