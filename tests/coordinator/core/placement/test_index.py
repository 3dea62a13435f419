from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.placement.index import Index
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


def room(cores: int, part: int, memory: int, gpus: int) -> Room:
    of = facts("n", cores=5, memory=8 * GIB, gpus=3)
    shares = {4: part} if part else {}
    return Room.of(
        of, offer(of, cores=of.cores[:cores], shares=shares, memory=memory * GIB, gpus=offer(of).gpus[:gpus])
    )


@given(ROOMS, WANTED)
def test_a_node_is_found_exactly_if_one_fits(rooms: list[tuple[int, int, int, int, float]], wanted: Resources) -> None:
    index = Index()
    made = {f"n{i}": room(*sizes) for i, (*sizes, _) in enumerate(rooms)}
    for (name, one), (*_, priority) in zip(made.items(), rooms, strict=True):
        index.put(name, priority, one)
    fitting = {name for name, one in made.items() if one.fits(wanted)}
    assert set(index.candidates(wanted, 100)) == fitting
    assert bool(index.candidates(wanted, 1)) == bool(fitting)
    for name in made:
        index.drop(name)
    assert not index.candidates(Resources(), 100) and len(index) == 0


def test_the_tightest_fit_comes_first_and_nodes_with_idle_gpus_last() -> None:
    index = Index()
    index.put("gpus", 1.0, room(2, 0, 2, 2))
    index.put("large", 1.0, room(4, 0, 4, 0))
    index.put("tight", 1.0, room(2, 0, 3, 0))
    assert index.candidates(Resources(cpu=2000), 3) == ["tight", "large", "gpus"]
    assert index.candidates(Resources(cpu=2000), 1) == ["tight"]


def test_a_node_moves_when_its_room_changes() -> None:
    index = Index()
    index.put("n", 1.0, room(4, 0, 4, 0))
    index.put("n", 1.0, room(1, 0, 4, 0))
    assert index.candidates(Resources(cpu=2000), 1) == []
    assert index.candidates(Resources(cpu=1000), 1) == ["n"]
    assert len(index) == 1
