"""What the kernel says of a process after each call, in a process of its own: none of it can be taken back."""

import subprocess
import sys

import pytest

SCENE = """
from pathlib import Path
from distributed_grid.agent.walls import syscalls
def status(name):
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
"""


def said(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCENE + program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("syscalls.forbid_new_privileges(); print(status('NoNewPrivs'))", "1"),
        ("syscalls.clear_ambient(); syscalls.set_capabilities(0, 0, 0); print(syscalls.capabilities())", "(0, 0, 0)"),
        ("print(syscalls.capabilities()[1] == int(status('CapPrm'), 16))", "True"),
    ],
    ids=["new privileges", "no capability", "those there are"],
)
def test_a_call_does_what_the_kernel_then_says(program: str, expected: str) -> None:
    assert said(program) == expected


def test_what_may_not_be_had_is_an_error_and_changes_nothing() -> None:
    program = """
syscalls.set_capabilities(0, 0, 0)
try:
    syscalls.set_capabilities(1, 1, 0)
except PermissionError as error:
    print(error.strerror, syscalls.capabilities())
"""
    assert said(program) == "capset: Operation not permitted (0, 0, 0)"


def test_an_orphan_becomes_the_child_of_a_subreaper() -> None:
    program = """
import os
syscalls.become_subreaper()
ready, tell = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.read(ready, 1)
        os._exit(7)
    os._exit(0)
os.wait()
os.write(tell, b"1")
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert said(program) == "7"
