"""Reach the neighbour's files: its output by the descriptors in /proc, its working directory, and its shared memory.

Succeeds if any of them can be opened, listed, overwritten or removed.
"""

import os

from kit import attempt, read, report, scene, state

victim, pid = scene["allocation"], scene["neighbour"]


def forge(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    try:
        os.write(fd, b"forged\n")
    finally:
        os.close(fd)


for number in range(3):
    attempt(f"write to its descriptor {number}", forge, f"/proc/{pid}/fd/{number}") if number else None
    attempt(f"read its descriptor {number}", read, f"/proc/{pid}/fd/{number}")
for folder in (scene["folder"], f"/proc/{pid}/cwd", f"{state}/allocs/{victim}"):
    attempt(f"list {folder}", os.listdir, folder)
    attempt(f"read {folder}/private", read, f"{folder}/private")
    attempt(f"forge {folder}/private", forge, f"{folder}/private")
    for name in ("stdout", "stderr"):
        attempt(f"forge {folder}/{name}", forge, f"{folder}/{name}")
shared = scene["shared"]
attempt(f"read {shared}", read, shared)
attempt(f"forge {shared}", forge, shared)
attempt(f"remove {shared}", os.unlink, shared)
report()
