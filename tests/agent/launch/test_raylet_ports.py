"""Whether a gang's port is free on this machine."""

import socket

import pytest

from distributed_grid.agent.launch.raylet import port_is_free


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::1"])  # noqa: S104
def test_a_port_is_taken_while_somebody_listens_there_and_free_again_after(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"this machine has no {address}")
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_is_free(port)
    assert port_is_free(port)
