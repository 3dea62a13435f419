"""`make bench` finds every benchmark; what they measure is not tried here."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import run

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", run.NAMES)
def test_a_benchmark_can_be_loaded_and_has_a_main(name: str) -> None:
    assert callable(run.load(name).main)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "bench/run.py", "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "error: no benchmark nonsense"
    assert done.stderr.split("try: ")[1].split() == run.NAMES
