from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.protocol.resources import GIB, GpuShare, Grant
from tests.agent.core.spare.test_lender import AT_ONCE, FACTS, claim, holding, seen


def free(*shares: GpuShare) -> int:
    """GiB of the first GPU that are offered while these parts of it are held."""
    offer = seen(Lender(AT_ONCE, FACTS), 100, tuple(holding(f"j{i}.1", gpus=(one,)) for i, one in enumerate(shares)))
    assert offer is not None
    return next((gpu.memory_free // GIB for gpu in offer.gpus if gpu.uuid == "GPU-0"), -1)


def test_what_is_offered_of_a_shared_gpu_is_less_the_memory_its_sharers_asked_for() -> None:
    assert free() == 8
    assert free(GpuShare("GPU-0", 100, 3 * GIB), GpuShare("GPU-0", 100, 4 * GIB)) == 1
    assert free(GpuShare("GPU-0", 250)) == 6, "who asks for none in particular has as large a part of it"
    assert free(GpuShare("GPU-0")) == -1


def test_a_part_of_a_gpu_is_not_given_where_its_memory_is_not_there_any_more() -> None:
    wanted = Grant(gpus=(GpuShare("GPU-0", 100, 4 * GIB),))
    assert claim(wanted, (holding(gpus=(GpuShare("GPU-0", 100, 4 * GIB),)),)) == ""
    taken = (holding(gpus=(GpuShare("GPU-0", 100, 6 * GIB),)),)
    assert claim(wanted, taken) == "GPU-0|2G of GPU GPU-0 is spare now, 4G was to be had"
