"""`distributed_grid.core`, as the guides import it."""

from distributed_grid import core
from distributed_grid.coordinator.client.aio import GridClient


def test_every_name_is_there_and_is_that_of_the_client() -> None:
    assert all(hasattr(core, one) for one in core.__all__)
    assert core.GridClient is GridClient
