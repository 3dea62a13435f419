"""A coordinator that may have next to no memory: new jobs are refused, and it says why."""

from pathlib import Path

from tests.grid_fixture import CONFIG, running_grid


def test_a_grid_short_of_memory_takes_no_jobs_and_says_so(tmp_path: Path) -> None:
    with running_grid(tmp_path, agents=0, config=CONFIG + "coordinator:\n  memory_limit: 1M\n") as grid:
        refused = grid.shared("true")
        assert refused.returncode == 125
        assert "the grid takes no new jobs now" in refused.stderr and "of the 1 it may have" in refused.stderr
        assert "try again" in refused.stderr
        assert "no new jobs are taken and viewers are turned away" in grid.run("status").stdout
        assert "Traceback" not in (tmp_path / "coordinator.log").read_text()
