"""`distributed_grid.core`, as the guides import it."""

import re
from pathlib import Path

from distributed_grid import core, sync
from distributed_grid.coordinator.client.aio import GridClient


def test_every_name_is_there_and_is_that_of_the_client() -> None:
    assert all(hasattr(core, one) for one in core.__all__)
    assert core.GridClient is GridClient


def test_every_exception_of_the_page_is_there() -> None:
    page = (Path(__file__).parents[1] / "docs/python.md").read_text().partition("Exceptions are ")[2]
    named = re.findall(r"`([A-Z]\w+)`", page)
    assert "BadAnswer" in named and all(hasattr(core, one) and hasattr(sync, one) for one in named)
