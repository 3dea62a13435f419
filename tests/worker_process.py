"""A worker process of pytest-xdist, which starts this program for each of them (forked_workers.py).

    python tests/worker_process.py SOCKET NUMBER

Number 0 listens at the socket, and is a worker. The others hand their standard input and output to it, and end when the
process ends that was forked to serve there; where nobody listens any more, they are workers themselves.
"""

import contextlib
import os
import socket
import sys
from typing import Any

LISTENING = "TESTS_LISTEN_AT"
"""The descriptor at which the first worker listens."""


def listen(path: str) -> None:
    """Listen at the socket, unless another process has been the first one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as here, contextlib.suppress(OSError):
        here.bind(path)
        here.listen(socket.SOMAXCONN)
        os.environ[LISTENING] = str(here.detach())


def handed_over(path: str) -> bool:
    """Whether a forked process has served in the place of this one, and has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there, contextlib.suppress(OSError):
        there.connect(path)
        socket.send_fds(there, [b"."], [0, 1])
        if there.recv(1):
            os.close(0)
            os.close(1)
            return not there.recv(1)
    return False


def serve(number: int) -> None:
    """What xdist asks for, read from standard input, until it ends this process."""
    from execnet import gateway_base

    while not (os.read(0, 1 << 20) or b"\n").endswith(b"\n"):
        pass  # the source of that module, which execnet sends first, and then waits
    io: Any = gateway_base.init_popen_io(gateway_base.get_execmodel("main_thread_only"))
    io.write(b"1")
    gateway_base.serve(io, id=f"gw{number}-worker")


if __name__ == "__main__":
    del sys.path[0]  # it has modules of this folder
    path, number = sys.argv[1], int(sys.argv[2])
    sys.argv[:] = ["-c"]
    if number == 0:
        listen(path)
    if number == 0 or not handed_over(path):
        serve(number)
