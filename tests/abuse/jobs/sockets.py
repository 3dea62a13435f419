"""Attacks 3 and 15: speak at the sockets of the agent, the supervisor and the coordinator.

First directly; then, 320 times, through a connection whose opener is gone: a child connects, passes the descriptor on
and exits, so that the process id the kernel noted belongs to nobody. The question is harmless (`status`), but whoever
is answered could as well say `{"op": "stop", "jobs": "kill"}`. Succeeds if an answer is anything but a refusal. At the
coordinator's socket it says the first frame of a client and hands back what it is answered.
"""

import json
import os
import socket

from kit import got, report, scene, state

TRIES = 320
SECONDS = 2.0


def opened(path: str) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX)
    wire.settimeout(SECONDS)
    wire.connect(path)
    return wire


def orphaned(path: str) -> socket.socket:
    """A connection made by a process that is no more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        try:
            wire = opened(path)
            socket.send_fds(theirs, [b"x"], [wire.fileno()])
        except OSError:
            pass
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(SECONDS)
    try:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    finally:
        os.waitpid(child, 0)
        ours.close()
    if not fds:
        raise OSError("nothing was passed on")
    wire = socket.socket(fileno=fds[0])
    wire.settimeout(SECONDS)
    return wire


def ask(wire: socket.socket, question: bytes) -> bytes:
    with wire:
        wire.sendall(question)
        return wire.recv(65536)


def granted(name: str, answer: bytes) -> bool:
    """Whether this is an answer, and not a refusal."""
    try:
        said = json.loads(answer.splitlines()[0])
    except (ValueError, IndexError):
        return False
    return "error" not in said and said.get("op") != "refused"


def knock(name: str, question: bytes) -> None:
    path = f"{state}/{name}"
    for number in range(TRIES + 1):
        try:
            answer = ask(orphaned(path) if number else opened(path), question)
        except ConnectionError:
            continue
        except OSError as error:
            if error.errno is not None:  # no such file, no permission: it will not change
                return
            continue
        if granted(name, answer):
            got.append(f"{name} answered at try {number}: {answer[:200]!r}")
            return


def coordinator() -> str:
    """What the coordinator answers to a client's first frame, in hexadecimal."""
    key = "x3JJHMbDL1EzLkh9GBhXDw=="
    asked = (
        f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    heard = b""
    try:
        with opened(f"{scene['coordinator_state']}/coordinator.sock") as wire:
            wire.sendall(asked.encode())
            while b"\r\n\r\n" not in heard:
                part = wire.recv(4096)
                if not part:
                    return ""
                heard += part
            if b" 101 " not in heard.splitlines()[0]:
                return ""
            wire.sendall(bytes.fromhex(scene["hello"]))
            heard = heard.partition(b"\r\n\r\n")[2]
            while part := wire.recv(4096):
                heard += part
    except OSError:
        pass
    return heard.hex()


knock("agent.sock", b'{"op":"status"}\n')
knock("supervisor.sock", b'{"op":"nonsense","id":"x"}\n')
knock("files.sock", b'{"op":"list"}\n')
report(coordinator=coordinator())
