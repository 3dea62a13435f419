"""How a test's process logs (conftest.py)."""

import os
import subprocess
import sys
from pathlib import Path

HOOKS = """
from tests import conftest

pytest_runtest_teardown = conftest.pytest_runtest_teardown
"""
TESTS = """
import structlog

def test_runs_a_service():
    structlog.configure(processors=[structlog.processors.JSONRenderer()])

def test_next(capsys):
    structlog.get_logger().info("said")
    said = capsys.readouterr().out
    assert "said" in said and "{" not in said
"""


def test_after_a_test_that_ran_a_service_the_next_one_logs_plainly(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
