from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.placement.capacity import Capacity, Free, FutureCapacity
from distributed_grid.protocol.nodes import GpuOffer
from distributed_grid.protocol.resources import GIB, GpuShare, Grant, Resources
from tests.coordinator.core.scene import facts, offer
from tests.depth import tries


def test_whole_cores_are_taken_in_the_order_of_the_offer() -> None:
    of = facts("n")
    capacity = Capacity.of(of, offer(of, cores=(3, 1, 2)))
    assert capacity.choose(Resources(cpu=2000)) == Grant(cores=(3, 1))


def test_a_fraction_goes_on_the_shared_core_it_fills_best_and_opens_a_new_one_only_if_it_must() -> None:
    of = facts("n")
    capacity = Capacity.of(of, offer(of, cores=(2, 3), shares={0: 600, 1: 300}))
    assert capacity.choose(Resources(cpu=300)) == Grant(shared_core=1, shared_milli=300)
    assert capacity.choose(Resources(cpu=1500)) == Grant(cores=(2,), shared_core=0, shared_milli=500)
    assert capacity.choose(Resources(cpu=700)) == Grant(shared_core=2, shared_milli=700)


def test_two_halves_on_different_cores_are_no_whole_core() -> None:
    of = facts("n")
    capacity = Capacity.of(of, offer(of, cores=(), shares={0: 500, 1: 500}))
    assert capacity.lacks(Resources(cpu=600)) == "cpu"
    assert capacity.fits(Resources(cpu=500))


def test_small_gpus_go_first_and_a_fraction_fills_a_shared_one() -> None:
    of = facts("n", gpus=3)
    uuids = [gpu.uuid for gpu in of.gpus]
    free = (16, 4, 8)
    gpus = tuple(GpuOffer(u, i, "T4", 16 * GIB, free[i] * GIB) for i, u in enumerate(uuids))
    capacity = Capacity.of(of, offer(of, gpus=gpus))
    assert [gpu.uuid for gpu in capacity.choose(Resources(gpu=2000)).gpus] == [uuids[1], uuids[2]]
    capacity.take(Grant(gpus=(GpuShare(uuids[0], 250),)))
    assert capacity.choose(Resources(gpu=500)).gpus == (GpuShare(uuids[0], 500),)
    assert capacity.choose(Resources(gpu=800)).gpus == (GpuShare(uuids[1], 800),)


def test_a_debt_is_remembered_and_is_nobodys_room() -> None:
    of = facts("n")
    capacity = Capacity.of(of, offer(of, cores=(0,), memory=GIB))
    held = Grant(cores=(1,), memory=3 * GIB)
    capacity.take(held)
    assert capacity.left == Resources(cpu=1000)
    capacity.give(held)
    assert capacity.left == Resources(cpu=1000, memory=GIB)


def test_the_end_of_who_holds_what_the_node_has_no_more_makes_no_room() -> None:
    of = facts("n", cores=2, gpus=1)
    capacity = Capacity.of(of, offer(of, cores=(1,), gpus=()))
    kept, gone = Grant(cores=(0,), gpus=(GpuShare("n-gpu0"),)), Grant(cores=(7,), gpus=(GpuShare("n-gpu1"),))
    capacity.cap(of, (kept, gone))
    later = FutureCapacity.of(capacity)
    for room in (later, capacity):  # those of later are the cores of now
        room.give(gone)
        assert room.left == Resources(cpu=1000, memory=of.memory)
        room.give(kept)
        assert room.left == Resources(cpu=2000, memory=of.memory, gpu=1000)
    assert capacity.choose(Resources(cpu=2000, gpu=1000)) == Grant(cores=(1, 0), gpus=(GpuShare("n-gpu0"),))


def test_what_was_refused_a_moment_ago_is_there_and_not_to_be_had() -> None:
    of = facts("n", gpus=2)
    capacity = Capacity.of(of, offer(of), frozenset({"n-gpu0", "2", "memory"}))
    assert capacity.left == Resources(cpu=3000, gpu=1000)
    assert capacity.free_cores() == (0, 1, 3)
    assert capacity.choose(Resources(gpu=1000)).gpus == (GpuShare("n-gpu1"),)


