"""Runs the supervisor: `python -I -S supervisor/main.py STATE_DIR [OUTPUT_LIMIT [CGROUP [RELEASE [WALLS]]]]`.

It is started by its path, without site-packages and without importing this package, so that the process stays small.
Modules of the agent and of `runtime/` still get their usual names.
"""

import fcntl
import gc
import json
import os
import signal
import sys
from types import ModuleType


def _name_our_files() -> None:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    above = os.path.dirname(here)
    # What all services share lies above us where we are installed; in the source tree it is in a folder there.
    places = {"distributed_grid": [above, os.path.join(above, "distributed_grid")], "distributed_grid.agent": [here]}
    places["distributed_grid.protocol"] = [os.path.join(above, "protocol")]
    for name, path in places.items():
        package = ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package


def main(argv: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # all that modules make stays: to look through it meanwhile is a tenth of the start
    from distributed_grid.agent.supervisor import loop, procs, spawners
    from distributed_grid.agent.supervisor.job import OUTPUT_LIMIT
    from distributed_grid.agent.walls import forkserver, syscalls
    from distributed_grid.runtime.unix import SUPERVISOR, name_process

    gc.enable()
    name_process(SUPERVISOR)
    syscalls.set_dumpable(False)
    state_dir = os.path.abspath(argv[1])
    limit = int(argv[2]) if len(argv) > 2 else OUTPUT_LIMIT
    cgroup, release, walls = (argv[3:6] + ["none", "", "none"][len(argv[3:6]) :])[:3]
    os.chdir("/")
    begun = os.path.isdir(os.path.join(state_dir, "allocs")) and not os.path.isdir(os.path.join(state_dir, "spawners"))
    for name, mode in (("allocs", 0o700), ("spawners", 0o700), ("jobs", 0o711), ("recalls", 0o711)):
        path = os.path.join(state_dir, name)
        os.makedirs(path, exist_ok=True)
        os.chmod(path, mode)  # whatever our umask is
    if begun:
        spawners.lost_notes(state_dir)
    forks = forkserver.ForkServer()  # before we know anything that a job must not
    forkserver.give_up_privileges()
    # Held as long as this process lives: the kernel lets go of it at our death, so it cannot be wrong about that.
    lock = os.open(os.path.join(state_dir, "supervisor.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        loop.log(f"another supervisor has {state_dir}")
        return 75
    seen = procs.stat(os.getpid())
    pid_file = os.path.join(state_dir, "supervisor.pid")
    try:
        with open(pid_file + ".new", "w") as file:
            json.dump({"pid": os.getpid(), "start": seen.start if seen else 0}, file)
        os.replace(pid_file + ".new", pid_file)
    except OSError as error:
        loop.log(f"{state_dir} cannot be written ({error.strerror}): the supervisor does not start")
        return 75
    loop.Supervisor(state_dir, forks, limit, cgroup, release, walls).run()
    return 0


if __name__ == "__main__":
    _name_our_files()
    sys.exit(main(sys.argv))
