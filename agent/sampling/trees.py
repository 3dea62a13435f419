"""Use by the grid's own processes: the trees below a few roots, walked by their children, without listing all processes
of the machine. CPU time is exact and includes children that started and ended between two walks. Also the CPU demand of
a job: what its processes use, and how long their runnable threads wait for a core."""

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from distributed_grid.agent.core.usage import Usage
from distributed_grid.agent.supervisor import procs
from distributed_grid.runtime.unix import SUPERVISOR, boot_clock, read

_SPAWNER = SUPERVISOR.encode()  # which forks them
TICK = 1 / os.sysconf("SC_CLK_TCK")
_NANO = 1e-9
MOST_THREADS = 1000
"""Maximum number of threads of a job that are measured: each costs the agent some 20 µs, four times a second."""
PAGE = os.sysconf("SC_PAGE_SIZE")

Spent = list[tuple[frozenset[int], float]]
"""CPU seconds, each with the cores they may have been spent on (empty: any)."""


@dataclass(slots=True)
class Process:
    """A process at a walk. `cpu` is its own, `reaped` that of its ended children, in seconds; `started` in seconds
    since boot; `top` the process directly below a root or a spawner that it descends from (0: itself)."""

    pid: int
    parent: int
    started: float
    cpu: float
    reaped: float
    rss: int
    cores: frozenset[int]
    top: int
    sibling: bool


class Trees:
    """Walks the trees below the roots: `own` ones, and `siblings`, other agents of the same grid on this machine."""

    def __init__(self, own: Callable[[], Iterable[int]], siblings: Callable[[], Iterable[int]] = tuple) -> None:
        self._own, self._siblings = own, siblings
        self._seen: dict[int, Process] = {}
        self._debts: dict[int, float] = {}
        self._walked = boot_clock()

    def walk(self) -> tuple[Spent, Spent]:
        """CPU time since the last walk of our own trees and of our siblings'."""
        before, began = self._seen, boot_clock()
        seen = self._read()
        gone = [one for one in before.values() if _lookup(seen, one) is None]
        # An ended child's time goes to whoever reaped it: its nearest ancestor that is left.
        charges: dict[int, float] = {}
        places: dict[int, frozenset[int]] = {}
        for one in gone:
            heir = _reaper(one, before, seen)
            if heir:
                charges[heir] = charges.get(heir, 0.0) + one.cpu + one.reaped
                places[heir] = places.get(heir, frozenset()) | one.cores
        own: Spent = []
        siblings: Spent = []
        debts: dict[int, float] = {}
        for pid, now in seen.items():
            spent = siblings if now.sibling else own
            then = _lookup(before, now)
            if then is None:
                if now.started >= self._walked - 2 * TICK:  # else it ran long before it became ours
                    spent.append((now.cores, now.cpu + now.reaped))
                continue
            spent.append((now.cores, max(0.0, now.cpu - then.cpu)))
            charge = charges.get(pid, 0.0)
            rest = now.reaped - then.reaped - charge - self._debts.get(pid, 0.0)
            if rest < 0:
                # The child ended after its parent was read: its time, already counted, shows up there at the next walk.
                debts[pid] = min(-rest, charge)
            else:
                spent.append((places.get(pid, now.cores), rest))
        self._seen, self._debts, self._walked = seen, debts, began
        return own, siblings

    @property
    def pids(self) -> set[int]:
        """Return all processes of the grid at the last walk, siblings included."""
        return set(self._seen)

    def memory(self) -> tuple[int, int]:
        """Resident bytes of our jobs and of our siblings'; the roots themselves do not count."""
        own = sum(one.rss for one in self._seen.values() if one.top and not one.sibling)
        return own, sum(one.rss for one in self._seen.values() if one.top and one.sibling)

    def usage(self, on_gpus: Mapping[str, Mapping[int, int]] | None = None) -> dict[int, Usage]:
        """Use of each process directly below one of our own roots and their spawners with its tree, by pid; including
        daemons without parent that were seen under it once. `on_gpus`: by GPU the bytes of processes, by pid."""
        found: dict[int, Usage] = {}
        gpus: dict[int, tuple[tuple[str, int], ...]] = {}
        for uuid, processes in (on_gpus or {}).items():
            here: dict[int, int] = {}
            for pid, memory in processes.items():
                if memory and (process := self._seen.get(pid)) is not None:
                    here[process.top] = here.get(process.top, 0) + memory
            gpus |= {top: (*gpus.get(top, ()), (uuid, memory)) for top, memory in here.items()}
        for one in self._seen.values():
            if one.top and not one.sibling:
                so_far = found.get(one.top, Usage())
                rss, cpu = so_far.rss + one.rss, so_far.cpu + one.cpu + one.reaped
                found[one.top] = Usage(rss, cpu, so_far.processes + 1, gpus.get(one.top, ()))
        return found

    def _read(self) -> dict[int, Process]:
        own = dict.fromkeys(self._own(), False)
        roots = own | {pid: True for pid in self._siblings() if pid not in own}
        seen: dict[int, Process] = {}
        todo = [(pid, 0, 0, sibling) for pid, sibling in reversed(roots.items())]
        while todo:
            pid, parent, top, sibling = todo.pop()
            if pid in seen or (parent and pid in roots):
                continue
            found = _process(pid, parent, top, sibling)
            if found is None:
                continue
            process, threads, name = found
            then = _lookup(self._seen, process)
            if parent in roots and name == _SPAWNER:
                process.top = 0  # a spawner: each of its children is a job
            elif then is not None and parent:
                process.top = then.top or top
            seen[pid] = process
            below = process.top if parent else 0
            todo.extend((child, pid, below or child, sibling) for child in children(pid, threads))
        return seen


