"""N × `/bin/true` through a real coordinator, real agents and a client, beside the floor of the same moment.

Everything is on: durable store, supervised jobs with a journal, a fresh directory and two output files each. Two slots
in all, so one agent gets both cores and two agents one each. CPU is that of each kind of process.

Making files costs ext4 up to ten times as much where many were deleted within the last minutes. So each grid begins in
a directory where it does not (`inode_us`: what making a directory costs there), and nothing is removed before the end.
`--swept N` also runs N jobs more in the same grid, waits until the node has removed what it keeps no longer, and then
measures again.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import _processes
from bench._common import Grid, beside_floor, by_itself, grid, levels, medians, report, say, wait_for
from distributed_grid.coordinator.client import GridClient, describe_job

JOBS = 10_000
WARM = 200
SECONDS = 110.0
"""When no further setting is begun: the last one may take a minute."""
KEPT = 1000
"""Ended jobs whose files a node keeps (agent.keep_jobs)."""
SWEEP_LIMIT = 300.0
PLACES, PROBES = 8, 100


class Setting(NamedTuple):
    """The setting of a measurement: how many agents, behind which walls."""

    agents: int
    walls: str


def settings(agents: list[int], walls: list[str]) -> list[Setting]:
    """Return each number of agents behind each level, the first level with all numbers first."""
    return [Setting(number, level) for level in walls for number in agents]


async def batch(running: Grid, jobs: int, shipped: Path | None = None) -> dict[str, Any]:
    """Describe and submit all jobs at once and wait until the client knows that the last one is over; with the files of
    a directory that is shipped, if there is one."""
    async with GridClient(running.url) as client:
        bundle = await client.ship(shipped) if shipped is not None else ""
        before = await client.status()
        cpu = _processes.cpu(running)
        began = time.perf_counter()
        ids = await client.submit_many([describe_job(["/bin/true"], bundle=bundle) for _ in range(jobs)])
        submitted = time.perf_counter() - began
        await client.wait(ids[-1])
        while True:  # others may end after it
            status = await client.status()
            if sum(status.ended.values()) - sum(before.ended.values()) >= jobs:
                break
            await asyncio.sleep(0.01)
        took = time.perf_counter() - began
        assert set(status.ended) == {"exited"}, status.ended
    used = _processes.cpu_per(cpu, _processes.cpu(running), jobs)
    return {"jobs_per_s": jobs / took, "submit_s": submitted, "cpu_ms_per_job": used}


def inode_us(folder: Path) -> float:
    """Microseconds to make a directory in this one (the median); they stay."""
    taken = []
    for number in range(PROBES):
        began = time.perf_counter()
        (folder / f"probe{number}").mkdir()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


@contextmanager
def fresh_places() -> Iterator[Path]:
    """A directory whose subdirectories ext4 places apart from each other; removed afterwards with all that is in it."""
    name = tempfile.mkdtemp(prefix="grid-bench-")
    try:
        by_itself(Path(name))
        Path(name).chmod(0o711)  # behind walls `user`, jobs have directories below it
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def fresh(places: Path) -> tuple[Path, float]:
    """The cheapest of some new subdirectories to make files in, and what making one costs there."""
    made = [Path(tempfile.mkdtemp(prefix="fs-", dir=places)) for _ in range(PLACES)]
    cost = {path: inode_us(path) for path in made}
    best = min(made, key=lambda path: cost[path])
    best.chmod(0o711)
    return best, cost[best]


def swept(running: Grid) -> bool:
    """Whether the nodes have removed what is more than they keep."""
    left = [len(os.listdir(running.folder / f"n{number}" / "allocs")) for number in range(len(running.agents))]
    return max(left) <= KEPT


def files(places: Path) -> Path:
    """A directory with three small files."""
    made = places / "shipped"
    made.mkdir(exist_ok=True)
    for name in ("main.py", "data.csv", "notes.md"):
        (made / name).write_text(name * 500)
    return made


def measure(places: Path, setting: Setting, jobs: int, before: int, shipped: Path | None) -> dict[str, Any]:
    """Return the figures of one grid in a fresh directory, and, if `before` jobs are to run first, after these were
    swept."""
    where, cost = fresh(places)
    cores = ["0-1"] if setting.agents == 1 else ["0", "1"]
    with grid(agents=setting.agents, cores=cores, walls=setting.walls, inside=where) as running:
        asyncio.run(batch(running, WARM, shipped))
        row = {"inode_us": cost, **beside_floor(lambda: asyncio.run(batch(running, jobs, shipped)))}
        if before:
            for number in range(0, before, JOBS):
                some = min(JOBS, before - number)
                one = asyncio.run(batch(running, some, shipped))
                say(f"throughput: {number + some} of {before} to be swept, {one['jobs_per_s']:.0f} a second")
            wait_for(lambda: swept(running), "the removal of what old jobs left", SWEEP_LIMIT)
            again = {"inode_us": inode_us(running.folder / "n0"), "swept": before}
            again |= beside_floor(lambda: asyncio.run(batch(running, jobs, shipped)))
            row["after_sweep"] = again
            row["after_sweep_of_fresh"] = again["fraction_of_floor"] / row["fraction_of_floor"]
    return row


def main() -> None:
    """Print one line, with a row for each setting."""
    parser = argparse.ArgumentParser(prog="throughput", description="N x /bin/true through a whole grid")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2], choices=[1, 2])
    parser.add_argument("--walls", nargs="+", default=levels())
    parser.add_argument("--rounds", type=int, default=1, help="rounds over all settings; medians are printed")
    parser.add_argument("--shipped", action="store_true", help="every job gets the same three small files")
    parser.add_argument("--swept", type=int, default=0, help="run so many jobs before the second figure (minutes)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="begin no further setting after so long; 0: no limit"
    )
    given = parser.parse_args()
    plain = given.rounds == 1 and not given.swept
    limit = given.seconds or (SECONDS if plain else float("inf"))
    began = time.monotonic()
    rows: dict[Setting, list[dict[str, Any]]] = {one: [] for one in settings(given.agents, given.walls)}
    with fresh_places() as places:
        shipped = files(places) if given.shipped else None
        for _ in range(given.rounds):
            for one in rows:
                if time.monotonic() - began < limit:
                    rows[one].append(measure(places, one, given.jobs, given.swept, shipped))
                    say(f"throughput: {one.agents} agents, walls {one.walls}: {rows[one][-1]['fraction_of_floor']:.3f}")
    found = [{**one._asdict(), "rounds": len(those), **medians(those)} for one, those in rows.items() if those]
    left_out = [one._asdict() for one, those in rows.items() if not those]
    report("throughput", {"jobs": given.jobs, "shipped": given.shipped, "rows": found, "left_out": left_out})


if __name__ == "__main__":
    main()
