"""The tables of the policy lab (docs/policy-lab.md): several real traces under every policy, by `grid simulate`.
The traces are data of others and not in this repository: `--traces FOLDER` or $GRID_TRACES says where they are.

`--openb FOLDER`: instead, the workloads with which FGD (ATC'23) was evaluated, beside its published results. The folder
is data/csv of hkust-adsl/kubernetes-scheduler-simulator, with experiments/analysis/expected_results/
analysis_allo_discrete.csv in it; they ran on the nodes with GPUs only.

`--daily`: instead, the policies of rebalancing on a made trace whose owners come at the same time each day.

`--paired`: instead, the policies of rebalancing on the traces with owners, each seed by itself: under every policy
the same machines have the same owners, so the differences from the first one have narrower intervals than figures."""

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from distributed_grid.simulator.lab.metrics import interval

POLICIES = "grid,grid:share,fcfs,easy,sjf,strict-fifo,best-effort,first-fit,random"
SEEDS = 3
REST = ("--skip", "33%")
"""Parameters are chosen on the first third of a trace; what is shown is the rest."""
LENT = ("--unit", "512", "--nodes", "12", "--cores", "8", "--first", "400", *REST)
"""Jobs on machines with owners: the first of Mira, whose units of 512 nodes are the cores of twelve machines."""


REBALANCING = "grid,grid:conservative,grid:balanced,grid:aggressive,grid:predictive"
"""Without forecasts, and the policies that go by them."""
OPENB = (
    "default cpu050 cpu100 cpu200 cpu250 gpushare40 gpushare60 gpushare80 gpushare100 gpuspec10 gpuspec20 gpuspec25"
    " gpuspec33 multigpu20 multigpu30 multigpu40 multigpu50"
).split()
PUBLISHED = {"06-FGD": "FGD", "05-BestFit": "best-fit", "01-Random": "random"}
DAY, HOUR = 86_400, 3600
MACHINES, DAYS = 6, 10
"""Of the made trace of `--daily`."""


class Case(NamedTuple):
    """A trace: what it is called, its file, and options. Names of files among these are in the same folder."""

    name: str
    file: str
    options: tuple[str, ...]


CASES = (
    Case("Mira", "mira.swf.xz", ("--unit", "512", *REST)),
    Case("Theta", "theta.swf.xz", ("--unit", "8", *REST)),
    Case("Lublin 256", "lublin_256.swf.xz", REST),
    Case("NASA iPSC", "nasa_ipsc.swf.zip", REST),
    Case("openb, filled to 130 %", "openb_pods.csv.xz", ("--cluster", "openb_nodes.csv.xz", "--fill", "1.3")),
    Case("PlanetLab", "mira.swf.xz", (*LENT, "--owners", "planetlab.tar.xz")),
    Case("bitbrains", "mira.swf.xz", (*LENT, "--owners", "bitbrains.csv.xz")),
    Case("Helios", "mira.swf.xz", (*LENT, "--owners", "helios_earth_vc.tar.xz")),
    Case("Philly", "mira.swf.xz", (*LENT, "--owners", "philly_nodes.csv.xz")),
)