def _process(pid: int, parent: int, top: int, sibling: bool) -> tuple[Process, int, bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        cores = frozenset(os.sched_getaffinity(pid))
    except OSError:
        return None
    field = stat[stat.rindex(b")") + 2 :].split()
    rss = int(field[21]) * PAGE
    if not rss and int(field[17]) > 1 and (seen := procs.stat(pid)) is not None:
        rss = procs.resident(pid, seen)
    return (
        Process(
            pid=pid,
            parent=parent,
            started=int(field[19]) * TICK,
            cpu=(int(field[11]) + int(field[12])) * TICK,
            reaped=(int(field[13]) + int(field[14])) * TICK,
            rss=rss,
            cores=cores,
            top=top,
            sibling=sibling,
        ),
        int(field[17]),
        stat[stat.index(b"(") + 1 : stat.rindex(b")")],
    )


def children(pid: int, threads: int = 0) -> list[int]:
    """The pids of a process's children, whichever of its `threads` (0: unknown) forked them."""
    try:
        tasks = [str(pid)] if threads == 1 else os.listdir(f"/proc/{pid}/task")
        return list(_list(pid, tasks))
    except FileNotFoundError:
        return [] if _kernel_lists() else _scan(pid)  # it is gone, or the kernel lists no children
    except OSError:
        return []


def _list(pid: int, tasks: Iterable[str]) -> Iterator[int]:
    for task in tasks:
        with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
            yield from map(int, file.read().split())


@functools.cache
def _kernel_lists() -> bool:
    """Whether this kernel lists children at all (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _scan(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def _lookup(among: dict[int, Process], one: Process) -> Process | None:
    """The same process in another walk, not one that reuses its pid."""
    found = among.get(one.pid)
    return found if found is not None and found.started == one.started else None


def _reaper(one: Process, before: dict[int, Process], seen: dict[int, Process]) -> int:
    while one.parent in before:
        one = before[one.parent]
        if _lookup(seen, one) is not None:
            return one.pid
    return 0


def sibling_roots(directory: Path) -> list[int]:
    """The living services of the dev grid in `directory`, by the pid files one folder below: supervisors, agents and
    the coordinator. Reused pids are left out."""
    found = []
    for name in ("supervisor.pid", "agent.pid", "coordinator.pid"):
        for file in sorted(directory.glob(f"*/{name}")):
            try:
                record = json.loads(file.read_text())
                pid, start = int(record["pid"]), int(record["start"])
                stat = Path(f"/proc/{pid}/stat").read_bytes()
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if int(stat[stat.rindex(b")") + 2 :].split()[19]) == start:
                found.append(pid)
    return found


class Demand:
    """The demand of one job for CPU time, by its first process. Ended children count with what they used; how
    long they waited is not known. A process that was once seen below it counts as long as it lives, also when it has
    another parent."""

    def __init__(self) -> None:
        self._waits: dict[int, int] = {}
        self._waited = 0
        self._seen: dict[int, bytes] = {}
        """The start of each process seen so far, in clock ticks, by which a reused pid is noticed."""

    def seconds(self, pid: int) -> float | None:
        """CPU seconds that the process and all that came from it have wanted so far; None: it has too many threads to
        be measured."""
        ticks, waits, seen, todo = 0, dict[int, int](), dict[int, bytes](), [*self._seen, pid]
        while todo:
            pid = todo.pop()
            if pid in seen or not (stat := read(f"/proc/{pid}/stat")):
                continue
            field = stat[stat.rindex(b")") + 2 :].split()
            if self._seen.get(pid, field[19]) != field[19]:
                continue
            if len(waits) + int(field[17]) > MOST_THREADS:
                return None
            seen[pid] = field[19]
            ticks += sum(map(int, field[11:15]))
            threads = [pid] if field[17] == b"1" else procs.threads(pid)
            for thread in threads:
                if times := read(f"/proc/{pid}/task/{thread}/schedstat").split():
                    waits[thread] = int(times[1])
            todo += children(pid, int(field[17]))
        known = self._waits
        self._waited += sum(max(0, wait - known[thread]) for thread, wait in waits.items() if thread in known)
        self._waits, self._seen = waits, seen
        return ticks * TICK + self._waited * _NANO
