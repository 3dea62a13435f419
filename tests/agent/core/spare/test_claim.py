"""The second look: what is given beside what is held, by a fresh sample."""

from typing import Any

import msgspec
import pytest

from distributed_grid.agent.core.spare.claim import conflict, slack_conflict
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.spare.thresholds import Holding, Limits
from distributed_grid.protocol.nodes import GpuProcess, Offer
from distributed_grid.protocol.resources import GIB, MIB, GpuShare, Grant
from tests.agent.core.spare.scene import AT_ONCE, FACTS, gpu, gpus, holding, sample, seen, why

WANTED = Grant(cores=(1,), memory=GIB, gpus=(GpuShare("GPU-0"),))


def claim(grant: Grant = WANTED, held: tuple[Holding, ...] = (), limits: Limits = AT_ONCE, **said: Any) -> str:
    """What stands in the way of the grant; "" for nothing."""
    if (found := conflict(Holdings(one for one in held if one.allocation != "j-me.1"), grant)) != ("", ""):
        return f"{found[1]}|{found[0]}"
    stale = Lender(limits, FACTS).verify(grant, sample(**said), Holdings(held), "j-me.1")
    return f"{stale.device}|{stale.reason}" if stale else ""


def test_what_is_still_there_is_given() -> None:
    assert claim() == ""
    assert claim(held=(Holding("j-me.1", WANTED),)) == "", "its own holding is not in its way"


def test_a_process_that_came_to_the_gpu_since_is_named() -> None:
    foreign = gpus(gpu("GPU-0", GIB, 0, "", GpuProcess(77, GIB, "ada")))
    stale = Lender(AT_ONCE, FACTS).verify(WANTED, sample(gpus=foreign), Holdings(), "j-me.1")
    assert stale is not None
    assert stale.device == "GPU-0" and "ada" in stale.reason and "77" in stale.reason


def test_a_noisy_core_is_given_and_a_clearly_busy_one_is_not() -> None:
    assert claim(cores={1: 40}) == ""
    assert claim(cores={1: 90}) == "1|others use 90 % of core 1 now (more than 65 %)"


def test_a_core_that_was_not_measured_is_not_given() -> None:
    now = sample()
    del now.cores[1]
    stale = Lender(AT_ONCE, FACTS).verify(WANTED, now, Holdings(), "j-me.1")
    assert stale is not None and (stale.device, stale.reason) == ("1", "core 1 was not measured")
    on_slack = Grant(slack=(1, 2), slack_milli=2000, holder="j-a.1")
    stale = Lender(AT_ONCE, FACTS).verify(on_slack, now, Holdings((holding(cores=(0, 1, 2)),)), "j-me.1")
    assert stale is not None and (stale.device, stale.reason) == ("1", "core 1 was not measured")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (holding(cores=(1,)), "1|core 1 is held by j-a.1"),
        (holding(shared_core=1, shared_milli=1), "1|core 1 is shared by j-a.1"),
        (holding(gpus=(GpuShare("GPU-0", 10),)), "GPU-0|GPU GPU-0 is held by j-a.1"),
        (holding(memory=14 * GIB), "memory|0B memory is spare now, 1G was to be had"),
    ],
)
def test_what_another_allocation_holds_is_not_given(held: Holding, words: str) -> None:
    assert claim(held=(held,)) == words


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"holder": "j-gone.1"}, "j-gone.1, whose cores it is to run on, does not hold any here"),
        ({"slack": (0, 4)}, "j-a.1 does not hold the cores that it is to run on"),
        ({"virtual": True}, "j-a.1 does not hold the cores that it is to run on"),
        ({"slack": (1,)}, "j-user.1 runs on cores of j-a.1 already"),
        ({"cores": (5,)}, "it holds cores or GPUs beside those of j-a.1"),
        ({"gpus": (GpuShare("GPU-0"),)}, "it holds cores or GPUs beside those of j-a.1"),
        ({"slack_milli": 1001}, "it is to get 1.001 of 1 cores of j-a.1"),
        ({"slack_milli": 0}, "it is to get 0 of 1 cores of j-a.1"),
    ],
)
def test_slack_is_given_where_its_holder_holds_the_cores_and_nobody_else_runs_on_them(
    change: dict[str, Any], why: str
) -> None:
    user = Holding("j-user.1", Grant(slack=(1, 2), slack_milli=1500, holder="j-a.1"))
    held = Holdings((holding(cores=(0, 1, 2)), user))
    grant = Grant(slack=(0,), slack_milli=1000, holder="j-a.1")
    assert slack_conflict(held, msgspec.structs.replace(grant, **change)) == why


