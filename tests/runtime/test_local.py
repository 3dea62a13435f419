"""The coordinator's Unix socket: which addresses mean one, and why it cannot be reached."""

import os
import socket
from pathlib import Path

import pytest

from distributed_grid.runtime import local, unix


def test_addresses_that_mean_a_socket() -> None:
    assert local.socket_path("unix:///run/x") == Path("/run/x") == local.socket_path("/run/x")
    assert local.socket_path("./x") == Path("x")
    assert local.socket_path("ws://host:1") is None


def test_a_listening_socket_is_reached(tmp_path: Path) -> None:
    path = tmp_path / local.SOCKET
    with unix.bound(path) as listening:
        listening.listen()
        assert local.is_socket(path)
        with local.dial(path, 5.0) as made:
            assert made.family is socket.AF_UNIX


def test_why_a_socket_is_not_reached(tmp_path: Path) -> None:
    with pytest.raises(local.NoSocket) as none:
        local.dial(tmp_path / "none", 1.0)
    assert none.value.why == "there is no such socket"
    (tmp_path / "file").touch()
    with pytest.raises(local.NoSocket) as other:
        local.dial(tmp_path / "file", 1.0)
    assert other.value.why == "that file is not a socket" and not local.is_socket(tmp_path / "file")
    unix.bound(tmp_path / "left").close()
    with pytest.raises(local.NoSocket) as left:
        local.dial(tmp_path / "left", 1.0)
    assert "no process listens on it" in left.value.why
    assert os.path.exists(tmp_path / "left")
