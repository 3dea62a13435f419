"""`make bench` finds every benchmark; what they measure is not tried here."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_can_be_loaded_and_has_a_main(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name}").main)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "bench/run.py", "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "error: no benchmark nonsense"
    assert done.stderr.split("try: ")[1].split() == [name for name in SCRIPTS if name != "run"]