def simulate(folder: Path, case: Case, policies: str = POLICIES, seeds: int = SEEDS, seed: int = 1) -> dict[str, Any]:
    """Return the command's results for a case, with `seeds` seeds from this one on."""
    options = [str(folder / word) if (folder / word).is_file() else word for word in case.options]
    command = [sys.executable, "-m", "distributed_grid.cli.main", "-o", "json", "simulate"]
    command += ["--seed", str(seed), "--seeds", str(seeds)]
    command += ["--policy", policies, "--timing", "--trace", str(folder / case.file), *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


Column = tuple[str, tuple[str, ...], float, int]
"""Its heading, where its value is, by what it is multiplied, and its decimals."""
USE: Column = ("use %", ("use",), 100, 1)
FAST: Column = ("decisions/s", ("decisions_a_second",), 1, 0)
WAITS: tuple[Column, ...] = (
    ("wait mean", ("wait", "mean"), 1, 0),
    ("p95", ("wait", "p95"), 1, 0),
    ("max", ("wait", "max"), 1, 0),
    ("by area", ("wait_by_area",), 1, 0),
    ("large", ("by_size", "large", "mean"), 1, 0),
    ("slowdown", ("slowdown",), 1, 1),
    ("fair", ("fairness",), 1, 2),
)
GPUS: tuple[Column, ...] = (("GPUs %", ("gpus_allocated",), 100, 1), ("fragmented %", ("gpus_fragmented",), 100, 1))
OWNERS: tuple[Column, ...] = (
    ("owners %", ("owners_use",), 100, 1),
    ("wait mean", ("wait", "mean"), 1, 0),
    ("p95", ("wait", "p95"), 1, 0),
    ("unfinished", ("unfinished",), 1, 0),
    ("moves", ("moves",), 1, 0),
    ("wasted h", ("wasted",), 1 / 3600, 1),
    ("frozen h", ("frozen",), 1 / 3600, 1),
    ("pain h", ("owners_pain",), 1 / 3600, 1),
)


def columns(told: dict[str, Any]) -> list[Column]:
    """Return the shown columns of a case."""
    if told["fill"]:
        return [*GPUS, USE, FAST]
    return [USE, *(OWNERS if told["owners"] else WAITS), FAST]


def heading(told: dict[str, Any]) -> str:
    """The first two lines of its table."""
    names = [("owners" if told["owners"] else "trace"), "policy", *(name for name, *_ in columns(told))]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def row(name: str, one: dict[str, Any], shown: list[Column]) -> str:
    """A policy's line."""
    cells = []
    for _, where, times, digits in shown:
        value, half = _at(one, where), _at(one["interval"] or {}, where)
        told = "-" if value is None else f"{times * value:,.{digits}f}"
        cells.append(told if value is None or half is None else f"{told} ± {times * half:,.{digits}f}")
    return f"| {name} | `{one['policy']}` | {' | '.join(cells)} |"


def _at(found: Any, where: tuple[str, ...]) -> float | None:
    for name in where:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def published(folder: Path) -> dict[tuple[str, str], float]:
    """Percent of the GPUs allocated at 130 % arrived, by workload and policy: the mean of ten seeds."""
    found: dict[tuple[str, str], list[float]] = {}
    with open(folder / "analysis_allo_discrete.csv", newline="") as file:
        for one in csv.DictReader(file):
            if name := PUBLISHED.get(one["sc_policy"]):
                found.setdefault((one["workload"].removeprefix("openb_pod_list_"), name), []).append(float(one["130"]))
    return {key: sum(values) / len(values) for key, values in found.items()}


def openb(folder: Path, workloads: list[str], policies: str, seeds: int) -> None:
    """Print the table of the workloads of openb in Markdown."""
    others, nodes = published(folder), "openb_node_list_gpu_node.csv"
    ours = policies.split(",")
    names = ["workload", *(f"`{name}`" for name in ours), *PUBLISHED.values(), "fragmented %"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for name in workloads:
        told = simulate(
            folder, Case(name, f"openb_pod_list_{name}.csv", ("--cluster", nodes, "--fill", "1.3")), policies, seeds
        )
        cells = []
        for one in told["policies"]:
            half = 100 * (one["interval"] or {}).get("gpus_allocated", 0.0)
            cells.append(f"{100 * one['gpus_allocated']:.2f} ± {half:.2f}")
        cells += [f"{others[name, policy]:.2f}" for policy in PUBLISHED.values()]
        cells.append(f"{100 * told['policies'][0]['gpus_fragmented']:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"), help="the folder with them")
    parser.add_argument("--only", default="", metavar="LIST", help="names of traces, or parts of them; without: all")
    parser.add_argument("--policies", metavar="LIST", help="without: all, with --openb grid and best-fit alone")
    parser.add_argument("--openb", type=Path, help="the folder of FGD's workloads")
    parser.add_argument("--daily", action="store_true", help="owners who come at the same time each day")
    parser.add_argument("--paired", action="store_true", help="differences between policies of rebalancing by seed")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=OPENB)
    parser.add_argument("--seeds", type=int, help="of each case; without: 10 of each workload of --openb, else 3")
    parser.add_argument(
        "--first", type=int, default=1, metavar="SEED", help="the first one, of --daily and --paired (1)"
    )
    args = parser.parse_args()
    if args.openb is not None:
        openb(args.openb, args.workloads, args.policies or "grid,grid:fit", args.seeds or 10)
    elif args.daily:
        daily(args.policies or REBALANCING, args.seeds or 5, args.first)
    elif args.traces is None or not Path(args.traces).is_dir():
        print("lab: the traces are not here: name their folder with --traces or $GRID_TRACES")
    elif args.paired:
        paired(Path(args.traces), args.only, args.policies or REBALANCING, args.seeds or 10, args.first)
    else:
        tables(Path(args.traces), args.only, args.policies or POLICIES, args.seeds or SEEDS)


