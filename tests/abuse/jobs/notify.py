"""Speak to the service manager in the agent's name, at its notification socket: that the agent stops, hangs, or is
another process. And connect to abstract sockets of the grid, if it has any.

Succeeds if the manager believes it; only the harness can see that. An abstract socket that lets one in counts.
"""

import os
import socket

from kit import got, report

WORDS = ("WATCHDOG=trigger", f"MAINPID={os.getpid()}", "STOPPING=1", "FDSTOREREMOVE=1", "STATUS=abused")

for path in {os.environ.get("NOTIFY_SOCKET", ""), "/run/systemd/notify"} - {""}:
    for word in WORDS:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
            wire.settimeout(2)
            try:
                wire.sendto(word.encode(), path)
            except OSError:
                continue
with open("/proc/net/unix") as file:
    names = {line.split()[-1] for line in file if line.split()[-1].startswith("@")}
for name in sorted(names):
    if "grid" in name:
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(2)
            try:
                wire.connect("\0" + name[1:])
            except OSError:
                continue
            got.append(f"connected to {name}")
report()
