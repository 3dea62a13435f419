"""Unix sockets where the path is too long for one, for our user alone, and nothing left open where it fails."""

import gc
import os
import stat
from pathlib import Path

import pytest

from distributed_grid.runtime.unix import bound, connected


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_socket_is_bound_and_reached_where_its_path_is_longer_than_one_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 120) / "our.sock"
    path.parent.mkdir()
    before = os.umask(0)
    try:
        with bound(path) as ours:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            ours.listen(1)
            with connected(path, 5.0) as other:
                assert other.gettimeout() == 5.0
                here, _ = ours.accept()
                with here:
                    other.sendall(b"hello")
                    assert here.recv(5) == b"hello"
        assert os.umask(0) == 0, "the mask of the process is as it was"
    finally:
        os.umask(before)


def test_where_it_fails_nothing_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "our.sock"
    gc.collect()  # what other tests left is closed now, not meanwhile
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        connected(path, 1.0)
    path.touch()
    with pytest.raises(OSError, match="in use"):
        bound(path)
    with pytest.raises(ConnectionRefusedError):
        connected(path, 1.0)
    with pytest.raises(FileNotFoundError):
        bound(tmp_path / "none" / "our.sock")
    assert descriptors() == before
