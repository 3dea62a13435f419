"""What all tests share: a marked test runs where the machine has what it needs, and else says what is missing."""

import functools
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

os.environ["GRID_AGENT__NICE"] = "0"
"""Jobs give way to all else on the machine, and what that does is no part of a test's scene: here they are equals."""


@functools.cache
def lacks(marker: str) -> str | None:
    """Say what this machine lacks for tests with that marker; None where nothing is missing."""
    if marker in ("root", "netns") and os.geteuid() != 0:
        return "needs to be root"
    if marker == "netns" and shutil.which("ip") is None:
        return "needs the ip program (Debian: iproute2)"
    if marker == "netns" and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        return "needs network namespaces, which this kernel or container refuses"
    if marker == "ray" and importlib.util.find_spec("ray") is None:
        return "needs the ray package"
    if marker == "gpu" and not Path("/dev/nvidiactl").exists():
        return "needs an NVIDIA GPU"
    if marker == "kernel" and shutil.which("linux.uml") is None:
        return "needs a kernel to start (Debian: user-mode-linux)"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if (why := lacks(mark.name)) is not None:
            pytest.skip(why)
