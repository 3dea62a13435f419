"""`scripts/test.sh`: tests that failed are tried once more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/test.sh"
FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_it(n):
    tried = Path(f"tried-{{n}}")
    tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
    assert len(tried.read_text()) >= {passes_at}
"""


def run(folder: Path, count: int, passes_at: int, processes: int) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_flaky.py").write_text(FLAKY.format(count=count, passes_at=passes_at))
    command = [str(SCRIPT), sys.executable, "-p", "xdist", "-n", str(processes), "-q"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the others take half of the time
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def tries(folder: Path) -> list[int]:
    return [len(file.read_text()) for file in sorted(folder.glob("tried-*"))]


@pytest.mark.parametrize(
    ("count", "passes_at", "processes", "code", "each"),
    [(2, 1, 0, 0, 1), (2, 2, 2, 0, 2), (2, 3, 0, 1, 2), (6, 2, 0, 1, 1)],
    ids=["none-failed", "passes-then", "fails-again", "too-many"],
)
def test_a_few_that_failed_are_tried_once_more(
    tmp_path: Path, count: int, passes_at: int, processes: int, code: int, each: int
) -> None:
    done = run(tmp_path, count, passes_at, processes)
    assert (done.returncode, tries(tmp_path)) == (code, [each] * count), done.stdout + done.stderr
    assert ("passed alone" in done.stdout) == (code == 0 and each == 2)


def test_a_run_that_cannot_begin_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    done = subprocess.run([SCRIPT, sys.executable, "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout.count("nothing_of_that_name'")) == (2, 1), done.stdout
