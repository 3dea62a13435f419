"""What the coordinator orders says what it means where it is silent."""

from distributed_grid.protocol.messages import Stop


def test_an_allocation_is_stopped_with_grace_and_as_cancelled_unless_it_is_said_otherwise() -> None:
    stop = Stop(allocation="j-1.1")
    assert (stop.grace, stop.cause) == (5.0, "cancelled")
