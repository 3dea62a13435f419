"""A machine of its own for tests: systemd boots in namespaces over a copy of this one (boot.sh), and the wheel is
installed there."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE = 60.0
ENVIRONMENT = "/usr/local/lib/grid"
LENT = "/usr/local/lib/lent"
GRID = f"{ENVIRONMENT}/bin/grid"
ENVIRON = {"PATH": os.defpath + ":/usr/sbin:/sbin", "LANG": "C.UTF-8", "HOME": "/root"}
"""Of each command there."""


class Machine:
    """A booted systemd; `pid` is its first process, seen from here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    @property
    def enter(self) -> list[str]:
        """The words before a command, with which it runs there, as root."""
        return ["nsenter", "--target", str(self.pid), "--all", "--wdns=/"]

    def begin(self, *argv: str) -> "subprocess.Popen[str]":
        """A command there, as root, whose output and errors are read line by line as they come."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*self.enter, *argv],
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *argv: str, timeout: float = PATIENCE, user: str = "") -> subprocess.CompletedProcess[str]:
        """A command there, as root or this user, to its end."""
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return subprocess.run(
            [*self.enter, *become, *argv],
            env=ENVIRON,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def told(self, *argv: str, **options: Any) -> str:
        """What a command there prints; it has to do well."""
        done = self.run(*argv, **options)
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.journal()}"
        return done.stdout

    def grid(self, *words: str, **options: Any) -> str:
        """What `grid` prints there."""
        return self.told(GRID, *words, **options)

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.told("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def journal(self) -> str:
        """The end of what was logged there."""
        return self.run("journalctl", "--no-pager", "--lines", "40", "--output", "cat").stdout

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait for a condition; fail with what was logged if it does not come. Commands are most of what is looked at:
        they take as much of a core as what is waited for."""
        deadline = time.monotonic() + PATIENCE
        while (begun := time.monotonic()) < deadline:
            if found := holds():
                return found
            time.sleep(min(1.0, max(0.1, 2 * (time.monotonic() - begun))))
        pytest.fail(f"not within {PATIENCE:g} s: {what}\n{self.journal()}")

    def put(self, path: str, content: bytes) -> None:
        """A file there."""
        self.told("mkdir", "-p", str(Path(path).parent))
        subprocess.run([*self.enter, "tee", path], input=content, stdout=subprocess.DEVNULL, check=True)

    def install(self, wheel: Path) -> None:
        """Put this wheel into the environment there, in the place of what it has of ours."""
        self.put(f"/run/wheels/{wheel.name}", wheel.read_bytes())
        pip = [f"{ENVIRONMENT}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        self.told(*pip, "install", "--no-deps", "--no-index", f"/run/wheels/{wheel.name}")

    def copy(self, environment: Path) -> None:
        """Put what is installed of ours in this environment of this machine into the one there, as pip would: to unpack
        it again and to compile it takes pip 3 s of CPU time."""
        (packages,) = environment.glob("lib/python3.*/site-packages")
        names = [one.name for one in packages.glob("distributed_grid*")]
        packed = subprocess.run(["tar", "-cC", packages, *names], stdout=subprocess.PIPE, check=True).stdout
        there = f"{ENVIRONMENT}/{packages.relative_to(environment)}"
        subprocess.run([*self.enter, "tar", "-xC", there], input=packed, env=ENVIRON, check=True)
        script = (environment / "bin" / "grid").read_text()
        self.put(GRID, script.replace(f"#!{environment}/", f"#!{ENVIRONMENT}/").encode())
        self.told("chmod", "755", GRID)


def built(base: Path) -> Path:
    """Our wheel, built below this folder."""
    # Built from a copy: a build in the tree leaves folders there and takes along what an earlier one left.
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "shared")
    shutil.copytree(ROOT, base / "tree", ignore=leave)
    # As pip does it, whose own work takes as long again.
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, base / "wheels"], cwd=base / "tree", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (base / "wheels").iterdir()
    return wheel


