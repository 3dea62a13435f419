"""Take over another process as a debugger does: ptrace, process_vm_readv, and its descriptors by pidfd_getfd.

Succeeds with the agent, the supervisor, the coordinator or the neighbour. With its own parent, a spawner that made this
job for its own submitter, it is noted apart.
"""

import ctypes
import os

from kit import attempt, call, got, libc, report, targets

ATTACH, DETACH, SEIZE = 16, 17, 0x4206
PIDFD_GETFD = 438
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def seize(pid: int) -> None:
    call("ptrace", SEIZE, pid, None, None)
    # Seized without being stopped: it is let go when this process ends.


def attach(pid: int) -> None:
    call("ptrace", ATTACH, pid, None, None)
    os.waitpid(pid, 0)
    call("ptrace", DETACH, pid, None, None)


def descriptor(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        for number in range(3, 16):
            try:
                os.close(call("syscall", PIDFD_GETFD, fd, number, 0))
            except OSError as error:
                if error.errno == 1:  # EPERM; another error says that there is none of this number
                    raise
                continue
            return
        raise OSError("none was there")
    finally:
        os.close(fd)


for name, pid in targets():
    attempt(f"attach to {name}", attach, pid)
    attempt(f"seize {name}", seize, pid)
    attempt(f"a descriptor of {name}", descriptor, pid)
others, got[:] = [*got], []
if os.getppid() > 1 and os.getppid() not in dict(targets()).values():
    attempt("seize its own parent", seize, os.getppid())
    attempt("a descriptor of its own parent", descriptor, os.getppid())
parent, got[:] = [*got], others
report(parent=parent)
