from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.index import FEW_ENDS, Index, Order
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, offer

ROOMS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([0, 100, 300, 500, 900]),
        st.integers(0, 4),
        st.integers(0, 3),
        st.sampled_from([0.5, 1.0, 9.0]),
    ),
    max_size=12,
)
WANTED = st.builds(
    Resources,
    cpu=st.sampled_from([0, 300, 500, 1000, 1500, 2900, 4000]),
    memory=st.integers(0, 4).map(lambda gib: gib * GIB),
    gpu=st.sampled_from([0, 250, 500, 1000, 3000]),
)


def capacity(cores: int, part: int, memory: int, gpus: int) -> Capacity:
    of = facts("n", cores=5, memory=8 * GIB, gpus=3)
    shares = {4: part} if part else {}
    return Capacity.of(
        of, offer(of, cores=of.cores[:cores], shares=shares, memory=memory * GIB, gpus=offer(of).gpus[:gpus])
    )


@given(ROOMS, WANTED)
def test_a_node_is_found_exactly_if_one_fits(
    capacities: list[tuple[int, int, int, int, float]], wanted: Resources
) -> None:
    index = Index()
    made = {f"n{i}": capacity(*sizes) for i, (*sizes, _) in enumerate(capacities)}
    for (name, one), (*_, priority) in zip(made.items(), capacities, strict=True):
        index.put(name, priority, one)
    fitting = {name for name, one in made.items() if one.fits(wanted)}
    assert set(index.candidates(wanted, 100)) == fitting
    assert bool(index.candidates(wanted, 1)) == bool(fitting)
    for name in made:
        index.drop(name)
    assert not index.candidates(Resources(), 100) and len(index) == 0


def test_the_tightest_fit_comes_first_and_nodes_with_idle_gpus_last() -> None:
    index = Index()
    index.put("gpus", 1.0, capacity(2, 0, 2, 2))
    index.put("large", 1.0, capacity(4, 0, 4, 0))
    index.put("tight", 1.0, capacity(2, 0, 3, 0))
    assert index.candidates(Resources(cpu=2000), 3) == ["tight", "large", "gpus"]
    assert index.candidates(Resources(cpu=2000), 1) == ["tight"]


def test_of_each_bucket_both_ends_are_found_and_more_where_there_are_few() -> None:
    index = Index()
    for cores in range(5):
        index.put(f"one{cores}", 1.0, capacity(cores, 0, 4, 1))
        index.put(f"two{cores}", 1.0, capacity(cores, 0, 4, 2))
    wanted = Resources(cpu=1000, gpu=1000)
    assert index.candidates(wanted, 16, None, Order.ENDS) == ["one1", "one4", "two1", "two4"]
    assert index.candidates(wanted, 3, None, Order.ENDS) == ["one1", "one4", "two1", "one2", "one3"]
    assert index.candidates(wanted, 16, "one3".__eq__, Order.ENDS) == ["one3"]
    two = Resources(cpu=1000, gpu=2000)
    assert index.candidates(two, 16, None, Order.ENDS) == ["two1", "two4", "two2", "two3"]


@given(ROOMS, WANTED)
def test_the_ends_of_buckets_are_nodes_that_fit(
    capacities: list[tuple[int, int, int, int, float]], wanted: Resources
) -> None:
    index = Index()
    made = {f"n{i}": capacity(*sizes) for i, (*sizes, _) in enumerate(capacities)}
    for name, one in made.items():
        index.put(name, 1.0, one)
    fitting = {name for name, one in made.items() if one.fits(wanted)}
    found = index.candidates(wanted, 16, None, Order.ENDS)
    assert set(found) <= fitting and len(set(found)) == len(found) >= min(FEW_ENDS, len(fitting))


def test_a_node_moves_when_its_room_changes() -> None:
    index = Index()
    index.put("n", 1.0, capacity(4, 0, 4, 0))
    index.put("n", 1.0, capacity(1, 0, 4, 0))
    assert index.candidates(Resources(cpu=2000), 1) == []
    assert index.candidates(Resources(cpu=1000), 1) == ["n"]
    assert len(index) == 1
