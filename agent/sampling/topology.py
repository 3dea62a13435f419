"""Which cores and GPUs lie together: the NUMA nodes of the machine, as the kernel tells them."""

from collections.abc import Iterable
from pathlib import Path

SYS = Path("/sys")


def numa_nodes(cores: Iterable[int], root: Path = SYS) -> tuple[tuple[int, ...], ...]:
    """Of these cores, those of each NUMA node, by its number; () where the kernel does not tell, or of some only."""
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


def pci_node(address: str, root: Path = SYS) -> int:
    """The NUMA node that a PCI device (`0000:3b:00.0`, or with a longer domain as drivers have it) is attached to; -1
    where nobody knows."""
    domain, _, rest = address.strip().lower().partition(":")
    try:
        return int((root / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def cpu_list(text: str) -> tuple[int, ...]:
    """The kernel's way of writing a set of cores: `0-3,8`. Raises ValueError."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)
