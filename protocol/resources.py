"""Amounts of resources, in whole units and never in floats: milli-cores, bytes, milli-GPUs; and the bounds of all
numbers and strings on the wire, which the decoder checks."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.text import suggestion

MOST_COUNT = 1 << 60
MOST_NUMBER = (1 << 53) - 1
LATEST = 253_370_764_800.0
"""The first second of the year 9999, in seconds since the epoch: the latest moment that can be asked for."""

MOST_FINITE = 1e15
Finite = Annotated[float, msgspec.Meta(ge=-MOST_FINITE, le=MOST_FINITE)]
"""A measurement or a moment."""
MOST_SPAN = 1e10
Span = Annotated[float, msgspec.Meta(ge=0, le=MOST_SPAN)]
"""Seconds, not below zero: at most three hundred years."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNT)]
"""Bytes, or things that are counted."""
Code = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""An exit code, the number of a signal, or a number that may be -1 for none."""
Number = Annotated[int, msgspec.Meta(ge=0, le=MOST_NUMBER)]
"""The number of a request, of an offer or of a life."""
Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 20) - 1)]
"""The number of a core or a device."""
Place = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 20) - 1)]
"""The number of a core or a device; -1: none."""
Thousandths = Annotated[int, msgspec.Meta(ge=0, le=1000)]
"""A part of one core or device."""
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A part of a whole."""
Pid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
"""A process."""
Word = Annotated[str, msgspec.Meta(max_length=1024)]
"""An id, a name, a version, an address."""
Text = Annotated[str, msgspec.Meta(max_length=32_768)]
"""A sentence or a path."""


MILLI = 1000
MIB = 1 << 20
GIB = 1 << 30


class ResourceType(StrEnum):
    """The three kinds of resources that are lent."""

    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"


