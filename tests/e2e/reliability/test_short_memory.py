"""A coordinator that may have next to no memory or disk: what is too much is refused, and it says why."""

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


def test_a_directory_beyond_the_quota_for_shipped_files_is_refused_with_what_helps(tmp_path: Path) -> None:
    with running_grid(tmp_path, agents=0, config=CONFIG + "coordinator:\n  ship_quota: 1M\n") as grid:
        (grid.here / "large").write_bytes(b"x" * (2 << 20))
        refused = grid.run("run-shared", "-t", "cpu", "-a", "1", "true")
        assert refused.returncode == 125
        assert "cannot be shipped" in refused.stderr and "1M are the most for one user" in refused.stderr
        assert "try: ship less (.gridignore), wait, or have an operator raise coordinator.ship_quota" in refused.stderr
        assert not [path for path in (tmp_path / "coordinator/blobs").rglob("*") if path.is_file()]
        assert "Traceback" not in (tmp_path / "coordinator.log").read_text()
