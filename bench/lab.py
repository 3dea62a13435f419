"""The table of the policy lab (docs/policy-lab.md): several real traces under every policy, by `grid simulate --trace`.
The traces are data of others and not in this repository: `--traces FOLDER` or $GRID_TRACES says where they are."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

POLICIES = "grid,fcfs,easy,sjf,strict-fifo,best-effort,first-fit,random"
SEEDS = 3


class Case(NamedTuple):
    """A row of tables: what it is called, the file, and options. The first third of the jobs is not in the waits."""

    name: str
    file: str
    options: tuple[str, ...]


CASES = (
    Case("Mira, first 4,000", "mira.swf.xz", ("--unit", "512", "--first", "4000", "--skip", "33%")),
    Case("Theta, first 8,000", "theta.swf.xz", ("--unit", "8", "--first", "8000", "--skip", "33%")),
    Case("Lublin 256, first 4,000", "lublin_256.swf.xz", ("--first", "4000", "--skip", "33%")),
    Case("NASA iPSC, first 6,000", "nasa_ipsc.swf.zip", ("--first", "6000", "--skip", "33%")),
    Case("openb, filled to 130 %", "openb_pods.csv.xz", ("--cluster", "openb_nodes.csv.xz", "--fill", "1.3")),
)


def simulate(folder: Path, case: Case) -> dict[str, Any]:
    """What the command says of a case."""
    options = [str(folder / word) if word.endswith(".xz") else word for word in case.options]
    command = [sys.executable, "-m", "distributed_grid.cli.main", "-o", "json", "simulate", "--seeds", str(SEEDS)]
    command += ["--policy", POLICIES, "--timing", "--trace", str(folder / case.file), *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def row(name: str, one: dict[str, Any], fill: bool) -> str:
    """A line of the table of waits, or of that of GPUs."""
    width = one["interval"] or {}

    def cell(value: float, half: float, digits: int) -> str:
        return f"{value:,.{digits}f}" + (f" ± {half:,.{digits}f}" if width else "")

    if fill:
        cells = [
            cell(100 * one[key], 100 * width.get(key, 0.0), 1) for key in ("gpus_allocated", "gpus_fragmented", "use")
        ]
    else:
        wait, half = one["wait"], width.get("wait", {})
        cells = [cell(100 * one["use"], 100 * width.get("use", 0.0), 1)]
        cells += [cell(wait[key], half.get(key, 0.0), 0) for key in ("mean", "p95", "max")]
        cells.append(cell(one["wait_by_area"], width.get("wait_by_area", 0.0), 0))
        large = one["by_size"].get("large", {}).get("mean")
        halves = width.get("by_size", {}).get("large", {})
        cells.append("-" if large is None else cell(large, halves.get("mean", 0.0), 0))
        cells.append(cell(one["slowdown"], width.get("slowdown", 0.0), 1))
        cells.append(cell(one["fairness"], width.get("fairness", 0.0), 2))
    cells.append(f"{one['decisions_a_second']:,.0f}")
    return f"| {name} | `{one['policy']}` | {' | '.join(cells)} |"


WAITS = "| trace | policy | use % | wait mean | p95 | max | by area | large | slowdown | fair | decisions/s |"
GPUS = "| trace | policy | GPUs % | fragmented % | use % | decisions/s |"


def main() -> None:
    """Print both tables in Markdown."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    folder = parser.parse_args().traces
    if folder is None or not Path(folder).is_dir():
        print("lab: the traces are not here: name their folder with --traces or $GRID_TRACES")
        return
    shown = ""
    for case in CASES:
        if not (Path(folder) / case.file).exists():
            print(f"lab: {case.file} is not in {folder}", file=sys.stderr)
            continue
        told = simulate(Path(folder), case)
        header = GPUS if told["fill"] else WAITS
        if header != shown:
            print(f"\n{header}\n|{'---|' * (header.count('|') - 1)}")
            shown = header
        for one in told["policies"]:
            print(row(case.name, one, bool(told["fill"])), flush=True)


if __name__ == "__main__":
    main()
