"""What all attack programs start from. An attacker is assumed to know everything but secrets: the harness hands each
program a scene (JSON, the first argument) with the paths and process ids of the agent, its supervisor, the coordinator
and the neighbour.

A program collects what it succeeded in (`got`) and prints one JSON line. An empty `got` is an attack that was refused.
It runs under the system's own Python with nothing installed, as any user.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

scene: dict[str, Any] = json.loads(sys.argv[1])
state: str = scene["state"]
own: str = os.environ.get("GRID_ALLOCATION_ID", "")
got: list[str] = []
libc = ctypes.CDLL(None, use_errno=True)

SERVICES = ("agent", "supervisor", "coordinator", "neighbour")
MOST_READ = 4096


def attempt(what: str, do: Callable[..., Any], *args: Any) -> Any:
    """Try it; what the kernel allows is noted as a success under this name."""
    try:
        result = do(*args)
    except (OSError, ValueError, ctypes.ArgumentError):
        return None
    got.append(what)
    return result


def mine(path: str) -> bool:
    """Whether this lies in the folder for jobs, where a job of this user may do what it likes (a link as well, wherever
    it leads: what is there has a path of its own); not so the neighbour's part of it."""
    try:
        above, name = os.path.split(os.path.abspath(path))
        place = os.path.join(os.path.realpath(above), name)
    except OSError:  # a link in /proc that may not be read
        return False
    return place.startswith(f"{state}/jobs") and scene["allocation"] not in place


def alone() -> bool:
    """Whether what started this job is the first process that it can see: so all of them are this job's."""
    with open("/proc/1/comm") as comm:
        return comm.read().strip() == "grid-supervisor"


def targets() -> Iterator[tuple[str, int]]:
    """Other people's processes by name: the services and the neighbour. None where it is alone: by their numbers it
    would find its own."""
    if alone():
        return
    for name in SERVICES:
        if scene.get(name):
            yield name, int(scene[name])


def others() -> Iterator[int]:
    """All processes in /proc that are neither this one nor in its session."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
            try:
                if os.getsid(int(name)) != os.getsid(0):
                    yield int(name)
            except OSError:
                continue


def call(name: str, *args: Any) -> int:
    """A function of the C library. Raises OSError."""
    done = int(getattr(libc, name)(*args))
    if done < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return done


def state_files() -> list[str]:
    """What lies in the agent's and the coordinator's state directories, as far as it is known or can be listed; not
    what belongs to this allocation."""
    known = [f"{state}/{name}" for name in ("identity/own.key", "identity/own.crt", "journal", "supervisor.pid",
                                           "instance", "incarnation", "agent.sock", "supervisor.sock")]  # fmt: skip
    known += [f"{state}/allocs/{scene['allocation']}/{name}" for name in ("stdout", "stderr")]
    known += [f"{scene['coordinator_state']}/{name}" for name in ("grid.db", "audit.log", "pki/ca.key", "own.key")]
    for top in (state, scene["coordinator_state"]):
        for here, _, names in os.walk(top):
            known += [f"{here}/{name}" for name in names]
    return [path for path in dict.fromkeys(known) if not (own and own in path) and not mine(path)]


def read(path: str) -> str:
    """The beginning of a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, MOST_READ).decode("latin-1")
    finally:
        os.close(fd)


def detach() -> bool:
    """Fork twice and leave the session, as a daemon does. True in what comes of it, False in who goes on."""
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True


def report(**more: Any) -> None:
    """The one line that the harness reads."""
    print(json.dumps({"got": got[:60], **more}), flush=True)
