"""The time limit of a test (conftest.py)."""

import os
import subprocess
import sys
from pathlib import Path

SLOW_TO_TELL = """
import time
import pytest
from tests import conftest

class Slow:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        if call.excinfo is not None:
            time.sleep(1.5)
        return (yield)

def pytest_configure(config):
    config.pluginmanager.register(Slow())

pytest_runtest_makereport = conftest.pytest_runtest_makereport
"""
TESTS = """
import pytest

@pytest.mark.timeout(1)
def test_fails():
    assert False

def test_next():
    pass
"""


def test_a_failure_that_takes_long_to_tell_ends_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(SLOW_TO_TELL)
    (tmp_path / "test_both.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
