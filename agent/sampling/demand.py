"""The demand of a job for CPU time: what its processes use, and how long their runnable threads wait for a core."""

import os

from distributed_grid.agent.sampling.trees import TICK, children

_NANO = 1e-9
MOST = 1000
"""Maximum number of threads that are measured: each costs the agent some 20 µs, four times a second."""


class Demand:
    """The demand of one job, by its first process. Ended children count with what they used; how long they waited is
    not known. A process that was once seen below it counts as long as it lives, also when it has another parent."""

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
            if pid in seen or not (stat := _read(f"/proc/{pid}/stat")):
                continue
            field = stat[stat.rindex(b")") + 2 :].split()
            if self._seen.get(pid, field[19]) != field[19]:
                continue
            if len(waits) + int(field[17]) > MOST:
                return None
            seen[pid] = field[19]
            ticks += sum(map(int, field[11:15]))
            threads = [pid] if field[17] == b"1" else _threads(pid)
            for thread in threads:
                if times := _read(f"/proc/{pid}/task/{thread}/schedstat").split():
                    waits[thread] = int(times[1])
            todo += children(pid, int(field[17]))
        known = self._waits
        self._waited += sum(max(0, wait - known[thread]) for thread, wait in waits.items() if thread in known)
        self._waits, self._seen = waits, seen
        return ticks * TICK + self._waited * _NANO


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
