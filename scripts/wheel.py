"""`make wheel`: the wheel and the source archive in dist/, checked as a user meets them.

The wheel is built from the source archive, so that both are whole. twine checks their descriptions, and the wheel is
installed into an empty environment, where `grid --version` runs from an empty folder.
"""

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from distributed_grid import __version__

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"


def python(home: Path) -> str:
    """An empty environment's interpreter."""
    venv.create(home, symlinks=True, with_pip=False)
    return str(home / "bin" / "python")


def install(interpreter: str, *what: str) -> subprocess.CompletedProcess[str]:
    """Install packages with the pip that runs us, into another environment."""
    command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "--python", interpreter, "install"]
    return subprocess.run([*command, *what], capture_output=True, text=True)


def main() -> int:
    """Build and check; the exit code is 0 if all of it went well."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 1
    built = sorted(map(str, DIST.iterdir()))
    (wheel,) = (path for path in built if path.endswith(".whl"))
    with tempfile.TemporaryDirectory(prefix="grid-wheel-") as scratch:
        home, empty = Path(scratch, "home"), Path(scratch, "empty")
        empty.mkdir()
        # An index could show their descriptions.
        subprocess.run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built], check=True)
        if (done := install(python(home), wheel)).returncode != 0:
            print(f"{wheel} cannot be installed:\n{done.stderr}", file=sys.stderr)
            return 1
        grid = [str(home / "bin" / "grid"), "--version"]
        told = subprocess.run(grid, cwd=empty, capture_output=True, text=True).stdout.strip()
        if told != f"grid {__version__}":
            print(f"the installed grid says {told!r}, and not its version {__version__}", file=sys.stderr)
            return 1
    print("\n".join(str(Path(path).relative_to(ROOT)) for path in built))
    print(f"installed into an empty environment: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
