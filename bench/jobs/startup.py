"""Wall time of whole commands: `grid --help` and `grid run-shared … true`, beside a bare Python, which is the floor,
and a bare click."""

import os
import statistics
import subprocess
import sys
import time

from bench._common import GRID, grid, no_options, report


def wall_ms(argv: list[str], env: dict[str, str] | None = None, times: int = 15) -> float:
    """Median wall time of a whole process in milliseconds."""
    subprocess.run(argv, env=env, capture_output=True, check=True)
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(argv, env=env, capture_output=True, check=True)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    figures = {
        "python_ms": wall_ms([sys.executable, "-c", "pass"]),
        "import_click_ms": wall_ms([sys.executable, "-c", "import click"]),
        "grid_help_ms": wall_ms([*GRID, "--help"]),
    }
    with grid(agents=1) as running:
        env = {**os.environ, "GRID_COORDINATOR": running.url}
        figures["run_shared_true_ms"] = wall_ms([*GRID, "run-shared", "-t", "cpu", "-a", "1", "--no-ship", "true"], env)
    for name in ("grid_help", "run_shared_true"):
        figures[f"{name}_times_python"] = figures[f"{name}_ms"] / figures["python_ms"]
    report("startup", figures)


if __name__ == "__main__":
    main()
