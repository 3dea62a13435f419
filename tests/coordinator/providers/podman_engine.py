"""Podman on this machine for tests, with its own storage, behind the API of Docker: real containers by runc. The image
is an empty root; what runs in it is bound from this machine: its Python with the grid. Nothing is fetched.
"""

import http.client
import io
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from tests.grid_fixture import until

ROOT = Path(__file__).parents[3]
IMAGE = "localhost/machine:1"
PROGRAMS = ("podman", "runc")


class Engine:
    """An engine with the image, and its socket."""

    def __init__(self, home: Path) -> None:
        self.home, self.socket = home, home / "docker.sock"
        few = []
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            most = min(4096, hard) if (hard := resource.getrlimit(kind)[1]) > 0 else 4096
            few.append(f'"{name}={most}:{most}"')
        # Podman asks for more than a container may have that it runs in itself.
        (home / "containers.conf").write_text(f"[containers]\ndefault_ulimits = [{', '.join(few)}]\n")
        self.environment = {**os.environ, "CONTAINERS_CONF": str(home / "containers.conf")}
        self.command = [
            "podman", "--root", str(home / "root"), "--runroot", str(home / "run"), "--tmpdir", str(home / "tmp"),
            "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
            "--runtime", shutil.which("runc") or "/usr/sbin/runc",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self.command, *words], env=self.environment, input=given, capture_output=True)

    def start(self) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name in ("tmp", "etc", "proc", "sys", "dev"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(folder)
        made = self.run("import", "-", IMAGE, given=out.getvalue())
        assert made.returncode == 0, made.stderr.decode()
        words = [*self.command, "system", "service", "--time", "0", f"unix://{self.socket}"]
        with (self.home / "log").open("wb") as log:
            self.process = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)
        until(self.socket.exists, "podman listens")

    def containers(self, all: bool = False) -> list[str]:
        """Names of containers that run, or of all. Asked over the socket: podman's program takes longer to start than
        to answer."""
        connection = http.client.HTTPConnection("localhost")
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(60)
            connection.sock.connect(str(self.socket))
            connection.request("GET", f"/v1.40/containers/json?all={all}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.reason
            return sorted(name.removeprefix("/") for one in json.load(answer) for name in one["Names"])

    def clear(self) -> None:
        """Remove all containers."""
        if self.containers(all=True):
            self.run("rm", "--all", "--force", "--time", "0")

    def end(self) -> None:
        self.run("rm", "--all", "--force", "--time", "0")
        if self.process is not None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()


def bound() -> list[str]:
    """What of this machine the containers see, and cannot change: its libraries, and this Python with the grid."""
    paths = {Path(one) for one in ("/usr", "/bin", "/lib", "/lib64")} | {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    return [f"{path}:{path}:ro" for path in sorted(paths) if path.exists()]


@contextmanager
def podman_engine() -> Iterator[Engine]:
    """An engine that listens."""
    home = Path(tempfile.mkdtemp(prefix="podman-"))  # a short path: it listens at a Unix socket
    engine = Engine(home)
    try:
        engine.start()
        yield engine
    finally:
        engine.end()
        shutil.rmtree(home, ignore_errors=True)


def lacking() -> str:
    """What this machine lacks for an engine; empty: nothing."""
    programs = [one for one in PROGRAMS if shutil.which(one) is None and not Path("/usr/sbin", one).exists()]
    if programs:
        return f"needs {', '.join(programs)} (scripts/system-packages.sh installs them)"
    return "" if os.geteuid() == 0 else "needs root: containers with limits"


def refused(engine: Engine) -> str:
    """Why no containers run in it; empty: they do."""
    words = ["run", "--rm", "--network", "host", "--memory", "64m", "--cpus", "1"]
    tried = engine.run(*words, *(word for one in bound() for word in ("--volume", one)), IMAGE, "/bin/true")
    return "" if tried.returncode == 0 else f"no container runs here: {tried.stderr.decode().strip()[-300:]}"


@cache
def missing() -> str:
    """Why no containers can run here; empty: they can."""
    if why := lacking():
        return why
    with podman_engine() as engine:
        return refused(engine)
