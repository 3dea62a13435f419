"""Whether a grid shows that a promise is broken."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from distributed_grid.simulator import run, world

Patch = Callable[[Any, str, Any], None]
WAITED = 240.0
"""Seconds after which a grid here does not recover any more. They are fewer than elsewhere, since one that is stuck
simulates nothing but time that passes; that a grid takes as long without the breach is looked at."""


def shown(breach: Callable[[Patch], None], seeds: Iterable[tuple[int, Collection[str]]]) -> str:
    """What the first of these grids shows that shows the breach; empty: none does."""
    for seed, without in seeds:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world, "RECOVERY_SECONDS", WAITED)
            with pytest.MonkeyPatch.context() as broken:
                breach(broken.setattr)
                found = run(seed, without=without)
            if found.what and (found.seconds <= WAITED or not run(seed, without=without).what):
                return f"{breach.__name__}: {seed}: {found.about}: {found.what}"
    return ""
