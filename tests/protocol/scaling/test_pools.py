"""What pools may be called, and what a shape says of itself."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import (
    NAME_CHARS,
    Pool,
    Scaling,
    Shape,
    check_pool_name,
    is_machine_name,
    machine_name,
)


@pytest.mark.parametrize("name", ["burst", "a", "hpc-2", "x" * NAME_CHARS])
def test_names_that_fit_wherever_a_machine_is_named(name: str) -> None:
    assert check_pool_name(name) == name


@pytest.mark.parametrize("name", ["", "Burst", "2x", "a_b", "a-", "-a", "a.b", "ä", "x" * (NAME_CHARS + 1)])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BadValue, match="a pool cannot be called"):
        check_pool_name(name)


def test_machines_are_told_from_others_by_their_names() -> None:
    name = machine_name("hpc-2", 31, 10)
    assert name == "hpc-2-1f-a" and is_machine_name(name) and is_machine_name(name, "hpc-2")
    assert not is_machine_name(name, "hpc") and not is_machine_name("web-1") and not is_machine_name("Web-1-1")


def test_a_shape_says_its_type_and_size() -> None:
    assert str(Shape(type="c5", resources=Resources(4000, 8 * GIB))) == "c5 (4 cpu, 8G memory)"


def test_pools_and_shapes_are_found_by_name() -> None:
    pool = Pool(name="a", provider="process", shapes=(Shape(type="x"), Shape(type="y")))
    scaling = Scaling(pools=(pool,))
    assert scaling.pool("a") is pool and scaling.pool("b") is None
    assert pool.shape("y") == Shape(type="y") and pool.shape("z") is None
