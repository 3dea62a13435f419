"""Speed of a job whose slack is lent to a revocable job, relative to its speed alone. Needs an otherwise idle machine.

The holder has all cores and uses none, until it is told to work: with as many processes as are left to it, where the
revocable job runs on beside it, and with one for each core, where that is frozen within a second. A machine's own speed
goes up and down, so the holder works beside the revocable job and alone in short turns (there the revocable job is
stopped by SIGSTOP), and each turn beside it is compared with the ones alone just before and after. Beside the speed
stands the share of CPU time that the holder got, which the machine's speed does not touch, and how much the speed alone
went up and down. The jobs have no control groups here, so both compete by niceness where they are on the same core.
What two plain programs on two cores get says how much of that is the machine's.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

from bench._common import GRID, Grid, grid, report, wait_for

CORES = len(os.sched_getaffinity(0))
TURNS = 4
"""Turns beside the revocable job, of each kind: for three minutes. Figures to be written down: --turns 20."""
SECONDS = 5.0
CONFIG = """
resource_sharing:
  policy: aggressive
  monitoring_interval_seconds: 1
  owner_policy: continue
  thresholds: {cpu_percent_max: 100, memory_percent_max: 100, memory_min_gb: 0.1}
agent: {offer_after: 0, reserve_memory_gb: 0}
unused: {window: 5}
"""
HOLDER = """
import os, signal, sys, time
many, seconds = int(sys.argv[1]), float(sys.argv[2])
told = []
signal.signal(signal.SIGUSR1, lambda number, frame: told.append(1))
while True:
    while not told: time.sleep(0.01)
    told.clear()
    readers = []
    for _ in range(many):
        mine, theirs = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            done, begun, end = 0, time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(20000): done += 1
            os.write(theirs, f"{done} {time.process_time() - begun}".encode())
            os._exit(0)
        os.close(theirs)
        readers.append(mine)
    found = [os.read(one, 100).split() for one in readers]
    for one in readers: os.close(one)
    for _ in readers: os.wait()
    print(sum(int(done) for done, _ in found), sum(float(cpu) for _, cpu in found), flush=True)
"""


class Worked(NamedTuple):
    """The progress of a holder in one turn: work, and CPU seconds."""

    done: int
    cpu: float


def _grid(running: Grid, *words: str) -> str:
    done = subprocess.run([*GRID, "--coordinator", running.url, *words], capture_output=True, check=True, text=True)
    return done.stdout


def _job(running: Grid, job: str) -> dict[str, Any]:
    return dict(json.loads(_grid(running, "job", "show", job, "-o", "json"))["jobs"][0])


class Scene:
    """A holder of all cores that works with a number of processes when it is told to, and a revocable job on its
    slack."""

    def __init__(self, running: Grid, many: int) -> None:
        self._running = running
        command = [sys.executable, "-c", HOLDER, str(many), str(SECONDS)]
        self.holder = self._submit("--cpus", str(CORES), *command)
        wait_for(lambda: self._state(self.holder) == "running", "the start of the holder", 60.0)
        self.user = self._submit("--revocable", "--cpus", "0.5", sys.executable, "-c", "while True: pass")
        wait_for(lambda: self._state(self.user) == "running", "the start of the revocable job", 60.0)
        self._turns = 0

    def _submit(self, *words: str) -> str:
        return _grid(self._running, "run-shared", "-d", "--no-ship", *words).strip()

    def _state(self, job: str) -> str:
        return str(_job(self._running, job)["state"])

    def frozen(self) -> bool:
        return _job(self._running, self.user)["suspended"] is not None

    def signal(self, job: str, number: int) -> None:
        from distributed_grid.coordinator.client import GridClient

        async def send() -> None:
            async with GridClient(self._running.url) as client:
                await client.signal(job, number)

        asyncio.run(send())

    def work(self) -> Worked:
        """Tell the holder to work, and wait for its result."""
        self.signal(self.holder, signal.SIGUSR1)
        time.sleep(SECONDS)  # and nothing else runs here meanwhile
        lines: list[str] = []

        def said() -> bool:
            lines[:] = _grid(self._running, "logs", self.holder).splitlines()
            return len(lines) > self._turns

        wait_for(said, "the holder's figures", 30.0)
        done, cpu = lines[self._turns].split()
        self._turns += 1
        return Worked(int(done), float(cpu))

    def beside(self) -> tuple[Worked, bool]:
        """Return the holder's progress while the revocable job wants to run, and whether that was frozen at the end."""
        self.signal(self.user, signal.SIGCONT)
        wait_for(lambda: not self.frozen(), "the revocable job runs", 60.0)
        return self.work(), self.frozen()

    def alone(self) -> Worked:
        self.signal(self.user, signal.SIGSTOP)
        return self.work()

    def end(self) -> None:
        """End both: a supervisor stays as long as its jobs do."""
        self.signal(self.user, signal.SIGCONT)
        _grid(self._running, "cancel", self.user, self.holder)
        wait_for(lambda: self._state(self.holder) == "ended", "the end of the holder", 60.0)


def machine(turns: int) -> float:
    """Return the progress of a program beside one of the idle class on another core, relative to the same program
    alone, without the grid: virtual cores may give less than a core each when two are busy."""
    shares = []
    for _ in range(turns):
        alone, beside = _burn(1), _burn(2)
        shares.append(beside / alone)
    return round(statistics.median(shares), 4)


def _burn(programs: int) -> float:
    """Return the CPU seconds in two seconds of the first of this many programs, each on a core of its own."""
    work = (
        "import sys, time; end = time.monotonic() + 2.0\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    )
    cores, running = sorted(os.sched_getaffinity(0)), []
    for number in range(min(programs, CORES)):
        running.append(subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True))
        os.sched_setaffinity(running[-1].pid, {cores[number]})
        if number:
            os.sched_setscheduler(running[-1].pid, os.SCHED_IDLE, os.sched_param(0))
    return [float(one.communicate()[0]) for one in running][0]


def measure(many: int, turns: int) -> dict[str, Any]:
    """Measure `turns` turns beside the revocable job, each between two alone."""
    speeds, shares, frozen, alone = list[float](), list[float](), list[bool](), list[Worked]()
    with grid(agents=1, config=CONFIG) as running:
        scene = Scene(running, many)
        alone.append(scene.alone())
        for _ in range(turns):
            worked, was_frozen = scene.beside()
            frozen.append(was_frozen)
            alone.append(scene.alone())
            before, after = alone[-2:]
            speeds.append(2 * worked.done / (before.done + after.done))
            shares.append(2 * worked.cpu / (before.cpu + after.cpu))
        scene.end()
    drift = [max(a.done, b.done) / min(a.done, b.done) for a, b in zip(alone, alone[1:], strict=False)]
    found = {"speed": speeds, "share": shares, "drift": drift}
    figures: dict[str, Any] = {name: round(statistics.median(values), 4) for name, values in found.items()}
    return figures | {"least": round(min(speeds), 4), "most": round(max(speeds), 4), "frozen": frozen.count(True)}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="revocable", description="a job whose slack is lent on")
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    plain = machine(turns)
    part, whole = (measure(many, turns) for many in (max(1, CORES - 1), CORES))
    report(
        "revocable",
        {
            "share_of_plain_programs": plain,
            "speed_beside": part["speed"],
            "share_beside": part["share"],
            "speed_when_it_wants_all": whole["speed"],
            "share_when_it_wants_all": whole["share"],
            "of_each": {"beside": part, "when_it_wants_all": whole},
            "cores": CORES,
            "seconds": SECONDS,
            "turns": turns,
        },
    )


if __name__ == "__main__":
    main()
