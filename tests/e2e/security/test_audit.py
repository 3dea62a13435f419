"""The audit log of a coordinator that is killed: every request that was answered is in it, and it fits."""

import json
from pathlib import Path

from tests.grid_fixture import running_grid


def test_what_was_answered_is_in_the_log_of_a_coordinator_that_was_killed_and_it_fits(tmp_path: Path) -> None:
    with running_grid(tmp_path, agents=1) as grid:
        state = str(grid.home / "coordinator")
        done = grid.run("run-shared", "-d", "-t", "cpu", "-a", "1", "--no-ship", "sh", "-c", "sleep 600 # sesame")
        job = done.stdout.split()[-1]
        grid.kill("coordinator")
        log = grid.home / "coordinator" / "audit.log"
        said = [json.loads(line) for line in log.read_bytes().splitlines()]
        assert [line["ids"] for line in said if line["event"] == "submit"] == [[job]], done.stderr
        assert b"sesame" not in log.read_bytes() and log.stat().st_mode & 0o777 == 0o600
        assert grid.run("audit", "verify", "--state-dir", state).returncode == 0
        grid.start_coordinator()
        assert grid.run("cancel", job).returncode == 0
        found = grid.json("audit", "verify", "--state-dir", state)
        assert found["first"] == 1 and found["last"] == found["lines"] > len(said)
        log.write_bytes(log.read_bytes().replace(job.encode(), b"j-" + b"a" * 12, 1))
        harmed = grid.run("audit", "verify", str(log))
    assert harmed.returncode == 1 and "does not fit: it or the one before it" in harmed.stderr
