"""What a node lends: transcripts of one node's day first, then what holds for every sample and every set of limits."""

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distributed_grid.agent.core.owner import Owner, RunningJob
from distributed_grid.agent.core.spare.claim import conflict
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.lender import Lender, describe
from distributed_grid.agent.core.spare.thresholds import Holding, Limits
from distributed_grid.protocol.nodes import GpuProcess, OwnerPolicy, Sample
from distributed_grid.protocol.resources import GIB, MIB, GpuShare, Grant, Resources
from tests.agent.core.spare.scene import AT_ONCE, FACTS, GPUS, gpu, gpus, holding, sample, seen, why
from tests.depth import tries

# --- transcripts -----------------------------------------------------------------------------------------------------


def test_an_idle_node_offers_itself_only_after_it_was_idle_for_a_while() -> None:
    lender = Lender(Limits(reserve_memory=0), FACTS)
    first = seen(lender, 100)
    assert first is not None and first.resources == Resources()
    assert why(first, "cpu") == "idle for 0 s of 4 s (offer_after)"
    assert seen(lender, 102) is None, "still waiting is no news"
    offer = seen(lender, 104)
    assert offer is not None
    assert (offer.cores, offer.memory, len(offer.gpus)) == ((0, 1, 2, 3), 14 * GIB, 3)
    assert (offer.withheld, offer.idle_since, offer.number) == ((), 100.0, 2)


def test_foreign_use_over_the_limit_withdraws_the_cores_at_once_and_says_why_with_numbers() -> None:
    lender = Lender(AT_ONCE, FACTS)
    assert seen(lender, 100) is not None
    offer = seen(lender, 102, cores={0: 100, 1: 100, 2: 56})
    assert offer is not None and offer.cores == ()
    assert why(offer, "cpu") == "cpu 64 % > 30 % (cpu_percent_max)"
    assert offer.memory == 14 * GIB, "memory is judged for itself"


def test_once_busy_a_node_stays_withdrawn_until_it_was_idle_long_enough_again() -> None:
    lender = Lender(Limits(reserve_memory=0), FACTS)
    for now in (100, 102, 104):
        seen(lender, now)
    busy = seen(lender, 106, cores={0: 100, 1: 100})
    assert busy is not None and busy.cores == ()
    assert seen(lender, 108) is not None, "idle again, but not for long: another reason, so it is told"
    assert lender.current(108).cores == ()
    assert seen(lender, 110) is None
    back = seen(lender, 112.5)
    assert back is not None and set(back.cores) == {0, 1, 2, 3}


def test_cores_on_all_of_which_a_job_would_be_in_the_owners_way_are_not_all_offered() -> None:
    """The same steady use, before and beside a job on all that is offered: neither is a sign of the owner."""
    used = {0: 15, 1: 15, 2: 15, 3: 5}
    lender, owner = Lender(AT_ONCE, FACTS), Owner(AT_ONCE, len(FACTS.cores))
    offer = seen(lender, 100, cores=used)
    assert offer is not None and offer.cores == (3, 0, 1)
    assert why(offer, "cpu") == "core 2 15 %: with it, others use more of the lent cores than 30 % (cpu_percent_max)"
    job = holding(cores=offer.cores)
    for now in range(102, 120, 2):
        assert owner.observe(sample(now, used), [RunningJob(job, 102)], now) == []
        assert seen(lender, now, (job,), cores=used) is None, "and no news"
    assert lender.would_return(job.grant, Holdings())
    assert len(describe(replace(AT_ONCE, owner_policy=OwnerPolicy.CONTINUE), FACTS, sample(cores=used)).cores) == 3
    assert seen(lender, 120, cores=used | {2: 13}) is None, "those that were offered come first"


def test_what_is_free_beside_a_core_in_use_is_offered_only_where_it_is_idle() -> None:
    lender = Lender(AT_ONCE, FACTS)
    offer = seen(lender, 100, (holding(cores=(0,)),), cores={0: 50, 1: 12})
    assert offer is not None and set(offer.cores) == {2, 3}
    assert not lender.would_return(Grant(cores=(0,)), Holdings())


