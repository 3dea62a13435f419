"""What the scripts here share: the floor, percentiles, one JSON line, and a real grid of processes on loopback.

Machines are shared and noisy, so every figure that is a rate stands beside the floor of the same moment: how many
`/bin/true` a plain `posix_spawn` and wait gets through from as many processes as there are slots. Compare the ratio.
What only computes stands beside `ticking`, a fixed piece of Python. CPU by process is in `_processes.py`.
"""

import argparse
import fcntl
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distributed_grid.runtime.local import SOCKET

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000
GRID = [sys.executable, "-m", "distributed_grid.cli.main"]
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[1]

FLOOR = """
import os, sys
count = int(sys.argv[1])
sys.stdin.read(1)
for _ in range(count):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
"""

# What else the machine does is to slow down what is measured, and not to have its owner taken for back.
CONFIG = """
resource_sharing:
  owner_pressure: 100
  thresholds:
    cpu_percent_max: 100
    memory_percent_max: 100
    memory_min_gb: 0.1
agent:
  offer_after: 0
"""


def floor(slots: int = 2, count: int = 1500) -> float:
    """Spawned and reaped `/bin/true` per second from `slots` processes that do nothing else."""
    each = count // slots
    workers = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", FLOOR, str(each)], stdin=subprocess.PIPE)
        for _ in range(slots)
    ]
    time.sleep(0.2)
    began = time.perf_counter()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write(b"g")
        worker.stdin.close()
    for worker in workers:
        worker.wait()
    return each * slots / (time.perf_counter() - began)


def beside_floor(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure, with `jobs_per_s` among the results, and add the floor from just before and just after."""
    before = floor()
    figures = measure()
    base = (before + floor()) / 2
    return {**figures, "floor_jobs_per_s": base, "fraction_of_floor": figures["jobs_per_s"] / base}


def ratio(one: float, other: float) -> float:
    """Return the quotient of two figures; 0 if the divisor is too small to have been measured."""
    return one / other if other else 0.0


def ticking(count: int = 200_000) -> float:
    """Seconds that a fixed, small piece of Python takes (the best of five): a floor for what only computes."""

    def once() -> float:
        seen: dict[int, tuple[int, str]] = {}
        began = time.perf_counter()
        for number in range(count):
            seen[number & 1023] = (number, "x")
            seen.get(number >> 1)
        return (time.perf_counter() - began) / count

    return min(once() for _ in range(5))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def cpu_seconds(pid: int) -> float:
    """CPU a process and its reaped children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(part) for part in fields[11:15]) / TICKS