def installed(wheel: Path, home: Path) -> Path:
    """A new environment in this folder with this wheel in it, which borrows only its dependencies from ours."""
    venv.create(home, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={home}/bin/python"]
    done = subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packages,) = home.glob("lib/python3.*/site-packages")
    # A path in a .pth file lends the packages there but not the editable install, which is a .pth file itself.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def another_version(wheel: Path, version: str, folder: Path) -> Path:
    """The same wheel under another version."""
    before = wheel.name.split("-")[1]
    made = folder / wheel.name.replace(before, version)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "distributed_grid/__init__.py" or ".dist-info/" in name:
                content = content.replace(before.encode(), version.encode())
            new.writestr(name.replace(f"-{before}.dist-info", f"-{version}.dist-info"), content)
    return made


def lacking() -> str:
    """What this machine lacks to boot another one in namespaces; empty: nothing."""
    if os.geteuid() != 0:
        return "needs to be root"
    if not any(Path(path).exists() for path in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd")):
        return "needs systemd (Debian: systemd, dbus)"
    for program in ("unshare", "nsenter", "setpriv", "systemctl", "dbus-daemon", "tar"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    if _unified() is None:
        return "needs cgroup v2 to be mounted, and writable"
    tried = ["unshare", "--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net", "--fork", "true"]
    if subprocess.run(tried, capture_output=True).returncode != 0:
        return "needs namespaces, which this kernel or container refuses"
    return ""


def _unified() -> Path | None:
    """Where cgroup v2 is mounted, if groups can be made there."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 ") and os.access(where := left.split()[4], os.W_OK):
            return Path(where)
    return None


@contextlib.contextmanager
def booted() -> Iterator[Machine]:
    """A machine like this one with systemd, and with an environment that borrows its dependencies from ours, but has no
    grid yet. Nothing is left of it."""
    lent = [f"{sysconfig.get_path('purelib')}:{LENT}"]
    if not sys.base_prefix.startswith("/usr"):
        lent.append(f"{sys.base_prefix}:{sys.base_prefix}")
    with booted_over("/", *lent) as machine:
        machine.told(str(Path(sys.executable).resolve()), "-m", "venv", "--symlinks", "--without-pip", ENVIRONMENT)
        borrow = (
            "import pathlib, sys, sysconfig;"
            "(pathlib.Path(sysconfig.get_path('purelib')) / 'lent.pth').write_text(sys.argv[1])"
        )
        machine.told(f"{ENVIRONMENT}/bin/python", "-c", borrow, LENT + "\n")
        yield machine


@contextlib.contextmanager
def booted_over(lower: str, *lent: str, changes: Path | None = None) -> Iterator[Machine]:
    """A machine whose root is an overlay of these directories, with systemd, and others of this machine lent to it
    (boot.sh). Nothing is left of it but what it changed, in the new directory `changes`, where one is given."""
    place = Path(tempfile.mkdtemp(prefix="grid-boot-", dir=changes.parent if changes else None))
    if changes is not None:
        (place / "changes").mkdir(mode=0o755)
    unified = _unified()
    assert unified is not None
    group = unified / place.name
    group.mkdir()
    space = ["unshare", "--pid", "--mount", "--cgroup", "--uts", "--ipc", "--net", "--fork", "--kill-child"]
    enter = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
    with (place.with_suffix(".log")).open("wb") as log:
        outer = subprocess.Popen(
            ["sh", "-c", enter, "sh", *space, str(HERE / "boot.sh"), str(place), lower, *lent],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    first = 0
    try:
        first = _first(outer, place)
        # What started it is no process of that machine, and would keep its first group from handing controllers on.
        (unified / "cgroup.procs").write_text(str(outer.pid))
        machine = Machine(first)
        machine.until(lambda: machine.run("systemctl", "is-system-running").stdout.strip() == "running", "it runs")
        yield machine
    finally:
        if first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
        else:
            outer.kill()
        outer.wait(PATIENCE)
        _remove(group)
        if changes is not None:
            (place / "changes").rename(changes)
        shutil.rmtree(place, ignore_errors=True)
        place.with_suffix(".log").unlink(missing_ok=True)


def _first(outer: subprocess.Popen[bytes], place: Path) -> int:
    """The pid of the first process of the new namespace, once it is systemd."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and outer.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        time.sleep(0.05)
    pytest.fail(f"systemd does not boot:\n{place.with_suffix('.log').read_text()}")


def _remove(group: Path) -> None:
    """Remove the control groups that are left, the deepest first; what was in them has just been ended."""
    deadline = time.monotonic() + PATIENCE
    while group.exists() and time.monotonic() < deadline:
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        time.sleep(0.05)
