"""`grid attach` rejoins a job also where the coordinator is away at that moment."""

import time
from pathlib import Path

from tests.grid_fixture import running_grid


def test_attach_waits_for_a_coordinator_that_restarts_and_says_so(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        words = ("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "-d", "sh", "-c", "echo here; sleep 1; exit 7")
        job = grid.run(*words).stdout.strip()
        grid.kill("coordinator")
        attached = grid.begin("attach", job)
        assert attached.stderr is not None
        told = attached.stderr.readline().decode()
        assert told.startswith(f"grid: cannot reach the coordinator at {grid.url} (connection refused"), told
        assert "waiting for it for up to 60 s" in told
        grid.start_coordinator()
        out, err = attached.communicate(timeout=60)
        assert (attached.returncode, out, err) == (7, b"here\n", b"")

        begun = time.monotonic()
        done = grid.run("--coordinator", "ws://no-such-host.invalid:7433", "attach", job)
        assert done.returncode == 125 and "the host name is not known" in done.stderr
        assert time.monotonic() - begun < 30
