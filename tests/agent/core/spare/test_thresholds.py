"""The thresholds of lending: what others use is withheld, and the most that a node could ever lend."""

import msgspec
import pytest

from distributed_grid.agent.core.spare.lender import describe
from distributed_grid.agent.core.spare.thresholds import Limits, core_troubles, lendable
from distributed_grid.protocol.nodes import GpuProcess, GpuSample
from distributed_grid.protocol.resources import GIB, MIB, MILLI, Resources
from tests.agent.core.spare.scene import AT_ONCE, FACTS, gpu, gpus, sample, why


def test_memory_over_its_limit_or_under_its_least_is_withheld() -> None:
    over = describe(AT_ONCE, FACTS, sample(memory=9 * GIB))
    assert (over.memory, why(over, "memory")) == (0, "memory 57 % > 50 % (memory_percent_max)")
    lax = msgspec.structs.replace(AT_ONCE, memory_percent_max=100.0)
    under = describe(lax, FACTS, sample(memory=15 * GIB))
    assert (under.memory, why(under, "memory")) == (0, "memory 1G free < 2G (memory_min_gb)")
    assert describe(lax, FACTS, sample(memory=10 * GIB)).memory == 6 * GIB


def test_a_core_is_withheld_that_others_use_or_that_was_not_measured() -> None:
    measured, cores = msgspec.structs.replace(sample(), cores={0: 50, 1: 51, 2: 0}), range(4)
    limits = msgspec.structs.replace(AT_ONCE, cpu_percent_max=50.0)
    unknown = {3: "core 3 was not measured"}
    assert core_troubles(limits, measured, cores) == {1: "core 1 51 % > 50 % (cpu_percent_max)"} | unknown
    assert core_troubles(msgspec.structs.replace(limits, cpu_percent_max=100.0), measured, cores) == unknown


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (gpu("GPU-0", 0, 0, "GPU is lost"), "cannot be read: GPU is lost"),
        (gpu("GPU-0", GIB, 0, "", GpuProcess(77, GIB, "ada")), "process 77 of ada uses 1024 MiB"),
        (gpu("GPU-0", 0, 64), "gpu 64 % > 20 % (gpu_utilization_max)"),
        (gpu("GPU-0", 8 * GIB - 100 * MIB), "100 MiB free < 1024 MiB (gpu_memory_min_mb)"),
    ],
)
def test_a_gpu_in_use_or_unreadable_is_withheld_by_its_uuid(broken: GpuSample, words: str) -> None:
    offer = describe(AT_ONCE, FACTS, sample(gpus=gpus(broken)))
    assert [one.uuid for one in offer.gpus] == ["GPU-1", "GPU-2"]
    assert why(offer, "GPU-0") == words


def test_a_display_server_that_uses_little_leaves_the_gpu_to_be_lent_less_its_memory() -> None:
    server = GpuProcess(77, GIB, "ada", graphics=True, utilisation=12.0)
    offer = describe(AT_ONCE, FACTS, sample(gpus=gpus(gpu("GPU-0", GIB, 12, "", server))))
    assert [one.memory_free for one in offer.gpus if one.uuid == "GPU-0"] == [7 * GIB]


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([(GIB, True, 13.0), (2 * GIB, True, 9.0)], "process 1 of ada draws with 9 %, and 1 more"),
        ([(GIB, True, -1.0)], "process 0 of ada uses 1024 MiB"),
        ([(2 * GIB, True, 1.0), (GIB, False, -1.0)], "process 1 of ada uses 1024 MiB"),
    ],
)
def test_a_gpu_is_withheld_for_programs_that_draw_much_or_unknown_and_for_all_that_compute(
    processes: list[tuple[int, bool, float]], words: str
) -> None:
    found = [GpuProcess(pid, of, "ada", False, draws, used) for pid, (of, draws, used) in enumerate(processes)]
    offer = describe(AT_ONCE, FACTS, sample(gpus=gpus(gpu("GPU-0", 3 * GIB, 5, "", *found))))
    assert [one.uuid for one in offer.gpus] == ["GPU-1", "GPU-2"]
    assert why(offer, "GPU-0") == words


def test_a_gpu_that_the_driver_does_not_list_any_more_is_withheld() -> None:
    offer = describe(AT_ONCE, FACTS, sample(gpus=(gpu("GPU-1"),), gpu_error="driver gone"))
    assert [one.uuid for one in offer.gpus] == ["GPU-1"]
    assert (why(offer, "GPU-0"), why(offer, "gpu")) == ("not seen in the last measurement", "driver gone")


def test_what_a_node_could_ever_lend_is_capped_and_less_the_reserve() -> None:
    limits = Limits(reserve_cpu=500, max_share_memory=4 * GIB, max_share_gpu=1)
    assert lendable(limits, FACTS.cores, 16 * GIB, FACTS.gpus) == Resources(3500, 4 * GIB, 1000)
    assert lendable(Limits(can_share=False), FACTS.cores, 16 * GIB, FACTS.gpus) == Resources()


def test_of_many_gpus_no_more_could_ever_be_lent_than_an_offer_has_items() -> None:
    gpus = tuple(msgspec.structs.replace(FACTS.gpus[0], uuid=f"GPU-{number}", index=number) for number in range(8))
    assert lendable(Limits(), FACTS.cores, 16 * GIB, gpus).gpu == 5 * MILLI
    assert lendable(Limits(max_offers_per_node=10), FACTS.cores, 16 * GIB, gpus).gpu == 8 * MILLI


def test_what_is_too_little_to_be_lent_even_when_idle_is_no_part_of_what_a_node_could_ever_lend() -> None:
    limits = Limits(memory_min=2 * GIB, reserve_memory=GIB, cpu_min_cores=2000)
    assert lendable(limits, (0,), 3 * GIB - 1, ()) == Resources()
    assert lendable(limits, (0, 1), 3 * GIB, ()) == Resources(2000, 2 * GIB)
