"""Holdings that come and go add up to what the plain sum of those that are there says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.agent.core.spare.claim import conflict
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.thresholds import Holding, tally
from distributed_grid.protocol.resources import GIB, MILLI, GpuShare, Grant, format_milli
from tests.agent.core.spare.scene import GPUS
from tests.depth import tries

CORES = 6


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """Any grant, whether or not others hold the same."""
    cores = draw(st.lists(st.integers(0, CORES - 1), unique=True, max_size=3))
    left = [core for core in range(-1, CORES) if core not in cores]
    shared = draw(st.sampled_from(left))
    gpus = draw(st.lists(st.sampled_from(GPUS), unique=True, max_size=2))
    return Grant(
        cores=tuple(cores),
        shared_core=shared,
        shared_milli=draw(st.integers(1, 999)) if shared >= 0 else 0,
        memory=draw(st.integers(0, 4)) * GIB,
        gpus=tuple(GpuShare(uuid, draw(st.integers(1, 1000)), draw(st.integers(0, 2)) * GIB) for uuid in gpus),
    )


gib = st.integers(0, 6).map(lambda number: number * GIB)
uses = st.tuples(gib, st.dictionaries(st.sampled_from(GPUS), gib).map(lambda found: tuple(found.items())))


@st.composite
def comings_and_goings(draw: st.DrawFn) -> tuple[Holdings, list[Holding]]:
    """Holdings that were added, removed and measured in any order, and those that are left."""
    holdings, left = Holdings(), dict[str, Holding]()
    for step in draw(st.lists(st.sampled_from(["add", "remove", "resident"]), max_size=20)):
        if step == "add":
            one = Holding(f"j{len(left)}-{draw(st.integers(0, 99))}", draw(grants()), *draw(uses))
            if one.allocation not in left:
                left[one.allocation] = one
                holdings.add(one)
        elif left:
            key = draw(st.sampled_from([*left]))
            if step == "remove":
                assert holdings.remove(key) == left.pop(key)
            else:
                left[key] = Holding(key, left[key].grant, *draw(uses))
                holdings.uses(key, left[key].rss, left[key].on_gpus)
    return holdings, [*left.values()]


def numbers(cores: int) -> set[int]:
    return {core for core in range(CORES) if cores >> core & 1}


@settings(max_examples=tries(60, 25), deadline=None)
@given(comings_and_goings())
def test_holdings_that_come_and_go_add_up_to_the_plain_sum(both: tuple[Holdings, list[Holding]]) -> None:
    holdings, left = both
    plain = tally(left)
    assert [*holdings.all.values()] == left
    assert (numbers(holdings.cores), numbers(holdings.shared)) == ({*plain.cores}, {*plain.shared})
    assert holdings.parts == plain.shared
    assert (holdings.cpu, holdings.memory, holdings.excess) == (plain.cpu, plain.memory, plain.excess)
    assert holdings.gpu == plain.gpu
    assert {uuid: holdings.gpu_milli(uuid) for uuid in holdings.on_gpu} == plain.gpus
    for uuid in GPUS:
        assert holdings.gpu_memory(uuid, 8 * GIB) == plain.gpu_memory(uuid, 8 * GIB)
        assert holdings.gpu_excess(uuid, 8 * GIB) == plain.gpu_excess(uuid, 8 * GIB)


@settings(max_examples=tries(60, 25), deadline=None)
@given(comings_and_goings())
def test_all_but_one_are_what_they_would_be_if_it_had_never_come(both: tuple[Holdings, list[Holding]]) -> None:
    holdings, left = both
    for name in ["nobody", *(one.allocation for one in left)]:
        others, plain = holdings.without(name), tally([one for one in left if one.allocation != name])
        assert (others.cpu, others.memory, others.excess) == (plain.cpu, plain.memory, plain.excess)
        assert others.gpu == plain.gpu and {*others.gpus} == {*plain.gpus}
        for uuid in GPUS:
            assert others.gpu_memory(uuid, 8 * GIB) == plain.gpu_memory(uuid, 8 * GIB)
            assert others.gpu_excess(uuid, 8 * GIB) == plain.gpu_excess(uuid, 8 * GIB)


@settings(max_examples=tries(60, 25), deadline=None)
@given(comings_and_goings(), grants())
def test_a_conflict_is_what_a_look_at_every_holding_finds(both: tuple[Holdings, list[Holding]], wanted: Grant) -> None:
    holdings, left = both
    assert conflict(holdings, wanted) == plain_conflict(left, wanted)


def plain_conflict(left: list[Holding], grant: Grant) -> tuple[str, str]:
    cores = {*grant.cores, grant.shared_core} - {-1}
    for one in left:
        if taken := cores.intersection(one.grant.cores):
            return f"core {min(taken)} is held by {one.allocation}", str(min(taken))
    for core in sorted(cores - {grant.shared_core}):
        if names := [one.allocation for one in left if one.grant.shared_core == core]:
            return f"core {core} is shared by {', '.join(names)}", str(core)
    room = MILLI - sum(one.grant.shared_milli for one in left if one.grant.shared_core == grant.shared_core)
    if grant.shared_core >= 0 and grant.shared_milli > room:
        return f"core {grant.shared_core} has only {format_milli(room)} left", str(grant.shared_core)
    for share in grant.gpus:
        on_gpu = {one.allocation: other.milli for one in left for other in one.grant.gpus if other.uuid == share.uuid}
        if sum(on_gpu.values()) + share.milli > MILLI:
            return f"GPU {share.uuid} is held by {', '.join(on_gpu) or 'nobody, and has less'}", share.uuid
    return "", ""


def test_what_was_never_added_is_no_holding() -> None:
    holdings = Holdings()
    assert holdings.remove("j-a.1") is None and not holdings.all and holdings.first([0, 1]) == (-1, "")
