"""`grid cluster check`, and the guide's script for it, where there is no Ray. With one: tests/ray/test_validate.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.cluster_check import Report, _groups
from distributed_grid.coordinator.ray.bridge_client import NoRay
from distributed_grid.protocol.messages import Boosts
from tests.grid_fixture import GRID

SCRIPT = Path(__file__).parents[3] / "scripts" / "validate_ray_cluster.py"


def told(here: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "HOME": str(here), "GRID_COORDINATOR": "ws://127.0.0.1:9"},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [[*GRID, "cluster", "check"], [sys.executable, str(SCRIPT)]])
def test_without_a_configuration_or_a_coordinator_it_says_so_and_has_no_traceback(
    tmp_path: Path, command: list[str]
) -> None:
    assert "FAIL  configuration: /nowhere.yaml: cannot be read" in told(tmp_path, *command, "-c", "/nowhere.yaml")
    nothing = told(tmp_path, *command)
    assert "FAIL  coordinator: cannot reach the coordinator at ws://127.0.0.1:9" in nothing
    assert "FAIL  configuration: no Ray cluster is configured → set ray.address" in nothing
    assert nothing.splitlines()[-1].endswith(" failed")


def test_programs_get_each_check_and_who_wants_few_words_those_that_failed(tmp_path: Path) -> None:
    found = json.loads(told(tmp_path, *GRID, "-o", "json", "cluster", "check"))
    results = {one["check"]: one["result"] for one in found["checks"]}
    assert (results["coordinator"], results["configuration"]) == ("fail", "fail") and found["failed"] >= 2
    assert "set ray.address" in next(one["try"] for one in found["checks"] if one["check"] == "configuration")
    assert told(tmp_path, *GRID, "-o", "quiet", "cluster", "check").splitlines()[:2] == ["coordinator", "configuration"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoRay("Ray did not answer within 15 s"), "Ray did not answer within 15 s"),
        (NoRay("Ray is gone", "it was ended"), "Ray is gone: it was ended"),
    ],
)
async def test_a_ray_that_does_not_answer_is_why_its_groups_are_not_checked(error: NoRay, text: str) -> None:
    class Silent:
        async def ask(self, *_: object, **__: object) -> None:
            raise error

    report = Report(Invocation(output="json"))
    await _groups(report, Silent(), Boosts(1, ()), set())
    assert [(one["result"], one["text"]) for one in report.found] == [("skip", text)]