class Resources(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An amount: `cpu` in milli-cores, `memory` in bytes, `gpu` in milli-GPUs; never negative."""

    cpu: Count = 0
    memory: Count = 0
    gpu: Count = 0

    def __post_init__(self) -> None:
        if self.cpu < 0 or self.memory < 0 or self.gpu < 0:
            raise ValueError(f"an amount of resources cannot be negative: {self}")

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cpu + other.cpu, self.memory + other.memory, self.gpu + other.gpu)

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(self.cpu - other.cpu, self.memory - other.memory, self.gpu - other.gpu)

    def __bool__(self) -> bool:
        return bool(self.cpu or self.memory or self.gpu)

    def fits(self, room: "Resources") -> bool:
        """Whether this amount could be taken out of `room`."""
        return self.cpu <= room.cpu and self.memory <= room.memory and self.gpu <= room.gpu

    def __str__(self) -> str:
        parts = []
        if self.gpu:
            parts.append(f"{format_milli(self.gpu)} gpu")
        if self.cpu:
            parts.append(f"{format_milli(self.cpu)} cpu")
        if self.memory:
            parts.append(f"{format_bytes(self.memory)} memory")
        return ", ".join(parts) or "nothing"


NOTHING = Resources()


def capped(sum: Resources) -> Resources:
    """A sum over many nodes or jobs, as far as it can be sent."""
    return Resources(min(sum.cpu, MOST_COUNT), min(sum.memory, MOST_COUNT), min(sum.gpu, MOST_COUNT))


class GpuShare(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A GPU, or a part of one, by its UUID; `milli` is 1000 for the whole device. `memory`: bytes of it that were asked
    for (0: none in particular)."""

    uuid: Word
    milli: Thousandths = MILLI
    memory: Count = 0

    def reserved(self, total: int) -> int:
        """Return the memory (bytes) of a device with `total` bytes that is granted exclusively: all of it for a whole
        device, else what was requested, or the same part of the memory as of the device."""
        if self.milli >= MILLI:
            return total
        return self.memory or total * self.milli // MILLI


class Grant(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Resources with names. Cores in `cores` belong to the holder alone; `shared_core` (-1: none) is shared with other
    fractional holders, of which this one has `shared_milli`; `virtual` cores are numbers without a core behind them.
    `slack`: cores of the allocation `holder` that it leaves unused. They stay the holder's: this one runs on them until
    the holder wants them, and gets `slack_milli` of them at most."""

    cores: tuple[Index, ...] = ()
    shared_core: Place = -1
    shared_milli: Thousandths = 0
    memory: Count = 0
    gpus: tuple[GpuShare, ...] = ()
    virtual: bool = False
    slack: tuple[Index, ...] = ()
    slack_milli: Count = 0
    holder: Word = ""

    @property
    def resources(self) -> Resources:
        """The same as a plain amount: what is held exclusively."""
        cpu = len(self.cores) * MILLI + self.shared_milli
        return Resources(cpu, self.memory, sum(gpu.milli for gpu in self.gpus) if self.gpus else 0)

    @property
    def charged(self) -> Resources:
        """The amount that counts in the share of its user: slack by half."""
        if not self.slack:
            return self.resources
        return self.resources + Resources(cpu=self.slack_milli // 2)

    @property
    def affinity(self) -> tuple[int, ...]:
        """The cores a process may run on, ascending: what `taskset` would be told. Empty: no pinning."""
        if self.virtual:
            return ()
        if self.slack:
            return tuple(sorted(self.slack))
        return tuple(sorted((*self.cores, self.shared_core) if self.shared_core >= 0 else self.cores))


def _decimal(text: str, what: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise BadValue(f"{what} {text!r} is not a number", hint="give a positive number such as 1, 0.5 or 4") from None
    if not number.is_finite() or number <= 0:
        raise BadValue(
            f"{what} {text} is not a positive amount",
            why="an amount must be finite and greater than zero",
            hint="give a positive number such as 1, 0.5 or 4",
        )
    return number


_UNITS = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}
_BYTES = r"^\s*([0-9.eE+\-]+|nan|inf|-inf)\s*([KMGT]?)(i?B)?\s*$"
MOST_CPU = 1_000_000 * MILLI
MOST_MEMORY = 1 << 60
MOST_GPU = 100_000 * MILLI


def parse_cpu(text: str) -> int:
    """Cores as a person writes them (`2`, `0.5`) in milli-cores; steps of 0.001. Raises BadValue."""
    return _milli(text, "cpu amount", step=1, most=MOST_CPU)


def parse_gpu(text: str) -> int:
    """GPUs as a person writes them (`1`, `0.25`) in milli-GPUs; steps of 0.01, above 1 only whole. Raises BadValue."""
    milli = _milli(text, "gpu amount", step=10, most=MOST_GPU)
    if milli > MILLI and milli % MILLI:
        raise BadValue(
            f"gpu amount {text} cannot be granted",
            why="a part of a GPU comes from one device, so above 1 only whole GPUs can be asked for",
            hint=f"ask for {math.ceil(milli / MILLI)}",
        )
    return milli


def _milli(text: str, what: str, step: int, most: int) -> int:
    number = _decimal(text, what)
    if number > most // MILLI:
        raise BadValue(f"{what} {text} is too large", why=f"more than {most // MILLI} cannot be asked for")
    scaled = number * MILLI
    milli = int(scaled)
    if scaled != milli or milli % step:
        raise BadValue(f"{what} {text} is too fine", why=f"amounts go in steps of {step / MILLI:g}")
    return milli


def parse_memory(text: str, bare: int = 1) -> int:
    """A size as a person writes it (`4G`, `512M`, `1.5GiB`) in bytes; units are powers of 1024.

    A number without a unit counts in `bare` bytes (the seeds' `-t memory -a 4` means GB, so there it is GIB).
    Raises BadValue.
    """
    match = re.match(_BYTES, text, re.IGNORECASE)
    if not match:
        raise BadValue(f"memory amount {text!r} is not a size", hint="give a size such as 4G, 512M or 1.5G")
    number = _decimal(match[1], "memory amount")
    unit = _UNITS[match[2].upper()] if match[2] or match[3] else bare
    if number > MOST_MEMORY or number * unit > MOST_MEMORY:
        raise BadValue(f"memory amount {text} is too large", why="more than 1 EiB cannot be asked for")
    return max(1, int(number * unit))


def parse_kind(text: str) -> ResourceType:
    """A kind as a person writes it. Raises BadValue."""
    try:
        return ResourceType(text.strip().lower())
    except (ValueError, AttributeError):
        hint = f"{suggestion(str(text).lower(), list(ResourceType))}there are cpu, memory and gpu"
        raise BadValue(f"unknown resource type {text!r}", hint=hint) from None


def parse_amount(kind: ResourceType, text: str) -> Resources:
    """The seeds' pair of type and amount: cores, GB or GPUs. Raises BadValue."""
    match kind:
        case ResourceType.CPU:
            return Resources(cpu=parse_cpu(text))
        case ResourceType.MEMORY:
            return Resources(memory=parse_memory(text, bare=GIB))
        case ResourceType.GPU:
            return Resources(gpu=parse_gpu(text))


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: 0-3,6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def format_milli(milli: int) -> str:
    """Milli-units for people: 1500 is `1.5`, 2000 is `2`."""
    return f"{milli / MILLI:g}"


def format_bytes(count: int) -> str:
    """Bytes for people, in powers of 1024 with one decimal at most: `512M`, `1.5G`."""
    size = float(count)
    for unit in ("B", "K", "M", "G"):
        if size < 1024:
            return f"{size:.1f}".removesuffix(".0") + unit
        size /= 1024
    return f"{size:.1f}".removesuffix(".0") + "T"
