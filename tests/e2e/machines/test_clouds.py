"""A pool of EC2, end to end: real coordinator, real provider in its process, boto3 over HTTP to a double of EC2. What
an instance would do with its user data is done by this test: the real program of a machine, which joins and runs jobs.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="the extra aws is not installed")

from tests.agent.metadata_service import metadata_service
from tests.coordinator.providers.ec2 import EC2, IMAGE, REGION, ec2
from tests.grid_fixture import CONFIG, PATIENCE, Grid, founded_grid, until

SECRET = "hunter2/hunter2"
POOL = """
providers:
  aws: {{region: {region}, endpoint: "{url}", image: {image}, instance_types: {{cpu: c5.xlarge}},
        credentials: {{access_key_id: "${{TEST_KEY}}", secret_access_key: "${{TEST_SECRET}}"}}}}
pools:
  - {{name: burst, provider: aws, types: [cpu], zones: [a], cpus: 1, memory: 64M, max: 2, idle: 3, boot: 2, life: 1h,
     abandoned_after: 60, options: {{trust: everyone}}}}
scaling: {{mode: act, look: 2}}
"""


@pytest.fixture(scope="module")
def double() -> Iterator[EC2]:
    with ec2() as double:
        yield double


@pytest.fixture
def grid(double: EC2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grid]:
    monkeypatch.setenv("TEST_KEY", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("TEST_SECRET", SECRET)
    with founded_grid(tmp_path, CONFIG + POOL.format(region=REGION, url=double.url, image=IMAGE)) as grid:
        yield grid


def packed(script: str, of: str) -> bytes:
    """Return what a script writes into this file of the machine."""
    found = re.search(rf"echo (\S+) \| base64 -d >\S+/{of}", script)
    assert found is not None
    return base64.b64decode(found[1])


@pytest.mark.timeout(300)
def test_a_job_gets_an_instance_which_joins_by_its_user_data_and_is_terminated_when_it_is_idle(
    double: EC2, grid: Grid, tmp_path: Path
) -> None:
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--detach", "sh", "-c", "echo it ran")
    assert done.returncode == 0, done.stderr
    ((handle, name),) = until(lambda: list(double.machines().items()), "an instance is run" + grid.log("coordinator"))
    (ran,) = [one for one in double.calls if one["Action"] == "RunInstances"]
    script = base64.b64decode(ran["UserData"]).decode()
    folder = tmp_path / "instance"
    folder.mkdir()
    told = json.loads(packed(script, "machine.json")) | {"cores": 1, "memory": 64 << 20}
    (folder / "machine.json").write_text(json.dumps(told))
    (folder / "invitation").write_bytes(packed(script, "invitation"))

    def logs() -> str:
        told = [grid.run("scale", "status").stdout, grid.run("nodes").stdout, grid.run("jobs", "--all").stdout]
        return "\n".join([grid.log("coordinator"), (folder / "log").read_text(), *told])

    def awaited(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        try:
            until(holds, what, seconds)
        except pytest.fail.Exception as failed:
            pytest.fail(f"{failed}\n{logs()}")

    with metadata_service() as service, (folder / "log").open("wb") as log:
        service.says = {"/latest/meta-data/instance-id": handle}
        words = [sys.executable, "-m", "distributed_grid.agent.machine", str(folder)]
        instance = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **service.environment})
        try:
            awaited(lambda: grid.job(done.stdout.strip())["state"] == "ended", "the job runs there", 90)
            assert grid.job(done.stdout.strip())["exit_code"] == 0, logs()
            # It is kept without jobs for as long as it took to join, which on a busy machine is a while.
            awaited(lambda: not double.machines(), "the instance is terminated", 90 + PATIENCE)
            awaited(lambda: grid.json("scale", "history")["machines"], "it is gone")
        finally:
            instance.terminate()
            instance.wait(30)
    (gone,) = grid.json("scale", "history")["machines"]
    assert (gone["name"], gone["handle"], gone["state"], gone["ran"]) == (name, handle, "gone", True)
    assert len([one for one in double.calls if one["Action"] == "RunInstances"]) == 1
    written = b"".join(one.read_bytes() for one in grid.home.rglob("*") if one.is_file())
    assert SECRET.encode() not in written, "no secret of the cloud is on disk or in a log"
