"""Hold so much of what the kernel counts for a whole user that nothing is left for others who have the same user id on
this machine: namespaces (`namespaces`), or descriptors that are on their way through sockets (`descriptors`).

Behind walls by namespaces all jobs, the agent and the supervisor are one user to the kernel. Succeeds if no job of
somebody else starts meanwhile; the harness tries that as soon as the process `sleep 9.TOKEN` is there.
"""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time

from kit import got, libc, report, scene

SECONDS = 9
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS, CLONE_NEWIPC = 0x10000000, 0x20000000, 0x20000, 0x8000000
MOST = 150_000
NAMESPACES = 1000
"""With so many, a few jobs more, or some minutes, get all that there are."""
kept: list[object] = []


def namespaces() -> int:
    """Each is held open by a descriptor; children make them, so that they do not lie in each other."""
    while len(kept) <= NAMESPACES:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for _ in range(30):
                if libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) != 0:
                    break
                with contextlib.suppress(OSError):
                    fd = os.open("/proc/self/ns/user", os.O_RDONLY)
                    socket.send_fds(theirs, [b"x"], [fd])
            os._exit(0)
        theirs.close()
        before = len(kept)
        while True:
            _, fds, _, _ = socket.recv_fds(ours, 1, 30)
            if not fds:
                break
            kept.extend(fds)
        ours.close()
        os.waitpid(pid, 0)
        if len(kept) == before:
            break
    if len(kept) > NAMESPACES and not scene["walled"]:  # who has a user id of its own takes nobody's
        got.append(f"{len(kept)} namespaces")
    return len(kept)


def descriptors() -> int:
    """Sockets that nobody reads, with as many descriptors in each message as the kernel takes."""
    null = os.open("/dev/null", os.O_RDONLY)
    sent = 0
    while sent < MOST:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        kept.append(pair)
        pair[0].setblocking(False)
        try:
            while True:
                socket.send_fds(pair[0], [b"x"], [null] * 250)
                sent += 250
        except BlockingIOError:
            continue
        except OSError:
            break
    return sent


most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = 0
with contextlib.suppress(OSError):
    held = namespaces() if sys.argv[2] == "namespaces" else descriptors()
report(held=held)
subprocess.Popen(["/bin/sleep", f"{SECONDS}.{scene['token']}"], close_fds=True)
time.sleep(SECONDS)
