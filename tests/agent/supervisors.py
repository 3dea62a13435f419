"""Supervisors that begin where an interpreter has imported what they are made of: a server forks each. To start an
interpreter for each and to import takes 0.1 s of CPU time, five times as much.

    launcher = Launcher(state_dir, report, process=started(state_dir))

Such a supervisor differs from one that agent/launch/supervisor.py starts in its command line, and has the server as its
parent. Where another one takes over, it is started by the launcher as ever.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

MAIN = Path(__file__).parents[2] / "agent" / "supervisor" / "main.py"
POINTS = Path(__file__).parents[1] / "fault_points.py"
PYTHON = sys.executable
LARGEST = 1 << 16
NETWORK = "/proc/thread-self/ns/net"


class Supervisor:
    """A process of the server: what a launcher uses of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ends = open(os.pidfd_open(pid), "rb", 0)  # noqa: SIM115 (readable from its end on, and open as long as we)

    def poll(self) -> int | None:
        """None as long as it runs. How it ended is not known, and told as 0."""
        return 0 if select.select([self._ends], [], [], 0.0)[0] else None


def started(state_dir: Path, output_limit: int = 256 << 20, cgroup: str = "none", walls: str = "none") -> Any:
    """A supervisor that was just started for this directory; None where there is no such directory, one is alive
    already, or a forked one would not begin as the launcher's own does."""
    from distributed_grid import __version__
    from distributed_grid.agent.launch.supervisor import lives

    alike = sys.executable == PYTHON and os.geteuid() == 0
    if not alike or not state_dir.is_dir() or lives(state_dir):
        return None
    server, network = _server()
    if os.readlink(NETWORK) != network:
        return None
    environment = {"PATH": os.environ.get("PATH", os.defpath), "TZ": os.environ.get("TZ", "")}
    if "GRID_FAULTS" in os.environ:
        environment["GRID_FAULTS"] = os.environ["GRID_FAULTS"]
    words = [str(state_dir), str(output_limit), cgroup, __version__, walls]
    log = os.open(state_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with open(log, "ab", 0):
        socket.send_fds(server, [json.dumps([environment, words]).encode()], [log])
    return Supervisor(int(server.recv(16)))


@functools.cache
def _server() -> tuple[socket.socket, str]:
    """The connection to the server of this process, which ends with it, and the server's network namespace."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [PYTHON, "-I", "-S", "-X", "utf8", __file__, str(MAIN), str(theirs.fileno())]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "TZ": os.environ.get("TZ", "")}
    server = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/", env=environment, start_new_session=True
    )
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)  # called before the wait
    return ours, os.readlink(NETWORK)


# --- the server -------------------------------------------------------------------------------------------------------


def serve(main: Any, points: Any, asked: socket.socket) -> None:
    gc.disable()
    points.note()
    for name in ("agent.supervisor.loop", "agent.supervisor.spawners", "agent.walls.forkserver", "runtime.unix"):
        importlib.import_module(f"distributed_grid.{name}")
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        said, numbers, _, _ = socket.recv_fds(asked, LARGEST, 1)
        if not said:
            return
        if (pid := os.fork()) == 0:
            asked.close()
            os._exit(run(main, points, *json.loads(said), *numbers))
        for number in numbers:
            os.close(number)
        asked.send(str(pid).encode())


def run(main: Any, points: Any, environment: dict[str, str], words: list[str], log: int) -> int:
    """Do what agent/launch/supervisor.py and the end of agent/supervisor/main.py do; returns the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    random.seed()
    code = 1
    try:
        if environment.get("GRID_FAULTS"):
            points.arm()
        code = main.main(["main.py", *words])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def begin() -> None:
    """Import the supervisor's program by its path, as an interpreter does that runs it."""
    del sys.path[:1]  # it has modules of this folder
    main, points = loaded("supervisor_main", sys.argv[1]), loaded("fault_points", str(POINTS))
    main._name_our_files()
    with contextlib.suppress(KeyboardInterrupt):
        serve(main, points, socket.socket(fileno=int(sys.argv[2])))


def loaded(name: str, file: str) -> Any:
    """The module that is in this file."""
    about = importlib.util.spec_from_file_location(name, file)
    assert about is not None and about.loader is not None
    module = importlib.util.module_from_spec(about)
    about.loader.exec_module(module)
    return module


if __name__ == "__main__":
    begin()
