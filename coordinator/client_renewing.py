"""A program's certificate, renewed as the `grid` command renews it: one that runs for months is let in again."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from distributed_grid.member import identity_for
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import NewCertificate, WantCertificate
from distributed_grid.tls import has_identity

LOOK_EVERY = 3600.0
"""Seconds between two looks at whether it is time, and between two tries."""


async def keep_renewed(
    url: str, due: bool, number: Callable[[], int], ask: Callable[[WantCertificate], Awaitable[Any]]
) -> None:
    """Renew the certificate with which this grid is spoken to whenever most of its life is over, for as long as it is
    connected. `due`: the coordinator said that it is now. What goes wrong leaves the old one, and is tried again."""
    folder = identity_for(url) if url.startswith("wss:") else None
    while folder is not None and has_identity(folder):
        try:
            if due or time.time() >= await asyncio.to_thread(_renewal_time, folder):
                due = False
                await _renew(folder, number(), ask)
        except GridError:
            pass  # nobody waits for it, and what is held goes on
        await asyncio.sleep(LOOK_EVERY)


def _renewal_time(folder: Path) -> float:
    from distributed_grid.renewing import renewal_time

    return renewal_time(folder)


async def _renew(folder: Path, number: int, ask: Callable[[WantCertificate], Awaitable[Any]]) -> None:
    from distributed_grid.renewing import Asked

    asked = await asyncio.to_thread(Asked, folder)
    answer: NewCertificate = await ask(WantCertificate(id=number, request=asked.request))
    if answer.certificate:
        await asyncio.to_thread(asked.keep, answer.certificate)
