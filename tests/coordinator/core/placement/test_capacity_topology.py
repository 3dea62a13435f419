import random

import msgspec

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import GIB, MILLI, Grant, Resources
from tests.coordinator.core.scene import facts, offer

NUMA = ((0, 1, 2, 3), (4, 5, 6, 7))


def node(gpus: tuple[int, ...] = (), numa: tuple[tuple[int, ...], ...] = NUMA) -> NodeFacts:
    """Eight cores on two NUMA nodes, and GPUs on these."""
    of = facts("n", cores=8, gpus=len(gpus))
    placed = tuple(msgspec.structs.replace(gpu, numa=at) for gpu, at in zip(of.gpus, gpus, strict=True))
    return msgspec.structs.replace(of, gpus=placed, numa=numa)


def capacity(of: NodeFacts, cores: tuple[int, ...] = ()) -> Capacity:
    return Capacity.of(of, offer(of, cores=cores) if cores else offer(of))


def grant(of: NodeFacts, cpu: int, gpu: int = 0, cores: tuple[int, ...] = ()) -> Grant:
    return capacity(of, cores).choose(Resources(cpu * MILLI, GIB, gpu * MILLI))


def test_cores_come_from_one_numa_node_that_has_just_enough() -> None:
    assert grant(node(), 3, cores=(0, 1, 4, 2, 5, 6, 7)).cores == (0, 1, 2)
    assert grant(node(), 3, cores=(0, 4, 1, 5, 6, 7)).cores == (4, 5, 6)


def test_where_no_numa_node_has_enough_they_come_from_as_few_as_can_be() -> None:
    assert set(grant(node(), 6).cores) >= {0, 1, 2, 3}
    assert len(grant(node(), 6).cores) == 6


def test_cores_are_near_the_gpu_they_work_with() -> None:
    assert set(grant(node(gpus=(1, 0)), 2, 1).cores) <= {4, 5, 6, 7}
    assert set(grant(node(gpus=(1,)), 6, 1).cores) >= {4, 5, 6, 7}


def test_several_gpus_come_from_one_numa_node_and_of_two_that_with_cores() -> None:
    of = node(gpus=(0, 1, 0, 1))
    both = grant(of, 2, 2)
    assert [gpu.uuid for gpu in both.gpus] == ["n-gpu0", "n-gpu2"] and set(both.cores) <= set(NUMA[0])
    beside = grant(of, 2, 2, cores=(3, 4, 5, 6, 7))
    assert [gpu.uuid for gpu in beside.gpus] == ["n-gpu1", "n-gpu3"] and set(beside.cores) <= set(NUMA[1])
    assert len(grant(of, 1, 3).gpus) == 3


def test_a_fraction_beside_whole_cores_is_of_the_same_numa_node() -> None:
    of = node()
    one = capacity(of, (0, 1, 4, 5, 6)).choose(Resources(cpu=2500))
    assert {*one.cores, one.shared_core} == {4, 5, 6}


def test_where_nothing_is_known_the_idlest_cores_are_taken_as_ever() -> None:
    for numa in ((), (tuple(range(8)),)):
        assert grant(node(numa=numa), 3, cores=(0, 4, 1, 5, 6, 7)).cores == (0, 4, 1)


def test_what_is_chosen_is_always_there_and_never_on_more_numa_nodes_than_it_must() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        numa = tuple(tuple(range(first, first + 3)) for first in (0, 3, 6))
        of = msgspec.structs.replace(facts("n", cores=9, gpus=3), numa=numa)
        placed = tuple(msgspec.structs.replace(gpu, numa=rng.randint(-1, 2)) for gpu in of.gpus)
        of = msgspec.structs.replace(of, gpus=placed)
        free = tuple(rng.sample(range(9), rng.randint(0, 9)))
        one = Capacity.of(of, offer(of, cores=free, gpus=tuple(rng.sample(offer(of).gpus, rng.randint(0, 3)))))
        wanted = Resources(rng.randint(0, 9000) // 500 * 500, 0, rng.choice((0, 0, 500, 1000, 2000, 3000)))
        if not one.fits(wanted):
            continue
        chosen = one.choose(wanted)
        assert chosen.resources == wanted
        cores = {*chosen.cores} | ({chosen.shared_core} if chosen.shared_core >= 0 else set())
        assert cores <= set(free)
        one.take(chosen)
        assert all(milli >= 0 for milli in (*one.cores.values(), *one.gpus.values()))
        if not chosen.gpus:
            most = sorted((len(set(free) & set(group)) for group in numa), reverse=True)
            least = next(count for count in range(4) if sum(most[:count]) >= len(cores))
            assert sum(bool(cores & set(group)) for group in numa) == least
