"""The import path of the guide leads to the names of the client and of the protocol."""

from distributed_grid.orchestration import resource_sharing


def test_every_name_of_the_guide_is_there() -> None:
    assert resource_sharing.__all__ and all(hasattr(resource_sharing, one) for one in resource_sharing.__all__)