def test_what_the_agent_does_not_manage_is_not_given() -> None:
    assert claim(Grant(cores=(9,))) == "9|core 9 is not managed by this agent"
    assert claim(Grant(gpus=(GpuShare("GPU-x"),))) == "GPU-x|GPU GPU-x is not managed by this agent"
    assert claim(Grant(cores=(1,), virtual=True)) == "|the cores of this node are real"


def test_fractions_share_a_core_up_to_the_whole_of_it() -> None:
    held = (holding(shared_core=1, shared_milli=700),)
    assert claim(Grant(shared_core=1, shared_milli=300), held) == ""
    assert claim(Grant(shared_core=1, shared_milli=301), held) == "1|core 1 has only 0.3 left"


def test_memory_within_the_tolerance_of_an_offer_is_given_and_beyond_it_not() -> None:
    offered = Grant(memory=14 * GIB)
    assert claim(offered, memory=2 * GIB + 200 * MIB) == ""
    assert claim(offered, memory=4 * GIB) == "memory|12G memory is spare now, 14G was to be had"
    assert claim(offered, memory=9 * GIB) == "memory|memory 57 % > 50 % (memory_percent_max) now"


# --- parts of a GPU ---------------------------------------------------------------------------------------------------


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


def test_what_jobs_have_of_a_gpu_beyond_what_they_asked_for_is_not_offered() -> None:
    def using(gib: int, *shares: GpuShare) -> Offer:
        job = Holding("j-a.1", Grant(gpus=shares), on_gpus=(("GPU-0", gib * GIB),))
        offer = seen(Lender(AT_ONCE, FACTS), 100, (job,))
        assert offer is not None
        return offer

    def left(offer: Offer) -> int:
        return next((gpu.memory_free // GIB for gpu in offer.gpus if gpu.uuid == "GPU-0"), -1)

    asked = GpuShare("GPU-0", 500, 2 * GIB)
    assert [left(using(gib, asked)) for gib in (0, 2, 5, 7)] == [6, 6, 3, 1]
    assert left(using(3, GpuShare("GPU-1"))) == 5, "nobody gave it any of this one"
    full = using(8, asked)
    words = "0 MiB free < 1024 MiB (gpu_memory_min_mb): jobs use 6G more than they asked for"
    assert (left(full), why(full, "GPU-0")) == (-1, words)


def test_a_job_that_takes_more_of_a_gpu_than_it_asked_for_makes_a_new_offer() -> None:
    lender, grant = Lender(AT_ONCE, FACTS), Grant(gpus=(GpuShare("GPU-0", 500, 2 * GIB),))
    assert seen(lender, 100, (Holding("j-a.1", grant, on_gpus=(("GPU-0", 2 * GIB),)),)) is not None
    assert seen(lender, 102, (Holding("j-a.1", grant, on_gpus=(("GPU-0", GIB),)),)) is None
    assert seen(lender, 104, (Holding("j-a.1", grant, on_gpus=(("GPU-0", 5 * GIB),)),)) is not None


def test_a_part_of_a_gpu_is_not_given_where_its_memory_is_not_there_any_more() -> None:
    wanted = Grant(gpus=(GpuShare("GPU-0", 100, 4 * GIB),))
    assert claim(wanted, (holding(gpus=(GpuShare("GPU-0", 100, 4 * GIB),)),)) == ""
    taken = (holding(gpus=(GpuShare("GPU-0", 100, 6 * GIB),)),)
    assert claim(wanted, taken) == "GPU-0|2G of GPU GPU-0 is spare now, 4G was to be had"
    more = Holding("j-b.1", Grant(gpus=(GpuShare("GPU-0", 100, 2 * GIB),)), on_gpus=(("GPU-0", 6 * GIB),))
    assert claim(wanted, (more,)) == "GPU-0|2G of GPU GPU-0 is spare now, 4G was to be had"
