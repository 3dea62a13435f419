"""What would be offered again after an end is what the whole plan says of it."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distributed_grid.agent.core.spare import plan as spare_plan
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.plan import Idle
from distributed_grid.agent.core.spare.returning import Node, mask
from distributed_grid.agent.core.spare.thresholds import Holding, Limits, tally, tolerance
from distributed_grid.protocol.resources import GIB, Grant
from tests.agent.core.spare.scene import AT_ONCE, FACTS, GPUS, sample
from tests.agent.core.spare.test_holdings import CORES, grants
from tests.depth import tries

limits_any = st.builds(
    Limits,
    max_share_cpu=st.none() | st.integers(0, CORES * 1000 + 500),
    max_share_memory=st.none() | st.integers(0, 16).map(lambda gib: gib * GIB),
    max_share_gpu=st.none() | st.integers(0, 3),
    cpu_min_cores=st.sampled_from([0, 1000, 3000]),
    reserve_memory=st.integers(0, 4).map(lambda gib: gib * GIB),
    max_offers_per_node=st.integers(0, 5),
)
idle_any = st.builds(
    Idle,
    cores=st.frozensets(st.integers(0, CORES - 2)),
    most=st.integers(0, CORES),
    gpus=st.frozensets(st.sampled_from(GPUS)),
    node=st.sampled_from(["", "", "", "closed"]),
    cpu=st.sampled_from(["", "", "", "busy"]),
    memory=st.sampled_from(["", "", "", "full"]),
)


@st.composite
def holdings_apart(draw: st.DrawFn) -> list[Holding]:
    """As a coordinator makes them, nothing given twice; one core may be none that is managed."""
    cores = draw(st.lists(st.integers(0, CORES - 1), unique=True))
    split = draw(st.integers(0, len(cores)))
    held = [Holding(f"w{core}", Grant(cores=(core,), memory=GIB)) for core in cores[:split]]
    for core in cores[split:]:
        parts = draw(st.lists(st.integers(1, 500), min_size=1, max_size=2))
        held += [Holding(f"s{core}-{at}", Grant(shared_core=core, shared_milli=one)) for at, one in enumerate(parts)]
    return held


@st.composite
def holdings_anyhow(draw: st.DrawFn) -> list[Holding]:
    """As nobody should make them."""
    return [Holding(f"j{number}", grant) for number, grant in enumerate(draw(st.lists(grants(), max_size=4)))]


def plain(
    limits: Limits, managed: tuple[int, ...], load: dict[int, int], idle: Idle, preferred: frozenset[int],
    held: list[Holding], grant: Grant,
) -> bool:  # fmt: skip
    """The same by the whole plan."""
    plan = spare_plan.make(
        limits, managed, FACTS.gpus, sample(cores=load), idle, tally(held), preferred, lambda _: False
    )
    shares, gpus = dict(plan.shares), {gpu.uuid: gpu.milli for gpu in plan.gpus}
    return (
        set(grant.cores) <= set(plan.cores)
        and (grant.shared_core in plan.cores or shares.get(grant.shared_core, 0) >= grant.shared_milli)
        and grant.memory <= plan.memory + (tolerance(plan.memory) if plan.memory else 0)
        and all(gpus.get(share.uuid, 0) >= share.milli for share in grant.gpus)
    )


@settings(max_examples=tries(80, 30), deadline=None)
@given(
    limits_any,
    st.lists(st.sampled_from([0, 5, 15, 25]), min_size=CORES - 1, max_size=CORES - 1),
    idle_any,
    st.frozensets(st.integers(0, CORES - 2)),
    holdings_apart()
    | st.lists(grants(), max_size=4).map(lambda every: [Holding(f"j{at}", g) for at, g in enumerate(every)]),
    grants(),
)
def test_what_would_return_is_what_the_whole_plan_offers(
    limits: Limits, loads: list[int], idle: Idle, preferred: frozenset[int], held: list[Holding], grant: Grant
) -> None:
    managed, load = tuple(range(CORES - 1)), dict(enumerate(loads))
    assume(all(milli <= 1000 for milli in tally(held).shared.values()))  # the table sees to that
    node = Node(mask(managed), FACTS.gpus, sample(cores=load), idle, preferred, lambda _: False)
    expected = plain(limits, managed, load, idle, preferred, held, grant)
    assert node.offers(limits, grant, Holdings(held)) == expected


def test_a_core_that_a_limit_leaves_out_does_not_return() -> None:
    limits = Limits(max_share_cpu=2000, reserve_memory=0)
    idle = Idle(frozenset(range(4)), 4, frozenset())
    node = Node(mask(range(4)), (), sample(), idle, (), lambda _: False)
    assert node.offers(limits, Grant(cores=(0, 1)), Holdings())
    assert not node.offers(limits, Grant(cores=(2,)), Holdings()), "others come before it"


def test_cores_are_counted_by_their_numbers_however_high() -> None:
    cores = tuple(range(0, 2048, 2))
    idle = Idle(frozenset(cores), len(cores), frozenset())
    node = Node(mask(cores), (), sample(), idle, (), lambda _: False)
    held = Holdings(Holding(f"j{core}", Grant(cores=(core,))) for core in cores[:-1])
    assert node.offers(AT_ONCE, Grant(cores=(2046,)), held)
    assert not node.offers(AT_ONCE, Grant(cores=(2044,)), held)
