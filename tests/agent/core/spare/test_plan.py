"""What is offered of what is idle: which cores and GPUs, and how many."""

import msgspec

from distributed_grid.agent.core.spare.lender import Lender, describe
from distributed_grid.protocol.resources import GIB
from tests.agent.core.spare.scene import AT_ONCE, FACTS, gpu, holding, sample, seen, why


def test_one_busy_core_is_kept_back_by_name() -> None:
    offer = describe(AT_ONCE, FACTS, sample(cores={2: 95}))
    assert set(offer.cores) == {0, 1, 3}
    assert "core 2 95 % > 30 % (cpu_percent_max)" in why(offer, "cpu")


def test_use_spread_over_all_cores_keeps_back_as_many_as_it_is_worth() -> None:
    offer = describe(AT_ONCE, FACTS, sample(cores={0: 8, 1: 8, 2: 8, 3: 8}))
    assert len(offer.cores) == 3
    assert why(offer, "cpu") == "1 of 4 free cores kept back: others use 0.3 cores' worth"


def test_a_fractional_job_leaves_the_rest_of_its_core_to_other_fractions() -> None:
    lender = Lender(AT_ONCE, FACTS)
    seen(lender, 100, (holding(shared_core=2, shared_milli=300),))
    offer = lender.current(100)
    assert (set(offer.cores), offer.shares) == ({0, 1, 3}, {2: 700})


def test_cores_are_listed_idlest_first() -> None:
    assert describe(AT_ONCE, FACTS, sample(cores={0: 20, 1: 5})).cores[-2:] == (1, 0)


def test_no_more_offers_than_allowed_and_the_gpus_with_most_free_memory_first() -> None:
    limits = msgspec.structs.replace(AT_ONCE, max_offers_per_node=4)
    offer = describe(limits, FACTS, sample(gpus=(gpu("GPU-0", 3 * GIB), gpu("GPU-1", GIB), gpu("GPU-2"))))
    assert [one.uuid for one in offer.gpus] == ["GPU-2", "GPU-1"]
    assert why(offer, "GPU-0") == "no more than 4 offers (max_offers_per_node)"
    one = describe(msgspec.structs.replace(limits, max_offers_per_node=1), FACTS, sample(gpus=(gpu("GPU-0"),)))
    assert why(one, "GPU-0") == "no more than 1 offer (max_offers_per_node)"


def test_a_cap_below_one_core_leaves_a_share_of_one() -> None:
    offer = describe(msgspec.structs.replace(AT_ONCE, max_share_cpu=1500), FACTS, sample())
    assert (offer.cores, offer.shares) == ((0,), {1: 500})
    assert why(offer, "cpu") == "no more than 1.5 (max_share_cpu)"
