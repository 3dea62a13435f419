"""The use of real machines from the traces (see docs/policy-lab.md), as one value for each five minutes; NaN where it
is missing. They are data of others and not in this repository."""

import argparse
import csv
import importlib
import lzma
import math
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

STEP = 300
MHZ = 2600.0
"""What a virtual core of bitbrains is provisioned with, by its full trace."""
GPUS = 8
"""On Helios a cluster is idle where so many GPUs are: there is room for another machine's worth of work."""


class Series(NamedTuple):
    """The use of one machine, as a part of it, from the moment `begin` (s since the epoch) on. Where the trace says by
    itself when the machine is idle, its use is 0 or 1."""

    name: str
    begin: float
    values: list[float]


def folder(name: str, about: str | None) -> Path | None:
    """Return the folder of the traces; None, with a message, if they do not exist."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    found = parser.parse_args().traces
    if found is None or not Path(found).is_dir():
        print(f"{name}: the traces are not here: name their folder with --traces or $GRID_TRACES")
        return None
    return Path(found)


def on_grid(samples: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
    """Samples as the means of five minutes each, and when these begin."""
    begin = math.floor(min(at for at, _ in samples) / STEP)
    sums: dict[int, tuple[float, int]] = {}
    for at, value in samples:
        slot = math.floor(at / STEP) - begin
        total, count = sums.get(slot, (0.0, 0))
        sums[slot] = total + value, count + 1
    values = [math.nan] * (max(sums) + 1)
    for slot, (total, count) in sums.items():
        values[slot] = total / count
    return begin * float(STEP), values


def bitbrains(traces: Path) -> list[Series]:
    """50 virtual machines over a month (GWA-T-12). Raises ImportError without pyarrow."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    rows: dict[str, list[tuple[float, float]]] = {}
    for row in parquet.read_table(traces / "bitbrains-small.parquet").to_pylist():
        use = min(1.0, row["cpu_usage"] / (MHZ * max(1, row["cpu_count"])))
        at = row["timestamp"].timestamp()
        for part in range(max(1, round(row["duration"] / 1000 / STEP))):  # the row stands for what was before it
            rows.setdefault(row["id"], []).append((at - STEP * part, use))
    return [Series(name, *on_grid(samples)) for name, samples in sorted(rows.items())]


def bitbrains_alone(traces: Path) -> list[Series]:
    """Return one of these machines, of which there is a table as text."""
    path = traces / "bitbrains.csv.xz"
    with lzma.open(path, "rt") as file:
        rows = csv.reader(file, delimiter=";", skipinitialspace=True)
        header = [name.strip() for name in next(rows)]
        at, use = header.index("Timestamp [ms]"), header.index("CPU usage [%]")  # these are seconds
        samples = [(float(row[at]), min(1.0, float(row[use]) / 100)) for row in rows]
    return [Series("bitbrains", *on_grid(samples))]


def planetlab(traces: Path) -> list[Series]:
    """The hosts that are there on at least eight of the ten days; days between are missing."""
    days: dict[str, dict[float, list[float]]] = {}
    with tarfile.open(traces / "planetlab.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                day, name = member.name.split("/")[-2:]
                begin = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).timestamp()
                host = days.setdefault(name, {})
                host[begin] = [int(line) / 100 for line in file.read().split()]
    found = []
    for name, seen in sorted(days.items()):
        if len(seen) >= 8:
            samples = [(begin + STEP * at, one) for begin, day in sorted(seen.items()) for at, one in enumerate(day)]
            found.append(Series(name, *on_grid(samples)))
    return found


def helios(traces: Path, idle: bool = False) -> list[Series]:
    """Eight virtual clusters over a month: the part of their GPUs in use; or, for `idle`, 0 where eight GPUs are free,
    else 1."""
    found = []
    with tarfile.open(traces / "helios_earth_vc.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                samples = list(_helios(csv.DictReader(TextIOWrapper(file)), idle))[:: 5 if idle else 1]
                begin, values = on_grid(samples)
                found.append(Series(Path(member.name).stem, begin, values))
    return found


def _helios(rows: Iterable[dict[str, str]], idle: bool) -> Iterator[tuple[float, float]]:
    for row in rows:
        at = datetime.strptime(row["time"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        total, free = max(1, int(float(row["total_gpu_num"]))), int(float(row["idle_gpu_num"]))
        yield at, float(free < GPUS) if idle else min(1.0, max(0.0, 1 - free / total))


def read(traces: Path, idle: bool = False) -> Iterator[tuple[str, list[Series]]]:
    """Yield each trace by its name; one that cannot be read is reported and left out. `bitbrains` needs pyarrow; one
    machine of it does not."""
    readers: dict[str, Callable[[], list[Series]]] = {
        "bitbrains": lambda: bitbrains(traces),
        "bitbrains, one machine": lambda: bitbrains_alone(traces),
        "PlanetLab": lambda: planetlab(traces),
        "Helios": lambda: helios(traces, idle),
    }
    for name, reader in readers.items():
        try:
            yield name, reader()
        except (ImportError, OSError, tarfile.TarError) as error:
            print(f"{name} cannot be read: {error}")