def test_an_offer_of_what_the_node_has_not_got_makes_no_room() -> None:
    of = facts("n", cores=1, gpus=0)
    gpus = (GpuOffer("nobodys", 0, "T4", GIB, GIB),)
    assert Capacity.of(of, offer(of, cores=(0, 7), memory=1 << 50, gpus=gpus)).left == Resources(1000, 8 * GIB, 0)


GRANTS = st.lists(
    st.builds(
        Resources,
        cpu=st.integers(0, 30).map(lambda tenth: tenth * 100),
        memory=st.integers(0, 3).map(lambda gib: gib * GIB),
        gpu=st.sampled_from([0, 0, 10, 500, 1000, 2000]),
    ),
    max_size=20,
)


@given(GRANTS, st.randoms(use_true_random=False))
def test_taking_and_giving_back_in_any_order_comes_out_even(wanted: list[Resources], rng: object) -> None:
    of = facts("n", cores=6, gpus=3)
    capacity, whole = Capacity.of(of, offer(of)), Capacity.of(of, offer(of))
    held = []
    for one in wanted:
        if capacity.fits(one):
            grant = capacity.choose(one)
            assert grant.resources == one
            capacity.take(grant)
            held.append(grant)
        counts = (capacity.whole, capacity.whole_gpus, capacity.parts, capacity.gpu_parts)
        capacity.count()
        assert counts == (capacity.whole, capacity.whole_gpus, capacity.parts, capacity.gpu_parts)
    rng.shuffle(held)  # type: ignore[attr-defined]
    for grant in held:
        capacity.give(grant)
    assert capacity.left == whole.left and capacity.parts == {} and capacity.gpu_parts == {}


SHARES = st.dictionaries(st.integers(0, 5), st.sampled_from([100, 300, 500, 900]), max_size=3)
AMOUNTS = st.builds(
    Resources,
    cpu=st.sampled_from([0, 300, 500, 1000, 1500, 2000, 3000, 5000]),
    memory=st.integers(0, 9).map(lambda gib: gib * GIB),
    gpu=st.sampled_from([0, 0, 500, 1000, 2000]),
)


@settings(max_examples=tries(150, 50))
@given(
    st.integers(0, 6), SHARES, st.integers(-3, 9), st.sets(st.sampled_from(["memory", "2", "n-gpu0"])),
    st.sets(st.integers(0, 5), max_size=1), GRANTS, AMOUNTS, AMOUNTS,
)  # fmt: skip
def test_a_forecast_is_what_the_room_would_be_and_leaves_it_alone(
    cores: int,
    shares: dict[int, int],
    memory: int,
    closed: set[str],
    debts: set[int],
    held: list[Resources],
    first: Resources,
    wanted: Resources,
) -> None:
    of = facts("n", cores=6, memory=9 * GIB, gpus=2)
    parts = {core: milli for core, milli in shares.items() if core >= cores}
    offered, grants = offer(of, cores=of.cores[:cores], shares=parts), list[Grant]()
    capacity, later = Capacity.of(of, offered), Capacity.of(of, offered, frozenset(closed))
    for one in held:
        if capacity.fits(one):
            grants.append(capacity.choose(one))
            capacity.take(grants[-1])
            later.take(grants[-1])
    capacity = later
    capacity.take(Grant(cores=tuple(core for core in debts if capacity.cores.get(core, 0) in (0, 1000))))
    capacity.memory = memory * GIB
    taken = capacity.choose(first) if capacity.fits(first) else Grant()
    before, after, forecast = capacity.copy(), capacity.copy(), FutureCapacity.of(capacity)
    for grant in grants[::2]:
        after.give(grant)
        forecast.give(grant)
    after.take(taken)
    forecast.take(taken)
    for name in Free.__struct_fields__:
        assert getattr(forecast, name) == getattr(after, name), name
    assert forecast.fits(wanted) == after.fits(wanted)
    assert capacity == before