def memory_mib(pid: int) -> float:
    """Proportional set size in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def rss_mib(pid: int) -> float:
    """Resident set size in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def median_of(runs: int, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over several runs."""
    return medians([measure() for _ in range(runs)])


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure, in what is nested, too; of all else that of the first row."""
    whole: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if isinstance(first, Mapping):
            whole[name] = medians(values)
        elif isinstance(first, int | float) and not isinstance(first, bool):
            whole[name] = statistics.median(values)
        else:
            whole[name] = first
    return whole


def rounded(value: Any) -> Any:
    """Figures as they are reported: of four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list | tuple) else value


def no_options(about: str | None) -> None:
    """Refuse options, or print what a script is about, which has none. Raises SystemExit."""
    argparse.ArgumentParser(description=about).parse_args()


def report(what: str, figures: Mapping[str, Any]) -> None:
    """Print one JSON line on stdout, with figures rounded to their precision."""
    print(json.dumps({"bench": what, **rounded(figures)}), flush=True)


def say(text: str) -> None:
    """Print the progress of a long script on stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Grid:
    """A running grid: its URL and its processes."""

    url: str
    folder: Path
    coordinator: int
    agents: list[int] = field(default_factory=list)
    supervisors: list[int] = field(default_factory=list)
    again: Callable[[float], float] = lambda away: 0.0
    """kill -9 the coordinator and after `away` seconds start it again at its address; seconds until it listens."""

    @property
    def local(self) -> str:
        """Return the address for an operator of this machine, also if the grid has an authority."""
        return f"unix://{self.folder / 'coordinator' / SOCKET}"


def wait_for(ready: Callable[[], Any], what: str, limit: float = 20.0) -> Any:
    """Poll until it is true; SystemExit with words if it never is."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found = ready()
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"{what} did not happen within {limit:g} s")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def levels() -> list[str]:
    """The levels of walls to compare: `user`, as the agent of a machine's service has them, and none."""
    return ["user", "none"] if os.geteuid() == 0 else ["none"]


def by_itself(folder: Path) -> None:
    """Have ext4 place the contents of this folder away from the rest: beside recently deleted files, creating new ones
    takes several times as long (measured here: 367 against 675 jobs/s), which is independent of the grid."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # another file system
        flags = struct.unpack("l", fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8)))[0]
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags | FS_TOPDIR_FL))
    os.close(fd)


@contextmanager
def _folder(inside: Path | None) -> Iterator[Path]:
    """A new directory; removed afterwards, unless the caller has named one to make it in."""
    if inside is not None:
        yield Path(tempfile.mkdtemp(prefix="grid-", dir=inside))
        return
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        by_itself(Path(name))
        yield Path(name)


@contextmanager
def grid(
    agents: int = 1,
    cores: Sequence[str] = (),
    config: str = CONFIG,
    extra: Sequence[str] = (),
    walls: str = "",
    inside: Path | None = None,
    variables: Mapping[str, str] | None = None,
    prepare: Callable[[Path], None] = lambda state: None,
) -> Iterator[Grid]:
    """A coordinator and agents as real processes on a free port; ended and removed afterwards.

    `cores` gives each agent its cores ("0-1"); without it they share out the machine's. `extra`: options of
    `grid agent run`; `variables` of their environment. `walls`: the level; empty: what there is in a directory that is
    closed to other users, so never `user`. `inside`: a directory in which all is left. `prepare` is called with the
    coordinator's state directory before that starts."""
    with _folder(inside) as folder:
        name = str(folder)
        if walls:
            folder.chmod(0o711)  # behind walls `user`, jobs have directories below it
            extra = ("--walls", walls, *extra)
        (folder / "grid.yaml").write_text(config)
        env = {**os.environ, "GRID_CONFIG": str(folder / "grid.yaml"), "XDG_STATE_HOME": name, **(variables or {})}
        env.pop("GRID_COORDINATOR", None)
        log = (folder / "log").open("wb")
        processes = []

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [*GRID, *words], cwd=name, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            processes.append(process)
            return process

        state = folder / "coordinator"
        try:
            prepare(state)
            coordinator = start("coordinator", "run", "--port", "0", "--state-dir", str(state))
            url = wait_for(lambda: _json(state / "coordinator.json"), "the start of the coordinator")["url"]
            running = Grid(url, folder, coordinator.pid)

            def again(away: float) -> float:
                os.kill(running.coordinator, signal.SIGKILL)
                next(one for one in processes if one.pid == running.coordinator).wait()
                (state / "coordinator.json").unlink()
                time.sleep(away)
                began = time.perf_counter()
                port = url.rpartition(":")[2]
                running.coordinator = start("coordinator", "run", "--port", port, "--state-dir", str(state)).pid
                wait_for(lambda: _json(state / "coordinator.json"), "the return of the coordinator")
                return time.perf_counter() - began

            running.again = again
            count = os.cpu_count() or 1
            for number in range(agents):
                mine = cores[number] if cores else ",".join(str(c) for c in range(count) if c % agents == number)
                home = folder / f"n{number}"
                agent = start(
                    "--coordinator", url, "agent", "run", "--name", f"n{number}", "--cores", mine,
                    "--state-dir", str(home), *extra,
                )  # fmt: skip
                running.agents.append(agent.pid)
                found = wait_for(partial(_json, home / "supervisor.pid"), "the start of a supervisor")
                running.supervisors.append(int(found["pid"]))
            yield running
        except SystemExit:
            sys.stderr.write((folder / "log").read_text()[-3000:])
            raise
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
            for home in folder.glob("n*/supervisor.pid"):
                found = _json(home)
                if found:
                    try:
                        os.kill(int(found["pid"]), signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            log.close()
