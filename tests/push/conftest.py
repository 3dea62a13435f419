"""A founded grid and a bare host beside it, in networks of their own."""

import os
import shutil
import threading
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from distributed_grid.cli.context import Invocation
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import GetStatus, ListAccess
from distributed_grid.push.coordinator import Coordinator
from distributed_grid.push.provisioning import Payload
from distributed_grid.push.wheel import build_of, own_wheel, repack
from tests.grid_fixture import Grid, until
from tests.push.hosts import ADDRESS, MASTER, Machine, lacking, machine, own_network

PORT = 7433
NEEDED = "websockets msgpack msgspec psutil click structlog nvidia-ml-py pathspec PyYAML cryptography uvloop".split()
BELOW = "cffi pycparser".split()  # what those need


class Scene:
    """A coordinator, us as its operator, and a host. `seen`: the command lines of all processes that began
    meanwhile, on either side."""

    def __init__(self, grid: Grid, far: Machine, wheels: Path) -> None:
        self.grid = grid
        self.far = far
        self.wheels = wheels
        own = next(wheels.glob("distributed_grid-*.whl"))
        others = tuple(path for path in sorted(wheels.iterdir()) if path != own)
        self.payload = Payload(build_of(own), (own, *others), online=False)
        self.target = f"root@{ADDRESS}"
        self.address = (MASTER, PORT)
        invocation = Invocation(coordinator=grid.url)
        self.coordinator = Coordinator(invocation.ask, lambda: invocation.user, f"{MASTER}:{PORT}")
        self.seen: set[str] = set()

    def known(self) -> tuple[list[str], list[str], int]:
        """The nodes there are, those with a certificate that holds, and how many tokens open something."""
        invocation = Invocation(coordinator=self.grid.url)
        status = invocation.ask(lambda number: GetStatus(id=number))
        access = invocation.ask(lambda number: ListAccess(id=number))
        holding = [one.name for one in access.members if one.role is Role.AGENT and not one.revoked]
        return [node.facts.name for node in status.nodes], holding, len(access.tokens)

    def bare(self) -> None:
        """Nothing of a node is on the host, nothing runs there, and the coordinator knows of none."""
        until(lambda: not self.far.processes(), "nothing runs there")
        left = {path for path in self.far.files() if (self.far.home / path).is_file() or "grid/" in path}
        assert left == {".config/grid/config.yaml", ".config/pip/pip.conf"}
        assert self.known() == ([], [], 0)

    def installed(self) -> Path:
        """The environment is on the host already, as making it takes longest; the folder that it is in."""
        share = self.far.home / ".local/share/grid"
        shutil.copytree(self.far.keys / "builds", share / "builds", symlinks=True, copy_function=os.link)
        return share

    def watch(self, done: threading.Event) -> None:
        """Look at the command lines of all that begins, on either side, until it is done."""
        before = set(filter(str.isdigit, os.listdir("/proc")))
        while not done.wait(0.05):
            there = set(filter(str.isdigit, os.listdir("/proc")))
            before &= there  # else a new process could have the number of one that is gone
            for name in there - before:
                try:
                    self.seen.add(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
                except (OSError, UnicodeDecodeError):
                    continue


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """It. What the host installs is this very environment, packed into wheels again: that stands in for an index of
    packages, which there is none of in these networks."""
    if os.geteuid() != 0:
        pytest.skip("needs to be root")
    if why := lacking():
        pytest.skip(why)
    place = tmp_path_factory.mktemp("push")
    (wheels := place / "wheels").mkdir()
    (made := place / "made").mkdir()
    for name in (*NEEDED, *BELOW):
        repack(distribution(name), wheels)
    own_wheel(made, None).rename(wheels / "distributed_grid-0.1.0-py3-none-any.whl")
    with own_network(), machine(place) as far:
        pip = far.home / ".config" / "pip" / "pip.conf"
        pip.parent.mkdir()
        pip.write_text(
            "[install]\nno-compile = false\n"
        )  # pip's way to say that it does not compile, which takes seconds
        grid = Grid(place / "grid")
        grid.environment["HOME"] = str(far.ours)
        state = grid.home / "coordinator"
        founded = grid.run("init", "--host", MASTER, "--port", str(PORT), "--state-dir", str(state))
        assert founded.returncode == 0, founded.stderr
        words = ("coordinator", "run", "--host", "0.0.0.0", "--port", str(PORT), "--state-dir", str(state))
        grid._start("coordinator", *words)
        until((state / "coordinator.json").exists, "the coordinator listens")
        grid.url = grid.environment["GRID_COORDINATOR"] = f"wss://{MASTER}:{PORT}"
        with pytest.MonkeyPatch.context() as here:
            for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
                here.setenv(name, grid.environment[name])
            here.delenv("SSH_AUTH_SOCK", raising=False)
            try:
                yield Scene(grid, far, wheels)
            finally:
                grid.close()
