"""The checks of `grid doctor` that node and coordinator share (certificates, disks, clocks, processes), and the form of
their results."""

import ctypes
import json
import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from distributed_grid.identity.credentials import AUTHORITY, check_private
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.resources import format_bytes

DAY = 86400.0
LOW_DISK, CRITICAL_DISK = 1 << 30, 100 << 20
"""Bytes of disk below which a service is warned of, and does not go on for long."""
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


class Level(StrEnum):
    """The severity. An error keeps the grid from working here; with a warning it works, and less well."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One result of a check: what it is, why that is so or matters, and what to do about it."""

    check: str
    level: Level
    what: str
    why: str = ""
    remedy: str = ""


def failed(check: str, error: GridError) -> Finding:
    """Return an error as a finding."""
    return Finding(check, Level.ERROR, error.what, error.why, error.hint)


def certificate(check: str, folder: Path, remedy: str) -> Finding:
    """Whether the identity in this folder holds, and for how long."""
    from distributed_grid.identity.keys import certificate_in

    try:
        return _holds(check, certificate_in(folder), remedy)
    except GridError as error:
        return failed(check, error)


def authority(folder: Path) -> Iterator[Finding]:
    """The same of an authority's own certificate, and whether its key is its own."""
    from cryptography import x509

    try:
        check_private(folder / "ca.key")
        found = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        yield _holds("authority", found, "found the grid anew: all its members join again")
    except GridError as error:
        yield failed("authority", error)
    except (OSError, ValueError) as error:
        yield Finding("authority", Level.ERROR, f"{folder / AUTHORITY} cannot be read", str(error))


def _holds(check: str, found: object, remedy: str) -> Finding:
    from cryptography.x509 import Certificate

    from distributed_grid.identity.keys import validity_of

    assert isinstance(found, Certificate)  # noqa: S101
    life, now = validity_of(found), time.time()
    if now < life.begin:
        return Finding(check, Level.ERROR, "the certificate does not hold yet", "this machine's clock is behind", CLOCK)
    if now > life.end:
        return Finding(check, Level.ERROR, f"the certificate expired {(now - life.end) / DAY:.1f} days ago", "", remedy)
    left = f"the certificate holds for {(life.end - now) / DAY:.1f} more days"
    if now > life.at(0.9):
        return Finding(check, Level.WARNING, left, "it should have been renewed by now", remedy)
    return Finding(check, Level.OK, left)


def disk(check: str, path: Path) -> Finding:
    """Report the free space of the filesystem of this path."""
    while not path.exists():
        path = path.parent
    seen = os.statvfs(path)
    free, total = seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize
    what = f"{format_bytes(free)} of {format_bytes(total)} are free for {path}"
    if not total:
        return Finding(check, Level.OK, f"its filesystem does not say how much is free for {path}")
    if free < LOW_DISK:
        level = Level.ERROR if free < CRITICAL_DISK else Level.WARNING
        return Finding(check, level, what, "a full disk takes no new jobs", f"du -xh {path} | sort -h | tail")
    return Finding(check, Level.OK, what)


CLOCK = "timedatectl set-ntp true"


def clock() -> Finding:
    """Whether something keeps this machine's clock right."""
    if ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)) == _TIME_ERROR:
        why = "certificates and `--begin` go by the clock; jobs and leases do not"
        return Finding("clock", Level.WARNING, "the kernel says that the clock is not synchronised", why, CLOCK)
    return Finding("clock", Level.OK, "the clock is synchronised")


def running_service(path: Path) -> dict[str, object] | None:
    """Return what a running service wrote down of itself; None if none runs, according to this file."""
    try:
        said: dict[str, object] = json.loads(path.read_text())
        start = int(Path(f"/proc/{said['pid']}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return said if said.get("start") == start else None
