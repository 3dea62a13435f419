"""`make demo`: a grid of three agents on this machine, real jobs through it, every result checked; then all removed.

It drives the `grid` command as a person would. Two of the nodes get a stand-in GPU, announced as such. Exit code 0 says
that everything that was claimed on the way was checked and right.
"""

import concurrent.futures
import hashlib
import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRID = Path(sys.executable).with_name("grid")
LIMIT = 80.0

WORK = '''\
"""Compresses and hashes every second file of this folder: python3 squeeze.py PART"""
import hashlib, json, lzma, pathlib, sys, time
part = int(sys.argv[1])
end = time.monotonic() + 3.0
report = {}
for number, path in enumerate(sorted(pathlib.Path("files").rglob("*"))):
    if path.is_file() and number % 2 == part:
        packed = lzma.compress(path.read_bytes())
        report[str(path)] = [len(packed), hashlib.sha256(packed).hexdigest()]
        print(f"{len(report)} files, last {path.name}", flush=True)
while time.monotonic() < end:  # long enough to be seen in shared-status
    hashlib.sha256(b"x" * 100_000).digest()
pathlib.Path("out").mkdir()
pathlib.Path(f"out/part{part}.json").write_text(json.dumps(report))
'''


class Demo:
    """The demo's folder, its grid, and what was found wrong."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.env = {
            **os.environ,
            "XDG_STATE_HOME": str(scratch / "state"),
            "XDG_CONFIG_HOME": str(scratch / "config"),
            "NO_COLOR": "1",
        }
        self.env.pop("GRID_CONFIG", None)
        self.env.pop("GRID_COORDINATOR", None)
        self.wrong: list[str] = []

    def grid(self, *words: str, cwd: Path | None = None, quiet: bool = False) -> subprocess.CompletedProcess[str]:
        """Run `grid …` in the demo's folder and show the command."""
        if not quiet:
            print(f"\n$ grid {shlex.join(words)}", flush=True)
        return subprocess.run(
            [str(GRID), *words], cwd=cwd or self.scratch, env=self.env, text=True, capture_output=True, timeout=LIMIT
        )

    def show(self, done: subprocess.CompletedProcess[str]) -> None:
        for text in (done.stdout, done.stderr):
            if text.strip():
                print("  " + text.rstrip().replace("\n", "\n  "), flush=True)

    def check(self, right: bool, what: str) -> None:
        """Print what was checked, and remember it if it failed."""
        print(f"{'ok  ' if right else 'WRONG'} {what}", flush=True)
        if not right:
            self.wrong.append(what)


def local_truth(folder: Path) -> dict[str, list[object]]:
    """Return what the jobs have to find, computed here without the grid."""
    truth: dict[str, list[object]] = {}
    for path in sorted((folder / "files").rglob("*")):
        if path.is_file():
            packed = lzma.compress(path.read_bytes())
            truth[str(path.relative_to(folder))] = [len(packed), hashlib.sha256(packed).hexdigest()]
    return truth


def prepare(scratch: Path) -> Path:
    """A folder with real files of this repository and the script that works on them."""
    folder = scratch / "work"
    for room in ("protocol", "docs", "tests/protocol"):
        shutil.copytree(ROOT / room, folder / "files" / room, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "squeeze.py").write_text(WORK)
    return folder


def squeeze_on_two_nodes(demo: Demo, folder: Path) -> None:
    """Ship the folder to two nodes at once, watch them work, fetch the results and compare."""
    print(f"\nA folder of {sum(p.is_file() for p in folder.rglob('*'))} files goes to two nodes at once:")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(
                demo.grid, "run-shared", "-t", "cpu", "-a", "1", "-n", f"node{part + 1}", "--name", f"squeeze{part}",
                "--get", "out/*.json", "python3", "squeeze.py", str(part), cwd=folder,
            )
            for part in (0, 1)
        ]  # fmt: skip
        until = time.monotonic() + 20
        while time.monotonic() < until:
            shared = demo.grid("shared-status", quiet=True)
            if "squeeze0" in shared.stdout and "squeeze1" in shared.stdout:
                break
        print("\n$ grid shared-status")
        demo.show(shared)
        demo.check("squeeze0" in shared.stdout and "squeeze1" in shared.stdout, "shared-status shows both jobs at work")
        done = [run.result() for run in runs]
    for part, run in enumerate(done):
        last = (run.stdout.strip().splitlines() or ["(no output)"])[-1]
        demo.check(run.returncode == 0, f"squeeze{part} ended with exit code {run.returncode}; its last line: {last}")
    found: dict[str, list[object]] = {}
    for part in (0, 1):
        report = folder / "out" / f"part{part}.json"
        found |= json.loads(report.read_text()) if report.exists() else {}
    demo.check(found == local_truth(folder), f"{len(found)} compressed files came back equal to a local run")


def one_gpu(demo: Demo) -> None:
    """A job on a stand-in GPU sees that device and no other."""
    done = demo.grid(
        "run-shared", "-t", "gpu", "-a", "1", "--no-ship", "sh", "-c", "echo $GRID_NODE $CUDA_VISIBLE_DEVICES"
    )
    demo.show(done)
    words = done.stdout.split()
    demo.check(done.returncode == 0 and len(words) == 2, "a GPU job sees exactly one device, by its UUID (a stand-in)")


def exit_code(demo: Demo) -> None:
    """The exit code of a job is the exit code of the command."""
    done = demo.grid("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "sh", "-c", "exit 7")
    demo.check(done.returncode == 7, f"a job that exits with 7 makes grid exit with {done.returncode}")


def main() -> int:
    """Run the demo; 0 only if all of it was right."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grid-demo-") as name:
        demo = Demo(Path(name))
        try:
            # On a busy machine there would be nothing to see: the demo lends whatever others use.
            up = demo.grid("dev", "up", "--nodes", "3", "--fake-gpus", "2", "--cpu-percent-max", "100")
            demo.show(up)
            demo.check(up.returncode == 0, "a coordinator and three agents are up")
            if up.returncode == 0:
                demo.env["GRID_COORDINATOR"] = json.loads(
                    (Path(name) / "state/grid/dev/coordinator/coordinator.json").read_text()
                )["url"]
                demo.show(demo.grid("status"))
                squeeze_on_two_nodes(demo, prepare(Path(name)))
                one_gpu(demo)
                exit_code(demo)
                demo.show(demo.grid("jobs", "--all"))
        finally:
            down = demo.grid("dev", "down")
            demo.show(down)
        demo.check(down.returncode == 0, "everything that was started is gone again")
    took = time.monotonic() - began
    demo.check(took < 90, f"it took {took:.0f} s")
    if demo.wrong:
        print(f"\nWRONG: {'; '.join(demo.wrong)}")
        return 1
    print("\nAll of it was right. Next: `. .venv/bin/activate`, then docs/tour.md with a grid of your own.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
