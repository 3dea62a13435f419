"""Get out of one's control groups, or into others': move to a parent or to the root, raise one's own limits, and write
to the files of other groups.

Succeeds if a group of a controller can be left or changed.
"""

import os

from kit import attempt, report, scene

LIMITS = {
    "memory.max": "max", "memory.limit_in_bytes": "-1", "pids.max": "max", "cpu.max": "max", "cpuset.cpus": "0-1",
    "cgroup.freeze": "0", "cgroup.max.descendants": "max", "memory.oom.group": "0",
}  # fmt: skip


def mounts() -> dict[str, str]:
    """Where each hierarchy is mounted, by the names that /proc/PID/cgroup gives."""
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            if kind == "cgroup2":
                found[""] = left.split()[4]
            elif kind == "cgroup":
                for option in options.split(","):
                    found[option] = left.split()[4]
    return found


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def groups_of(pid: object) -> list[str]:
    found = []
    with open(f"/proc/{pid}/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            for name in names.split(","):
                if name in where:
                    found.append(f"{where[name]}{path}".rstrip("/"))
    return found


where = mounts()
mine = groups_of("self")
for group in mine:
    for name, value in LIMITS.items():
        if os.path.exists(f"{group}/{name}"):
            attempt(f"write {group}/{name}", write, f"{group}/{name}", value)
    above = group
    while above.count("/") > 4:
        above = os.path.dirname(above)
        attempt(f"move to {above}", write, f"{above}/cgroup.procs", str(os.getpid()))
for pid in (scene["neighbour"], scene["supervisor"], scene["agent"]):
    try:
        theirs = groups_of(pid)
    except OSError:
        continue
    for group in theirs:
        if group not in mine:
            attempt(f"join {group}", write, f"{group}/cgroup.procs", str(os.getpid()))
            attempt(f"freeze {group}", write, f"{group}/cgroup.freeze", "0")
            attempt(f"freeze {group}", write, f"{group}/freezer.state", "THAWED")
report()
