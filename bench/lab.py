"""The tables of the policy lab (docs/policy-lab.md): several real traces under every policy, by `grid simulate`.
The traces are data of others and not in this repository: `--traces FOLDER` or $GRID_TRACES says where they are.

`--openb FOLDER`: instead, the workloads with which FGD (ATC'23) was evaluated, beside its published results. The folder
is data/csv of hkust-adsl/kubernetes-scheduler-simulator, with experiments/analysis/expected_results/
analysis_allo_discrete.csv in it; they ran on the nodes with GPUs only."""

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

POLICIES = "grid,fcfs,easy,sjf,strict-fifo,best-effort,first-fit,random"
SEEDS = 3
OPENB = (
    "default cpu050 cpu100 cpu200 cpu250 gpushare40 gpushare60 gpushare80 gpushare100 gpuspec10 gpuspec20 gpuspec25"
    " gpuspec33 multigpu20 multigpu30 multigpu40 multigpu50"
).split()
PUBLISHED = {"06-FGD": "FGD", "05-BestFit": "best-fit", "01-Random": "random"}


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


def simulate(folder: Path, case: Case, policies: str = POLICIES, seeds: int = SEEDS) -> dict[str, Any]:
    """What the command says of a case."""
    options = [str(folder / word) if word.endswith((".xz", ".csv")) else word for word in case.options]
    command = [sys.executable, "-m", "distributed_grid.cli.main", "-o", "json", "simulate", "--seeds", str(seeds)]
    command += ["--policy", policies, "--timing", "--trace", str(folder / case.file), *options]
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


def published(folder: Path) -> dict[tuple[str, str], float]:
    """Percent of the GPUs allocated at 130 % arrived, by workload and policy: the mean of ten seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    with open(folder / "analysis_allo_discrete.csv", newline="") as file:
        for row in csv.DictReader(file):
            if name := PUBLISHED.get(row["sc_policy"]):
                found.setdefault((row["workload"].removeprefix("openb_pod_list_"), name), []).append(float(row["130"]))
    return {key: sum(values) / len(values) for key, values in found.items()}


def openb(folder: Path, workloads: list[str], policies: str, seeds: int) -> None:
    """Print the table of the workloads of openb in Markdown."""
    others, nodes = published(folder), "openb_node_list_gpu_node.csv"
    ours = policies.split(",")
    columns = ["workload", *(f"`{name}`" for name in ours), *PUBLISHED.values(), "fragmented %", "decisions/s"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in workloads:
        told = simulate(
            folder, Case(name, f"openb_pod_list_{name}.csv", ("--cluster", nodes, "--fill", "1.3")), policies, seeds
        )
        cells = []
        for one in told["policies"]:
            half = 100 * (one["interval"] or {}).get("gpus_allocated", 0.0)
            cells.append(f"{100 * one['gpus_allocated']:.2f} ± {half:.2f}")
        cells += [f"{others[name, policy]:.2f}" for policy in PUBLISHED.values()]
        first = told["policies"][0]
        cells += [f"{100 * first['gpus_fragmented']:.1f}", f"{first['decisions_a_second']:,.0f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    parser.add_argument("--openb", type=Path)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=OPENB)
    parser.add_argument("--policies", default="grid")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    if args.openb is not None:
        openb(args.openb, args.workloads, args.policies, args.seeds)
        return
    folder = args.traces
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
