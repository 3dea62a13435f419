"""Cost of walls: latency from the launch order to the known end of `/bin/true`, and launches per second.

One worker for each level that this machine has, with a supervisor and spawners of its own; `floor` is a plain
posix_spawn and wait. They take turns, launch by launch, so that whatever else the machine does falls on all alike. As
root it runs in an enclosure (tests/abuse/enclosure.py): an agent behind `user` is root's, one behind the others is not.
"""

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench._common import no_options, report

LEVELS = ("none", "landlock", "namespace", "user")
LATENCIES, BURSTS, BURST, AT_ONCE = 150, 7, 150, 16
TRUE = "/bin/true"
LENDER = "lender"
PATIENCE = 30.0
GOAL_MS = 0.2
"""What a launch may cost more behind `namespace` and `user` than behind `none`."""


# --- a worker ---------------------------------------------------------------------------------------------------------


class Floor:
    """The baseline without a grid: the cost of a process."""

    async def start(self) -> None:
        """No preparation is needed."""

    async def one(self) -> None:
        """Make one and wait for its end."""
        os.waitpid(os.posix_spawn(TRUE, [TRUE], {}, setsid=True), 0)  # noqa: ASYNC221, ASYNC222 (nothing else runs)

    async def close(self) -> None:
        """Nothing is to be removed."""


class Walled:
    """A launcher and its supervisor behind this level of walls."""

    def __init__(self, level: str, folder: Path) -> None:
        from distributed_grid.agent.launch.launcher import Launcher
        from distributed_grid.agent.launch.workdir import Folders

        self._folders = Folders(folder)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self._ours = secrets.token_hex(4)
        self._launcher = Launcher(folder, self._take, walls=level)

    def _take(self, said: Any) -> None:
        waiting = self._waiting.get(said.allocation)
        if hasattr(said, "outcome") and waiting is not None and not waiting.done():
            if said.outcome.code != 0 or not said.outcome.started:
                waiting.set_exception(RuntimeError(f"{TRUE} did not run: {said.outcome}"))
            else:
                waiting.set_result(None)
            self._launcher.forget([said.allocation])

    async def start(self) -> None:
        """Start the supervisor, and one job: what walls cost once is not measured here."""
        await self._launcher.start()
        await self.one()

    async def one(self) -> None:
        """Launch one and wait until its end is known."""
        from distributed_grid.agent.launch import workdir
        from distributed_grid.protocol.jobs import JobSpec
        from distributed_grid.protocol.messages import Launch
        from distributed_grid.protocol.resources import Grant

        job = f"j-{self._ours}{next(self._numbers)}"
        launch = Launch(f"{job}.1", job, "bench", 1, Grant(), JobSpec((TRUE,)))
        ended = self._waiting[launch.allocation] = asyncio.get_running_loop().create_future()
        self._folders.make(launch.allocation)
        self._launcher.launch(launch, None, workdir.build_env(launch, "bench", None, {}, {}))
        await asyncio.wait_for(ended, PATIENCE)
        del self._waiting[launch.allocation]

    async def close(self) -> None:
        """End the supervisor, and with it all that is left."""
        pid = self._launcher.supervisor_pid
        await self._launcher.close(leave=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


async def work(level: str, folder: Path) -> None:
    """For each line on stdin, `one` or `burst`, launch that many processes, and print the seconds that it took."""
    place = Floor() if level == "floor" else Walled(level, folder)
    await place.start()
    print("{}", flush=True)
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        count = 1 if word == "one" else BURST
        left = iter(range(count))

        async def some(left: Any = left) -> None:
            for _ in left:
                await place.one()

        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(min(count, AT_ONCE))))
        print(time.perf_counter() - began, flush=True)
    await place.close()


# --- all of them ------------------------------------------------------------------------------------------------------


def worker(level: str, base: Path) -> "subprocess.Popen[str] | None":
    """Start a worker; None where this level cannot be had."""
    folder = base / level
    folder.mkdir()
    who: dict[str, Any] = {}
    if os.geteuid() == 0 and level != "user":
        base.chmod(0o755)
        shutil.chown(folder, LENDER, LENDER)
        who = {"user": LENDER, "group": LENDER, "extra_groups": []}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.jobs.walls", "--worker", level, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **who,
    )
    assert process.stdout is not None and process.stderr is not None
    if not process.stdout.readline():
        print(f"{level} cannot be measured: {process.stderr.read().strip()[-300:]}", file=sys.stderr)
        process.wait()
        return None
    return process


def measure() -> dict[str, Any]:
    """Medians by level, and of the differences and ratios against none and the floor in the same turn."""
    with tempfile.TemporaryDirectory(prefix="walls-", dir="/run" if os.geteuid() == 0 else None) as name:
        found = {level: worker(level, Path(name)) for level in ("floor", *LEVELS)}
        workers = {level: process for level, process in found.items() if process is not None}
        try:
            ones = turns(workers, "one", LATENCIES)
            bursts = turns(workers, "burst", BURSTS)
        finally:
            for process in workers.values():
                process.communicate()
    figures: dict[str, Any] = {"missing": [level for level in found if level not in workers]}
    for level in workers:
        figures[f"{level}_ms"] = statistics.median(ones[level]) * 1e3
        figures[f"{level}_per_second"] = BURST / statistics.median(bursts[level])
    for level in workers:
        if level not in ("floor", "none") and "none" in workers:
            figures[f"{level}_more_ms"] = between(ones, level, "none", lambda one, none: (one - none) * 1e3)
            figures[f"{level}_rate_of_none"] = between(bursts, "none", level, lambda none, one: none / one)
        if level != "floor":
            figures[f"{level}_rate_of_floor"] = between(bursts, "floor", level, lambda low, one: low / one)
    return figures


def turns(workers: "dict[str, subprocess.Popen[str]]", word: str, times: int) -> dict[str, list[float]]:
    """Let all workers do this `times` times, in turns: each time another one begins. Returns the seconds that each
    took."""
    taken: dict[str, list[float]] = {level: [] for level in workers}
    levels = [*workers]
    for number in range(times):
        first = number % len(levels)
        for level in levels[first:] + levels[:first]:
            process = workers[level]
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            taken[level].append(float(process.stdout.readline()))
    return taken


def between(taken: dict[str, list[float]], left: str, right: str, compare: Callable[[float, float], float]) -> float:
    """The median of a comparison between what two of them took at the same time."""
    return statistics.median(compare(one, other) for one, other in zip(taken[left], taken[right], strict=True))


def main() -> int:
    """Measure, report."""
    if sys.argv[1:2] == ["--worker"]:
        asyncio.run(work(sys.argv[2], Path(sys.argv[3])))
        return 0
    if sys.argv[1:2] != ["--inside"]:
        no_options(__doc__)
        if os.geteuid() == 0:
            from tests.abuse import enclosure

            return enclosure.run("bench.jobs.walls", ["--inside"])
    report("walls", {**measure(), "goal_more_ms": GOAL_MS})
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
