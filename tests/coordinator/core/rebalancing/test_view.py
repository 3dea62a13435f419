"""Amounts in a view: what is beyond a headroom, and for how many tasks a raylet has room."""

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.rebalancing.view import room_for, tasks_in, weight
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.coordinator.core.rebalancing.world import source

EACH = st.builds(
    Resources,
    st.sampled_from([0, 100, 250, 1000, 1500, 4000]),
    st.sampled_from([0, GIB, 5 * GIB]),
    st.sampled_from([0, 250, 300, 500, 1000, 2000]),
).filter(bool)
ROOM = st.builds(
    lambda cpu, memory, gpu: Resources(cpu * MILLI, memory * GIB, gpu * MILLI),
    st.integers(0, 20),
    st.integers(0, 40),
    st.integers(0, 6),
)


def test_headroom_is_kept_of_cores_and_memory_and_of_gpus_as_whole_ones() -> None:
    node = source("lab1", cores=10, gpus=4, memory=100)
    assert node.excess(0.2) == Resources(8 * MILLI, 80 * GIB, 4 * MILLI)
    assert node.excess(0.25) == Resources(7 * MILLI, 75 * GIB, 3 * MILLI)


def test_a_task_with_a_part_of_a_gpu_has_it_of_one_device() -> None:
    assert room_for(Resources(gpu=300), 4) == Resources(2 * MILLI, 0, 2 * MILLI)  # three on each
    assert tasks_in(Resources(gpu=300), Resources(8 * MILLI, 0, 2 * MILLI), 100) == 6


def test_a_raylet_has_a_core_at_least_and_what_it_needs_itself_where_memory_is_asked() -> None:
    assert room_for(Resources(cpu=250), 1) == Resources(MILLI)
    assert room_for(Resources(memory=GIB), 2) == Resources(MILLI, 2 * GIB + (512 << 20))


@given(EACH, ROOM, st.integers(1, 30))
def test_what_is_said_to_have_room_for_tasks_is_enough_and_for_one_more_too_little(
    each: Resources, capacity: Resources, most: int
) -> None:
    tasks = tasks_in(each, capacity, most)
    assert 0 <= tasks <= most
    assert not tasks or room_for(each, tasks).fits(capacity)
    assert tasks == most or not room_for(each, tasks + 1).fits(capacity)


@given(EACH)
def test_an_amount_weighs_a_core_at_least(each: Resources) -> None:
    assert weight(each) >= 1.0
