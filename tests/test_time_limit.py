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

    def pytest_runtest_logreport(self, report):
        if report.failed:
            time.sleep(1.5)

def pytest_configure(config):
    config.pluginmanager.register(Slow())

pytest_runtest_makereport = conftest.pytest_runtest_makereport
pytest_runtest_call = conftest.pytest_runtest_call
pytest_runtest_teardown = conftest.pytest_runtest_teardown
"""
TESTS = """
import time
import pytest

@pytest.mark.timeout(1)
def test_fails():
    assert False

def test_next():
    pass

@pytest.mark.timeout(1)
def test_hangs():
    while True:
        time.sleep(0.1)
"""


def test_a_failure_that_takes_long_to_tell_ends_nothing_else_and_what_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(SLOW_TO_TELL)
    (tmp_path / "test_both.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
