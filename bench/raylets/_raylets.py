"""Reports when something was first observed, from a process of its own, so that polling does not disturb `boosts`. All
processes of a machine share the monotonic clock.

One question a line, one answer a line, seconds of the monotonic clock: `there NAME` (Ray's list of nodes has a node of
that name), `gone NAME`, `started PID` (below that process there is another `ray start`).
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ray._raylet import GcsClient
from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest

from distributed_grid.agent.supervisor import procs

ALIVE = 0
PATIENCE = 90.0
OF_RAY, OF_PROC = 0.001, 0.0002
"""Seconds between two looks."""


def first(so: Callable[[], bool], pause: float) -> float:
    """Return when the condition was first true; 0: it never was."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if so():
            return time.monotonic()
        time.sleep(pause)
    return 0.0


def starts(parent: str) -> set[str]:
    """The descendants of this process that are a `ray start`, by now: a spawner is between them."""
    found = set()
    for child in map(str, procs.descendants([int(parent)])):
        try:
            argv = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"\0start\0--block\0" in argv:
            found.add(child)
    return found


def main(address: str) -> None:
    """Answer requests until the input ends."""
    gcs = GcsClient(address=address)

    def there(name: str) -> bool:
        meant = [GetAllNodeInfoRequest.NodeSelector(node_name=name)]
        return bool(gcs.get_all_node_info(timeout=3.0, node_selectors=meant, state_filter=ALIVE))

    def answer(ask: str, about: str) -> float:
        if ask == "started":
            before = starts(about)
            print("now", flush=True)
            return first(lambda: bool(starts(about) - before), OF_PROC)
        return first(lambda: there(about) is (ask == "there"), OF_RAY)

    for line in sys.stdin:
        print(answer(*line.split()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
