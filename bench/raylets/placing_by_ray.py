"""Latency of placement by Ray: from submit to start on an idle grid, with and without a reservation by Ray. The head
of Ray runs in a network namespace of its own, as its processes take whatever port is free; so it takes root. One
line; nothing where there is no Ray."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench._common import CONFIG, grid, no_options, percentile, report
from bench.jobs import latency

INSIDE = "GRID_BENCH_INSIDE"
HEAD = "127.0.0.1:6399"
START = (
    "start", "--head", "--block", "--port=6399", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--num-gpus=0",
    "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000", "--memory=500000000",
)  # fmt: skip
BY_RAY = CONFIG + f"placement: ray\nray: {{address: '{HEAD}'}}\n"
PROBES = 40
WARM = 10.0
"""Seconds in which Ray's head and the process that asks it are there."""


@contextmanager
def head() -> Iterator[None]:
    """A head of Ray."""
    with tempfile.TemporaryDirectory(prefix="r") as place:
        environment = os.environ | {"RAY_AUTH_MODE": "disabled", "HOME": place}
        command = [str(Path(sys.executable).with_name("ray")), *START, f"--temp-dir={place}"]
        quiet = subprocess.DEVNULL
        ray = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
        try:
            yield
        finally:
            ray.send_signal(signal.SIGINT)
            ray.wait(60)


def starts(config: str, warm: float) -> list[float]:
    """Milliseconds from submit to start, of each job."""
    with grid(agents=1, config=config) as running:
        time.sleep(warm)
        return asyncio.run(latency.probe(running.url, PROBES))["start"]


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    if importlib.util.find_spec("ray") is None:
        print("placing_by_ray: there is no Ray here", file=sys.stderr)
        return
    if INSIDE not in os.environ:
        command = f"ip link set lo up && exec {sys.executable} -m bench.raylets.placing_by_ray"
        subprocess.run(["unshare", "--net", "sh", "-c", command], env=os.environ | {INSIDE: "1"}, check=True)
        return
    with head():
        by_ray = starts(BY_RAY, WARM)
        embedded = starts(CONFIG, 1.0)
    figures: dict[str, float] = {"probes": PROBES}
    for name, values in (("embedded", embedded), ("ray", by_ray)):
        figures[f"submit_to_start_{name}_p50_ms"] = percentile(values, 0.5)
        figures[f"submit_to_start_{name}_p95_ms"] = percentile(values, 0.95)
    report("placing_by_ray", figures)


if __name__ == "__main__":
    main()
