"""CPU time, context switches and I/O of a grid's processes, summed by what they are: coordinator, agent, supervisor,
spawners, and the client, which is this process. What the jobs themselves used is that of reaped children.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bench._common import TICKS, Grid

KINDS = ("coordinator", "agent", "supervisor", "spawners", "jobs", "client")
IO = {"rchar": "read_kib", "wchar": "written_kib", "syscr": "reads", "syscw": "writes"}
"""Fields of /proc/PID/io, and what they are called here."""


def times(stat: str) -> tuple[float, float]:
    """CPU seconds of a process and of its reaped children, by its /proc/PID/stat."""
    fields = [int(one) for one in stat.rpartition(")")[2].split()[11:15]]
    return (fields[0] + fields[1]) / TICKS, (fields[2] + fields[3]) / TICKS


def below(pid: int, parents: Mapping[int, int]) -> list[int]:
    """The living descendants of a process, given the parent of each."""
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in parents.items():
        children[parent].append(child)
    found: list[int] = []
    ahead = children[pid]
    while ahead:
        found += ahead
        ahead = [one for parent in ahead for one in children[parent]]
    return found


def parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # ended meanwhile
            found[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def processes(running: Grid) -> dict[str, list[int]]:
    """The grid's processes by kind. While no job runs, what lives below a supervisor is its fork server and its
    spawners."""
    known = parents()
    spawners = [one for pid in running.supervisors for one in below(pid, known)]
    return {
        "coordinator": [running.coordinator],
        "agent": running.agents,
        "supervisor": running.supervisors,
        "spawners": spawners,
    }


def cpu(running: Grid) -> dict[str, float]:
    """CPU seconds by kind so far. A spawner that has ended counts among the jobs: its supervisor has reaped it."""
    used = dict.fromkeys(KINDS, 0.0)
    used["client"] = sum(os.times()[:2])
    for kind, pids in processes(running).items():
        for pid in pids:
            with suppress(OSError):
                own, reaped = times(Path(f"/proc/{pid}/stat").read_text())
                used[kind] += own
                used["jobs"] += reaped if kind in ("supervisor", "spawners") else 0.0
    return used


def cpu_per(before: Mapping[str, float], after: Mapping[str, float], units: int) -> dict[str, float]:
    """Return CPU milliseconds by kind for each of this many units of work, and `all` of them together."""
    each = {kind: (after[kind] - before[kind]) / units * 1e3 for kind in after}
    return {"all": sum(each.values()), **each}


def counters(pid: int) -> dict[str, float]:
    """Context switches of all threads of a process, and its calls and KiB of reading and writing, so far."""
    found: dict[str, float] = defaultdict(float)
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name in IO:
                found[IO[name]] += int(value) / (1024 if name.endswith("char") else 1)
        for task in Path(f"/proc/{pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches:" in line:  # voluntary ones, and others
                    found["switches"] += int(line.split()[1])
    return dict(found)
