"""A short campaign: processes die and links are cut, and nothing is lost, runs twice or is told wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.world import unavailable

ROOT = Path(__file__).parents[2]


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_runs_twice_or_is_told_wrong_while_processes_die_and_links_are_cut() -> None:
    if why := unavailable():
        pytest.skip(why)
    words = ["--minutes", "0.3", "--seed", "5", "--nodes", "2", "--rate", "8", "--pace", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.campaign", *words], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"^lost, twice, wrong +0 0 0$", said, re.MULTILINE), said
    kills = re.search(r"(\d+) coordinator, (\d+) agent, (\d+) supervisor", said)
    assert kills is not None, said
    coordinators, agents, supervisors = (int(count) for count in kills.groups())
    assert coordinators >= 3, said
    assert agents >= 3, said
    assert supervisors >= 1, said
    assert sum(int(count) for count in re.findall(r"(\d+) (?:both ways|to a node|from one)", said)) >= 2, said