def daily(policies: str, seeds: int, first: int = 1) -> None:
    """Print the table of owners who come at the same time each day in Markdown: a line for each generated trace."""
    for seed in range(first, first + seeds):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            write_daily(folder, seed)
            options = ("--nodes", str(MACHINES), "--cores", "8", "--owners", str(folder / "owners"))
            told = simulate(folder, Case("daily", "jobs.csv", options), policies, 1)
        if seed == first:
            print(heading(told))
        for one in told["policies"]:
            print(row(f"daily {seed}", one, columns(told)), flush=True)


def write_daily(folder: Path, seed: int = 1) -> None:
    """Write a made trace, `owners/` and `jobs.csv`, into this folder. The owners use three quarters of their machines:
    every second one by day (about 9 to 17 h), the others by night (21 to 5 h). Six jobs of four to six hours come each
    afternoon, an hour before the owners by day leave; and jobs of half an hour in the median come all day."""
    chance = random.Random(seed)
    (folder / "owners").mkdir()
    for number in range(MACHINES):
        lines = ["time,use", "0,0"]
        for day in range(DAYS):
            begins = (9 if number % 2 == 0 else 21) * HOUR + day * DAY + chance.gauss(0, 900)
            lines += [f"{begins:.0f},0.75", f"{begins + 8 * HOUR + chance.gauss(0, 1800):.0f},0"]
        lines.append(f"{DAYS * DAY + 6 * HOUR},0")
        (folder / "owners" / f"m{number}.csv").write_text("\n".join(lines) + "\n")
    jobs = []
    for day in range(DAYS - 1):
        for _ in range(6):
            jobs.append((day * DAY + chance.uniform(15.5, 16.8) * HOUR, chance.uniform(4, 6) * HOUR))
        for _ in range(12):
            jobs.append((day * DAY + chance.uniform(0, 24) * HOUR, chance.lognormvariate(0, 0.8) * HOUR / 2))
    rows = [f"{begins:.0f},{lasts:.0f},2,{1.1 * lasts:.0f},{chance.choice('abc')}" for begins, lasts in sorted(jobs)]
    (folder / "jobs.csv").write_text("\n".join(["submit,duration,cores,requested,user", *rows]) + "\n")


COMPARED: tuple[Column, ...] = (USE, *(one for one in OWNERS if one[0] not in ("owners %", "p95", "unfinished")))


def paired(folder: Path, only: str, policies: str, seeds: int, first: int = 1) -> None:
    """Print what each policy differs by from the first, in Markdown: the mean of the differences by seed with half of
    its 95 % confidence interval; in brackets in how many seeds it is less, and more."""
    wanted = [part.strip().lower() for part in only.split(",")]
    print(f"| owners | policy | {' | '.join(name for name, *_ in COMPARED)} |\n|{'---|' * (len(COMPARED) + 2)}")
    for case in CASES:
        if "--owners" not in case.options or not any(part in case.name.lower() for part in wanted):
            continue
        runs = [simulate(folder, case, policies, 1, seed)["policies"] for seed in range(first, first + seeds)]
        for at, name in enumerate(one["policy"] for one in runs[0]):
            cells = []
            for _, where, times, digits in COMPARED:
                values = [times * (_at(run[at], where) or 0.0) for run in runs]
                if not at:
                    cells.append(f"{sum(values) / seeds:,.{digits}f}")
                    continue
                apart = [one - times * (_at(run[0], where) or 0.0) for one, run in zip(values, runs, strict=True)]
                signs = f"{sum(one < 0 for one in apart)}, {sum(one > 0 for one in apart)}"
                cells.append(f"{sum(apart) / seeds:+,.{digits}f} ± {interval(apart):,.{digits}f} ({signs})")
            print(f"| {case.name} | `{name}` | {' | '.join(cells)} |", flush=True)


def tables(folder: Path, only: str, policies: str, seeds: int) -> None:
    """Print the tables of the traces in this folder."""
    wanted, shown = [part.strip().lower() for part in only.split(",")], ""
    for case in CASES:
        if not any(part in case.name.lower() for part in wanted):
            continue
        if not (folder / case.file).exists():
            print(f"lab: {case.file} is not in {folder}", file=sys.stderr)
            continue
        told = simulate(folder, case, policies, seeds)
        if heading(told) != shown:
            shown = heading(told)
            print(f"\n{shown}")
        for one in told["policies"]:
            print(row(case.name, one, columns(told)), flush=True)


if __name__ == "__main__":
    main()
