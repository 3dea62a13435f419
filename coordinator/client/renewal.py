"""A program's certificate, renewed as the `grid` command renews it: one that runs for months is let in again."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed_grid.identity.member import identity_for
from distributed_grid.identity.tls import has_identity
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import NewCertificate, WantCertificate, Welcome

LOOK_EVERY = 3600.0
"""Seconds between looks at the clock at the latest: it may be set, and the machine may sleep."""
AGAIN = 60.0
"""Seconds, twice at most, until a renewal that failed is tried again."""


async def keep_renewed(
    url: str, welcome: Welcome | None, number: Callable[[], int], ask: Callable[[WantCertificate], Awaitable[Any]]
) -> None:
    """Renew the certificate with which this grid is spoken to whenever most of its life is over, for as long as it is
    connected: the coordinator ends a connection with the certificate that it was made or renewed with. What goes wrong
    leaves the old one, and is tried again."""
    folder = identity_for(url) if url.startswith("wss:") else None
    if folder is None or not has_identity(folder):
        return
    at = 0.0
    if welcome is not None and welcome.renew_in:
        at = time.time() + welcome.renew_in
    elif welcome is None or not welcome.renew:
        with suppress(GridError):
            at = await asyncio.to_thread(_renewal_time, folder)
    while True:
        if (left := at - time.time()) > 0:
            await asyncio.sleep(min(left, LOOK_EVERY))
            continue
        at = time.time() + AGAIN * random.uniform(1, 2)  # noqa: S311
        with suppress(GridError):  # nobody waits for it, and what is held goes on
            if await _renew(folder, number(), ask):
                at = await asyncio.to_thread(_renewal_time, folder)


def _renewal_time(folder: Path) -> float:
    from distributed_grid.identity.renewing import renewal_time

    return renewal_time(folder)


async def _renew(folder: Path, number: int, ask: Callable[[WantCertificate], Awaitable[Any]]) -> bool:
    from distributed_grid.identity.renewing import Asked

    asked = await asyncio.to_thread(Asked, folder)
    answer: NewCertificate = await ask(WantCertificate(id=number, request=asked.request))
    if answer.certificate:
        await asyncio.to_thread(asked.keep, answer.certificate)
    return bool(answer.certificate)
