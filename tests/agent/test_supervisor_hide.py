"""What a job that runs as the agent's own user can reach of the agent: nothing of it where the kernel can see to that.

The supervisor here runs as nobody, in a directory where nobody can make nothing above it, as a service of its own does.
"""

import ctypes
import json
import os
import resource  # noqa: F401 - which os.wait4 loads, and who is nobody cannot
import shutil
import socket
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent import supervisor, supervisor_main, workdir  # noqa: F401 - loaded before the fork
from distributed_grid.agent.supervisor_hide import why_not
from tests.grid_fixture import until

NOBODY = 65534
pytestmark = pytest.mark.root


class Node:
    """A supervisor that runs as nobody, spoken to as its agent does."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._count = 0
        for name in ("allocs", "identity"):
            (state / name).mkdir(mode=0o700)
        (state / "identity" / "own.key").write_text("SECRET")
        os.chmod(state / "identity" / "own.key", 0o600)
        for path in [state, *state.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        # The interpreter of this machine may be where nobody may not look: all of it is loaded before.
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                os.closerange(3, 1024)  # as who starts it does
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a fresh process of this user lets itself be looked into
                os.environ["GRID_SECRET"] = "SECRET"
                os.dup2(os.open(state / "supervisor.log", os.O_WRONLY | os.O_CREAT, 0o600), 2)
                supervisor_main.main(["", str(state)])
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(0)
        self.wire = until(self.dial, "the supervisor listens")
        assert self.hear()["op"] == "hello"

    def dial(self) -> Any:
        wire = socket.socket(socket.AF_UNIX)
        wire.settimeout(60)
        try:
            wire.connect(str(self.state / "supervisor.sock"))
        except (FileNotFoundError, ConnectionRefusedError):  # it is bound a moment before it listens
            return None
        return wire.makefile("rwb")

    def hear(self) -> dict[str, Any]:
        said = self.wire.readline()
        assert said, (self.state / "supervisor.log").read_text()
        heard: dict[str, Any] = json.loads(said)
        return heard

    def run(self, script: str, hide: bool = True) -> tuple[int, str]:
        """Run it in a shell as a job, to its end: the exit code, and what it wrote."""
        self._count += 1
        key = f"j-{os.getpid()}-{self._count}.1"
        directory = workdir.create(self.state, key)
        os.chown(directory, NOBODY, NOBODY)
        os.chown(directory.parent, NOBODY, NOBODY)
        order = {
            "op": "launch", "id": key, "argv": ["/bin/sh", "-c", script], "cwd": str(directory), "cores": [],
            "env": {"PATH": "/usr/bin:/bin", "GRID_ALLOCATION_ID": key}, "limit": 60.0, "grace": 1.0,
            "lease": 0.0, "lease_from": 0.0, "hide": hide,
        }  # fmt: skip
        self.wire.write(json.dumps(order).encode() + b"\n")
        self.wire.flush()
        while (said := self.hear())["op"] != "exited":
            pass
        out = (directory.parent / "stdout").read_text() + (directory.parent / "stderr").read_text()
        return said["outcome"].get("code", -1), out or said["outcome"]["text"]

    def close(self) -> None:
        self.wire.write(b'{"op":"leave"}\n')
        self.wire.flush()
        os.waitpid(self.pid, 0)
        self.wire.close()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    above = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    above.chmod(0o755)
    (above / "state").mkdir(mode=0o700)
    try:
        made = Node(above / "state")
        yield made
        made.close()
    finally:
        shutil.rmtree(above)


def test_a_job_has_no_open_files_but_its_three_streams(node: Node) -> None:
    for hide in (False, True):
        code, out = node.run("ls /proc/$$/fd; readlink /proc/$$/fd/0", hide)
        assert (code, out.split()) == (0, ["0", "1", "2", "/dev/null"])


def test_a_job_reads_its_notice_and_cannot_change_it(node: Node) -> None:
    (node.state / "recalls").mkdir(exist_ok=True)
    path = node.state / "recalls" / "j-x.1"
    path.write_text("the owner is back")
    for one in (path, path.parent):
        os.chown(one, NOBODY, NOBODY)
    code, out = node.run(f"cat {path}; echo no > {path} || rm -f {path} || mv {path} {path}.new || echo > {path}.new")
    assert code and "the owner is back" in out
    assert path.read_text() == "the owner is back"
    assert os.listdir(path.parent) == ["j-x.1"]


def test_a_job_cannot_look_into_the_supervisor_though_it_is_the_same_user(node: Node) -> None:
    for hide in (False, True):
        for what in ("environ", "mem", "fd/", "cwd/", "maps"):
            code, out = node.run(f"id -u; ls /proc/$PPID/{what} && cat /proc/$PPID/{what}", hide)
            assert code and out.startswith(f"{NOBODY}\n") and "denied" in out and "SECRET" not in out


def test_a_job_reads_neither_the_key_nor_the_journal_nor_other_jobs_and_still_works(node: Node) -> None:
    if "Landlock" in (why := why_not("/var/lib/grid")):
        pytest.skip(why)
    assert node.run("cat ../../../identity/own.key", hide=False) == (0, "SECRET")
    for order in (
        "cat ../../../identity/own.key",
        f"cat {node.state}/identity/own.key",
        f"cat {node.state}/journal",
        f"echo x >> {node.state}/journal",
        f"rm -f {node.state}/identity/own.key",
        f"mv {node.state}/identity/own.key .",
        f"ln {node.state}/identity/own.key mine && cat mine",
        f"echo x > {node.state}/new",
        f"ln -s {node.state}/identity/own.key way; cat way",
        f"cat /proc/self/root{node.state}/identity/own.key",
        f"cat {node.state}/allocs/*-1.1/stdout",
        f"kill -9 {node.pid}",
    ):
        code, out = node.run(order)
        assert code and ("denied" in out or "not permitted" in out or "cross-device" in out), (order, code, out)
    works = "echo a > x && cat x && mkdir d && mv x d/y && cat d/y && echo b > /dev/stderr && test -w ../stdout"
    code, out = node.run(f"{works} && cat /etc/passwd > /dev/null && f=$(mktemp) && echo c > $f && cat $f && rm $f")
    assert (code, out) == (0, "a\na\nc\nb\n")
    assert (node.state / "identity" / "own.key").read_text() == "SECRET"


def test_a_job_is_not_let_in_where_the_agent_gives_orders(node: Node) -> None:
    if shutil.which("perl") is None:
        pytest.skip("needs perl")
    dial = f'$s = IO::Socket::UNIX->new(Peer => "{node.state}/supervisor.sock") or exit 4; sysread($s, $b, 100);'
    code, out = node.run(f"perl -MIO::Socket::UNIX -e '{dial} print length($b), qq(\\n);'", hide=False)
    assert (code, out) == (0, "0\n")
    assert node.run("echo still obeyed") == (0, "still obeyed\n")


def test_it_is_said_why_jobs_cannot_be_kept_out() -> None:
    assert why_not("/var/lib/grid") == "the agent's user can write in /, above it"  # since we are root
