"""The resources of the machine (or of the agent's container), its counters, and the NUMA nodes of cores and GPUs."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

TICK = 1 / os.sysconf("SC_CLK_TCK")
ROOT = Path("/")
UNLIMITED = 1 << 63


def usable_cores(root: Path = ROOT) -> tuple[int, ...]:
    """The cores the agent may use: its affinity, limited by cpuset and to the number that a CPU quota allows."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    quotas = [quota for quota in map(_quota, _cgroups("cpu", root)) if quota]
    return cores[: max(1, math.floor(min(quotas)))] if quotas else cores


def memory_groups(root: Path = ROOT) -> tuple[Path, ...]:
    """The control groups around the agent that limit its memory, by their folders."""
    return tuple(folder for folder in _cgroups("memory", root) if _limit(folder) < psutil.virtual_memory().total)


def memory(groups: Sequence[Path] = ()) -> tuple[int, int]:
    """Total and available bytes of memory: the machine's, or a control group's if that has less."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for folder in groups:
        limit = _limit(folder)
        used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
        total = min(total, limit)
        available = min(available, max(0, limit - max(0, used - _cached(folder))))
    return total, available


def _limit(folder: Path) -> int:
    limit = _number(folder, "memory.max", "memory.limit_in_bytes")
    return UNLIMITED if limit is None else limit


def busy_seconds() -> dict[int, float]:
    """Busy seconds of each core since boot, by kernel number, including steal time. (psutil lists cores without their
    numbers.)"""
    found = {}
    with open("/proc/stat", "rb") as file:
        for line in file:
            if not line.startswith(b"cpu"):
                break
            if line[3:4].isdigit():
                name, user, nice, system, _idle, _wait, irq, soft, steal = line.split()[:9]
                found[int(name[3:])] = sum(map(int, (user, nice, system, irq, soft, steal))) * TICK
    return found


def traffic() -> tuple[int, int, int, int]:
    """Bytes read and written by all disks, received and sent by all networks but the loopback, since boot."""
    disks = psutil.disk_io_counters()
    nets = [counters for name, counters in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    read, written = (disks.read_bytes, disks.write_bytes) if disks else (0, 0)
    return read, written, sum(net.bytes_recv for net in nets), sum(net.bytes_sent for net in nets)


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the agent's control group and those above it, for one controller, v2 or v1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            bases = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        elif controller in names.split(","):
            bases = [root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup" / names]
        else:
            continue
        for base in bases:
            if not base.is_dir():
                continue
            folder = base / path.lstrip("/")
            while folder != base:
                yield folder
                folder = folder.parent
            yield base
            break


def _quota(folder: Path) -> float:
    """CPU quota of a control group in cores; 0 for none."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        limit, every = _number(folder, "cpu.cfs_quota_us"), _number(folder, "cpu.cfs_period_us")
        return limit / every if limit and every and limit > 0 else 0.0
    return 0.0 if quota == "max" else int(quota) / int(period)


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):
            continue
    return None


def _cached(folder: Path) -> int:
    """Bytes of page cache that a control group would release under pressure."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)


SYS = Path("/sys")


def numa_nodes(cores: Iterable[int], root: Path = SYS) -> tuple[tuple[int, ...], ...]:
    """Return these cores by NUMA node; () if the kernel does not report it for all of them."""
    managed = set(cores)
    found: dict[int, tuple[int, ...]] = {}
    for folder in root.glob("devices/system/node/node[0-9]*"):
        try:
            found[int(folder.name[4:])] = tuple(
                core for core in cpu_list((folder / "cpulist").read_text()) if core in managed
            )
        except (OSError, ValueError):
            return ()
    if not found or sum(map(len, found.values())) != len(managed):
        return ()
    return tuple(found.get(number, ()) for number in range(max(found) + 1))


def smt_threads(cores: Iterable[int], root: Path = SYS) -> tuple[tuple[int, ...], ...]:
    """Return those of these cores that are hardware threads of one physical core, for each physical core with several;
    a core that the kernel does not describe counts as a physical core of its own."""
    managed, found = set(cores), set[tuple[int, ...]]()
    for core in managed:
        try:
            text = (root / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
            found.add(tuple(one for one in cpu_list(text) if one in managed))
        except (OSError, ValueError):
            continue
    return tuple(sorted(group for group in found if len(group) > 1))


def pci_node(address: str, root: Path = SYS) -> int:
    """The NUMA node of a PCI device (`0000:3b:00.0`, or with a longer domain as drivers have it); -1 if unknown."""
    domain, _, rest = address.strip().lower().partition(":")
    try:
        return int((root / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def cpu_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's notation for a set of cores: `0-3,8`. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)
