"""Whom a job waits for, as people write it."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import After, Dependency, parse_after


def test_jobs_are_read_with_what_has_to_become_of_them() -> None:
    assert parse_after(["a"], ["b", "b"], ["c"]) == {
        "after": (Dependency("a", After.STARTED), Dependency("b", After.OK), Dependency("c", After.ENDED))
    }
    assert parse_after() == {}
    with pytest.raises(BadValue, match="no name"):
        parse_after([" "])
    with pytest.raises(BadValue, match="1001 others"):
        parse_after(map(str, range(1001)))
