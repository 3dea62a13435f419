"""The same work through other systems and through ours, in turns: 2 slots, N × `/bin/true`, and single jobs on the idle
system. The scripts of the other systems lie beside this repository, in ../shared/bench/peers (or --peers DIR); their
README says what they need. Those that cannot be run here are named, with the reason.

One JSON line on stdout, and on stderr the medians as the table of docs/figures.md. Compare the fractions of the floor,
which each script measures right before and after its own batch.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench._common import ROOT, medians, report, say

PEERS = ROOT.parent / "shared" / "bench" / "peers"
JOBS, ROUNDS, PROBES = 1500, 2, 20
"""For three minutes. Figures to be written down: --jobs 5000 --rounds 3 --probes 50."""
LIMIT = 240.0
"""Seconds for one run of one system."""
FIELDS = (
    "jobs_per_s",
    "floor_jobs_per_s",
    "frac_of_floor",
    "cpu_ms_per_job",
    "p50_submit_to_start_ms",
    "p99_submit_to_start_ms",
    "p50_submit_to_done_ms",
    "p99_submit_to_done_ms",
    "other_cpus_busy",
)


class Peer(NamedTuple):
    """A system: its name, its script with options, and the modules and programs that it needs. `ours`: it is run by
    this Python. `asked`: it is run only if it is named, since it takes long or needs much."""

    name: str
    title: str
    script: str
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    ours: bool = False
    asked: bool = False


SYSTEMS = (
    Peer("floor", "floor: `posix_spawn` and wait", "floor.py"),
    Peer("ours", "ours, one agent", "ours.py", ("--agents", "1"), ours=True),
    Peer("ours-2", "ours, two agents", "ours.py", ("--agents", "2"), ours=True),
    Peer("ray", "Ray tasks", "ray_tasks.py", modules=("ray",)),
    Peer("hq", "HyperQueue", "hq.py", modules=("hyperqueue",)),
    Peer("hq-files", "HyperQueue with output files", "hq.py", ("--stdio",), ("hyperqueue",)),
    Peer("dask", "Dask distributed", "dask_local.py", modules=("distributed",)),
    Peer("parsl", "Parsl HTEX", "parsl_htex.py", modules=("parsl",)),
    Peer("xargs", "xargs -P2", "xargs_p.py", programs=("xargs",)),
    Peer("tsp", "task-spooler", "task_spooler.py", programs=("tsp",)),
    Peer("parallel", "GNU parallel", "gnu_parallel.py", programs=("parallel",), asked=True),
    Peer("ssh", "ssh, multiplexed", "ssh_run.py", programs=("ssh", "sshd"), asked=True),
    Peer("slurm", "Slurm, srun", "slurm.py", ("--mode", "srun"), programs=("slurmctld", "munged"), asked=True),
    Peer("ray-jobs", "Ray Jobs", "ray_jobs.py", ("--jobs", "10", "--probes", "8"), ("ray",), asked=True),
)


def why_not(
    peer: Peer,
    folder: Path,
    wanted: Sequence[str],
    has_module: Callable[[str], bool],
    has_program: Callable[[str], bool],
) -> str:
    """Why a system is not run; empty: it is. `wanted`: those that were named (none: the usual ones)."""
    if wanted and peer.name not in wanted:
        return "not asked for"
    if peer.asked and not wanted:
        return f"takes long or needs much; --only {peer.name} runs it"
    if not (folder / peer.script).exists():
        return f"there is no {peer.script}"
    lacking = [f"Python module {name}" for name in peer.modules if not has_module(name)]
    lacking += [f"program {name}" for name in peer.programs if not has_program(name)]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def turns(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: each begins with another system."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The medians as a table in Markdown, the fastest first."""
    head = ("", "jobs/s", "of the floor", "CPU ms a job", "submit → start p50 / p99 ms", "→ done p50 / p99 ms")
    lines = [head, ("---",) * len(head)]
    for row in sorted(rows, key=lambda row: -row.get("frac_of_floor", 1.0)):
        lines.append(
            (
                row["title"],
                f"{row['jobs_per_s']:,.0f}",
                f"{row['frac_of_floor']:.3f} ({row['least']:.3f}–{row['most']:.3f})" if "least" in row else "1",
                f"{row['cpu_ms_per_job']:.1f}",
                f"{row['p50_submit_to_start_ms']:.1f} / {row['p99_submit_to_start_ms']:.1f}",
                f"{row['p50_submit_to_done_ms']:.1f} / {row['p99_submit_to_done_ms']:.1f}",
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summed(peer: Peer, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians of a system's runs, and between what its fractions of the floor were."""
    found = medians([{name: run[name] for name in FIELDS if name in run} for run in runs])
    fractions = [run["frac_of_floor"] for run in runs if "frac_of_floor" in run]
    spread = {"least": min(fractions), "most": max(fractions)} if fractions else {}
    return (
        {"name": peer.name, "title": peer.title, "version": runs[0].get("version", ""), "runs": len(runs)}
        | found
        | spread
    )


def run(peer: Peer, folder: Path, python: str, common: Sequence[str]) -> dict[str, Any] | str:
    """Return the output of a system's script, or why there is none."""
    command = [sys.executable if peer.ours else python, str(folder / peer.script), *common, *peer.options]
    environment = {**os.environ, "GRID_REPO": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    if peer.ours:
        del environment["PYTHONDONTWRITEBYTECODE"]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT:g} s"
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return f"exit code {done.returncode}: {said[-1].strip()[:200] if said else 'nothing was said'}"


def module_finder(python: str) -> Callable[[str], bool]:
    """Whether that Python can import a module."""

    def found(name: str) -> bool:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0

    return found


def program_finder(name: str) -> bool:
    """Whether there is a program of this name, also among the administrator's."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def main() -> int:
    """Run all in turns; 2 where there is nothing to run."""
    parser = argparse.ArgumentParser(prog="peers", description="other systems and ours, in turns")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the directory of their scripts")
    parser.add_argument(
        "--python", default=os.environ.get("GRID_PEERS_PYTHON", sys.executable), help="with their modules"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=[peer.name for peer in SYSTEMS])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--probes", type=int, default=PROBES)
    parser.add_argument("--quiet-wait", type=float, default=0.0, help="seconds to wait for a quiet machine before each")
    given = parser.parse_args()
    if not given.peers.is_dir():
        print(f"peers: there is no {given.peers} (give --peers DIR)", file=sys.stderr)
        return 2
    has_module = module_finder(given.python)
    skipped = {peer.name: why_not(peer, given.peers, given.only, has_module, program_finder) for peer in SYSTEMS}
    chosen = {peer.name: peer for peer in SYSTEMS if not skipped[peer.name]}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    common = ["--jobs", str(given.jobs), "--probes", str(given.probes), "--quiet-wait", str(given.quiet_wait)]
    for number in range(given.rounds if chosen else 0):
        for name in turns([*chosen], number):
            if skipped[name]:
                continue
            found = run(chosen[name], given.peers, given.python, common)
            if isinstance(found, str):
                skipped[name] = found
                say(f"peers: {name}: {found}")
            else:
                runs[name].append(found)
                say(f"peers: round {number + 1}: {name}: {found['jobs_per_s']:.0f} a second")
    rows = [summed(chosen[name], those) for name, those in runs.items() if those]
    why = {name: reason for name, reason in skipped.items() if reason and reason != "not asked for"}
    about = {"jobs": given.jobs, "rounds": given.rounds, "probes": given.probes}
    report("peers", {**about, "systems": rows, "skipped": why})
    print(table(rows), *(f"not run: {name}: {reason}" for name, reason in why.items()), sep="\n", file=sys.stderr)
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