def test_a_core_around_its_limit_makes_no_offer_with_each_sample() -> None:
    lender = Lender(Limits(), FACTS)
    offers = [seen(lender, now, cores={0: 29 if now % 4 else 31}) for now in range(100, 150, 2)]
    told = [offer.cores for offer in offers if offer is not None]
    assert told == [(), (1, 2, 3)]
    assert "core 0" in why(lender.offered(), "cpu")


def test_our_own_job_takes_off_what_it_holds_and_no_more_and_is_no_news() -> None:
    lender = Lender(AT_ONCE, FACTS)
    seen(lender, 100)
    job = holding(cores=(1,), memory=GIB, rss=GIB // 2)
    assert seen(lender, 102, (job,), own_cpu=1.0) is None, "the coordinator takes it off by itself"
    offer = lender.current(102)
    assert (set(offer.cores), offer.memory, offer.counting) == ({0, 2, 3}, 13 * GIB, ("j-a.1",))
    assert offer.withheld == ()


def test_a_job_that_uses_more_memory_than_granted_shrinks_the_offer_by_what_it_uses() -> None:
    lender = Lender(AT_ONCE, FACTS)
    seen(lender, 100)
    offer = seen(lender, 102, (holding(cores=(1,), memory=GIB, rss=4 * GIB),))
    assert offer is not None and offer.memory == 10 * GIB


def test_small_changes_of_memory_are_no_news_and_large_ones_are() -> None:
    lender = Lender(AT_ONCE, FACTS)
    seen(lender, 100)
    assert seen(lender, 102, memory=2 * GIB + 200 * MIB) is None
    offer = seen(lender, 104, memory=3 * GIB)
    assert offer is not None and offer.memory == 13 * GIB


def test_the_use_of_a_gpu_by_our_job_is_ours_also_for_the_moment_after_it() -> None:
    lender = Lender(AT_ONCE, FACTS)
    seen(lender, 100)
    job = holding(gpus=(GpuShare("GPU-0"),))
    hot = gpus(gpu("GPU-0", 4 * GIB, 99, "", GpuProcess(5, 4 * GIB, "", True)))
    assert seen(lender, 102, (job,), gpus=hot) is None
    assert lender.would_return(job.grant, Holdings())
    assert seen(lender, 103, gpus=gpus(gpu("GPU-0", 0, 60))) is None, "the driver still averages over the job"
    foreign = seen(lender, 106, gpus=gpus(gpu("GPU-0", 0, 60)))
    assert foreign is not None and why(foreign, "GPU-0").startswith("gpu 60 %")


def test_a_node_that_shares_nothing_says_so() -> None:
    offer = describe(msgspec.structs.replace(AT_ONCE, can_share=False), FACTS, sample())
    assert offer.resources == Resources()
    assert why(offer, "node") == "shares nothing (can_share is false)"


def test_an_unchanged_offer_is_said_again_before_it_expires() -> None:
    lender = Lender(msgspec.structs.replace(AT_ONCE, offer_expiry=20.0), FACTS)
    assert seen(lender, 100) is not None
    assert seen(lender, 109.9) is None
    again = seen(lender, 110)
    assert again is not None and again.number == 2


def test_before_the_first_sample_there_is_nothing_to_lend() -> None:
    offer = Lender(AT_ONCE, FACTS).current(1)
    assert (offer.resources, why(offer, "node")) == (Resources(), "not measured yet")


# --- what always holds -----------------------------------------------------------------------------------------------


percents = st.integers(0, 100)


limits_any = st.builds(
    Limits,
    can_share=st.sampled_from([True, True, True, False]),
    max_share_cpu=st.none() | st.integers(0, 5000),
    max_share_memory=st.none() | st.integers(0, 20 * GIB),
    max_share_gpu=st.none() | st.integers(0, 4),
    cpu_percent_max=percents.map(float),
    memory_percent_max=percents.map(float),
    cpu_min_cores=st.integers(0, 3000),
    reserve_cpu=st.integers(0, 2000),
    reserve_memory=st.integers(0, 4 * GIB),
    offer_after=st.sampled_from([0.0, 4.0]),
    max_offers_per_node=st.integers(0, 6),
)


gpu_any = st.builds(
    lambda used, busy, error, who: gpu("GPU-0", used, busy, error, *who),
    st.integers(0, 8 * GIB),
    percents,
    st.sampled_from(["", "", "", "lost"]),
    st.lists(st.builds(GpuProcess, st.integers(2, 9), st.integers(0, GIB), st.just("u"), st.booleans()), max_size=2),
)


samples_any = st.builds(
    lambda cores, memory, own, seen: sample(cores=dict(enumerate(cores)), memory=memory, own_cpu=own, gpus=gpus(seen)),
    st.lists(percents, min_size=4, max_size=4),
    st.integers(0, 16 * GIB),
    st.floats(0, 4),
    gpu_any,
)


@st.composite
def holdings_any(draw: st.DrawFn) -> tuple[Holding, ...]:
    """Holdings as a right-minded coordinator makes them: nothing given twice."""
    cores = draw(st.lists(st.integers(0, 3), unique=True, max_size=4))
    devices = draw(st.lists(st.sampled_from(GPUS), unique=True, max_size=3))
    held = [holding(f"c{core}.1", draw(st.integers(0, 2 * GIB)), cores=(core,), memory=GIB) for core in cores[1:]]
    if cores:
        held.append(holding("f.1", shared_core=cores[0], shared_milli=draw(st.integers(1, 999))))
    held += [holding(f"{uuid}.1", gpus=(GpuShare(uuid, draw(st.integers(1, 100)) * 10),)) for uuid in devices]
    return tuple(held)


@settings(max_examples=tries(40, 20), deadline=None)
@given(limits_any, st.lists(samples_any, min_size=1, max_size=4), holdings_any())
def test_an_offer_never_names_what_is_held_nor_exceeds_what_there_is(
    limits: Limits, samples: list[Sample], held: tuple[Holding, ...]
) -> None:
    lender, twin = Lender(limits, FACTS), Lender(limits, FACTS)
    for turn, one in enumerate(samples):
        now = 100.0 + 2 * turn
        one = msgspec.structs.replace(one, at=now)
        assert lender.observe(one, held, now) == twin.observe(one, held, now), "same in, same out"
    offer = lender.current(now)
    lent = [one.grant for one in held]
    whole = {core for grant in lent for core in grant.cores}
    shared = {grant.shared_core: grant.shared_milli for grant in lent if grant.shared_core >= 0}
    on_gpus = {share.uuid: share.milli for grant in lent for share in grant.gpus}

    assert not set(offer.cores) & (whole | shared.keys() | offer.shares.keys())
    assert not offer.shares.keys() & whole
    assert all(0 < milli <= 1000 - shared.get(core, 0) for core, milli in offer.shares.items())
    assert all(0 < one.milli <= 1000 - on_gpus.get(one.uuid, 0) for one in offer.gpus)
    assert all(0 <= one.memory_free <= one.memory for one in offer.gpus)
    assert offer.memory >= 0
    assert set(offer.counting) == {one.allocation for one in held}
    assert bool(offer.cores or offer.shares) + bool(offer.memory) + len(offer.gpus) <= limits.max_offers_per_node

    given_out = sum((grant.resources for grant in lent), Resources())
    last = samples[-1]
    if offer.memory:
        assert offer.memory + given_out.memory <= last.memory_total - last.memory_foreign - limits.reserve_memory
    caps = (limits.max_share_cpu, limits.max_share_memory, limits.max_share_gpu and limits.max_share_gpu * 1000)
    for cap, new, old in zip(caps, _amounts(offer.resources), _amounts(given_out), strict=True):
        assert cap is None or not new or new + old <= cap
    if limits.cpu_percent_max < 100:
        left = 4 - last.foreign_cpu + limits.cpu_percent_max / 100 - limits.reserve_cpu / 1000
        assert not offer.cores or len(offer.cores) <= math.floor(left + 1e-6) - len(whole) - len(shared)
    if not limits.can_share:
        assert offer.resources == Resources()


def _amounts(resources: Resources) -> tuple[int, int, int]:
    return resources.cpu, resources.memory, resources.gpu


@settings(max_examples=tries(30, 15), deadline=None)
@given(limits_any, samples_any, holdings_any())
def test_what_is_offered_can_be_claimed_in_the_same_moment(
    limits: Limits, one: Sample, held: tuple[Holding, ...]
) -> None:
    lender = Lender(msgspec.structs.replace(limits, offer_after=0.0), FACTS)
    lender.observe(one, held, one.at)
    offer = lender.current(one.at)
    all_of_it = Grant(
        cores=offer.cores,
        memory=offer.memory,
        gpus=tuple(GpuShare(gpu.uuid, gpu.milli) for gpu in offer.gpus),
    )
    if offer.resources:
        assert conflict(Holdings(held), all_of_it) == ("", "")
        assert lender.verify(all_of_it, one, Holdings(held), "j-me.1") is None
    for core, milli in offer.shares.items():
        share = Grant(shared_core=core, shared_milli=milli)
        assert conflict(Holdings(held), share) == ("", "")
        assert lender.verify(share, one, Holdings(held), "j-me.1") is None


@settings(max_examples=tries(30, 15), deadline=None)
@given(limits_any, samples_any, holdings_any())
def test_what_returns_was_offered_again_by_the_lender_itself(
    limits: Limits, one: Sample, held: tuple[Holding, ...]
) -> None:
    lender = Lender(msgspec.structs.replace(limits, offer_after=0.0), FACTS)
    lender.observe(one, held, one.at)
    for gone in held:
        rest = tuple(other for other in held if other is not gone)
        if not lender.would_return(gone.grant, Holdings(rest)):
            continue
        lender.observe(one, rest, one.at)
        offer = lender.current(one.at)
        assert set(gone.grant.cores) <= set(offer.cores)
        assert {share.uuid for share in gone.grant.gpus} <= {gpu.uuid for gpu in offer.gpus}
        lender.observe(one, held, one.at)


# --- successors -------------------------------------------------------------------------------------------------------


def verified_next(lender: Lender, first: Holding, **said: Any) -> str:
    """Why nobody may be queued for what this one holds, by a sample at 110."""
    stale = lender.verify_next(first.grant, sample(110.0, **said), Holdings([first]), "j-b.1", first.allocation)
    return stale.reason if stale is not None else ""


def test_a_successor_gets_what_its_predecessor_holds_though_no_more_is_to_be_had() -> None:
    lender = Lender(msgspec.structs.replace(AT_ONCE, max_share_cpu=1000), FACTS)
    first = holding(cores=(1,), memory=14 * GIB, gpus=(GpuShare("GPU-0", 1000),))
    seen(lender, 108, (first,))
    busy = gpus(gpu("GPU-0", used=4 * GIB, utilisation=99.0))
    assert verified_next(lender, first, gpus=busy) == "", "the GPU is in use by its predecessor"
    stale = lender.verify(first.grant, sample(110.0), Holdings([first]), "j-b.1")
    assert stale is not None and "max_share_cpu" in stale.reason


def test_nobody_is_queued_for_what_the_node_does_not_offer_now() -> None:
    first = holding(cores=(1,))
    lender = Lender(Limits(reserve_memory=0), FACTS)
    seen(lender, 108, (first,), cores={0: 100, 1: 0, 2: 100, 3: 100})
    seen(lender, 110, (first,))
    assert verified_next(lender, first) == "idle for 0 s of 4 s (offer_after)"
    assert verified_next(lender, holding(memory=GIB)) == "idle for 2 s of 4 s (offer_after)"
    seen(lender, 115, (first,))
    assert verified_next(lender, first) == ""
    assert "others use 90 % of core 1" in verified_next(lender, first, cores={1: 90})
    lender.closed = "the owner is back"
    assert verified_next(lender, first) == "the owner is back"
