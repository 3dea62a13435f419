"""What a placement takes from other requests, beside the formula of the paper, reckoned request by request."""

import random

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import JobsSubmitted
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Placement, Refusal
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.fragmentation import (
    COUNTED_AT_ONCE,
    HALVED_AFTER,
    KINDS,
    NO_REQUESTS,
    RequestKind,
    RequestMix,
    Usable,
    kind_of,
)
from distributed_grid.coordinator.core.placement.matching import gang_places, place
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Constraints, same_model
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed


def room_of(cores: int, gpus: int, memory: int = 8 * GIB) -> Capacity:
    of = facts("n1", cores, memory, gpus)
    return Capacity.of(of, offer(of))


def asks(gpu: int, cpu: int = 1000, memory: int = 0, **asked: str | int) -> Request:
    constraints = msgspec.convert(asked, Constraints) if asked else None
    return Request(Resources(cpu, memory, gpu), constraints=constraints)


def mixed(*requests: Request) -> RequestMix:
    mix = RequestMix()
    for request in requests:
        mix.add(request)
        mix.count()
    return mix


def usable(capacity: Capacity, kinds: list[tuple[RequestKind, int]]) -> float:
    """GPUs that a request of the mix can use, in the mean: by the definition, one kind after the other."""
    total = 0
    for kind, count in kinds:
        asked = Constraints(gpu_model=kind.gpu_model, gpu_memory=kind.gpu_memory)
        enough = [
            left
            for uuid, left in capacity.gpus.items()
            if left >= min(kind.gpu, MILLI)
            and capacity.gpu_memory[uuid] >= asked.gpu_memory
            and same_model(asked.gpu_model, capacity.offers[uuid].model)
        ]
        fits = kind.cpu <= capacity.cpu_left and kind.memory <= capacity.free_memory
        if fits and (len(enough) * MILLI >= kind.gpu if kind.gpu >= MILLI else enough):
            total += count * sum(enough)
    return total / MILLI / (sum(count for _, count in kinds) or 1)


def stranded(capacity: Capacity, kinds: list[tuple[RequestKind, int]]) -> float:
    """GPUs without the cores or memory that the mix asks for beside a GPU in the mean: by the definition."""
    gpus = sum(kind.gpu * count for kind, count in kinds)
    cores = sum(kind.cpu * count for kind, count in kinds)
    memory = sum(kind.memory * count for kind, count in kinds)
    free: list[float] = [capacity.gpu_left]
    free += [capacity.cpu_left * gpus / cores] if cores else []
    free += [capacity.free_memory * gpus / memory] if memory else []
    return (capacity.gpu_left - min(free)) / MILLI


def test_a_free_gpu_without_cores_is_lost_to_those_who_need_cores() -> None:
    mix = mixed(asks(1000, cpu=4000))
    capacity = room_of(cores=8, gpus=2)
    assert mix.loss(capacity, asks(1000, cpu=4000)) == 1.0
    assert mix.loss(capacity, asks(1000, cpu=5000)) == 2.25, "the other one, whose cores are three of four"
    assert mix.loss(capacity, asks(500, cpu=1000)) == 1.0
    assert mix.loss(room_of(cores=3, gpus=2), asks(500, cpu=750)) <= 0.0, "nobody could use those GPUs anyway"


def test_a_gpu_is_lost_as_soon_as_its_node_lacks_the_cores_that_the_mix_asks_for_in_the_mean() -> None:
    mix = mixed(asks(1000, cpu=1000), asks(1000, cpu=7000))
    capacity = room_of(cores=9, gpus=2)
    assert mix.loss(capacity, asks(1000, cpu=4000)) == 1.5, "half of the mix can use the other GPU no more"
    assert mix.loss(capacity, asks(1000, cpu=6000)) == 1.75, "and only three of four cores are left for it"
    by_memory = mixed(asks(1000, memory=2 * GIB), asks(1000, memory=6 * GIB))
    assert by_memory.loss(room_of(cores=9, gpus=2, memory=9 * GIB), asks(1000, memory=6 * GIB)) == 1.75


def test_a_job_that_leaves_fewer_gpus_without_cores_costs_the_others_less() -> None:
    mix = mixed(asks(1000, cpu=4000))
    assert mix.loss(room_of(cores=4, gpus=2), asks(1000, cpu=1000)) == 2.0 - 0.75
    assert mix.loss(room_of(cores=4, gpus=4), asks(2000, cpu=500)) == 4.0 - 3.0 + 1.125


def test_a_part_that_is_left_over_counts_by_how_many_could_use_it() -> None:
    mix = mixed(asks(500), asks(250), asks(250), asks(250))
    capacity = room_of(cores=8, gpus=1)
    assert mix.loss(capacity, asks(500)) == 0.5
    assert mix.loss(capacity, asks(600)) == pytest.approx(1 - 0.75 * 0.4), "0.4 is too little for one of four"
    assert mix.loss(capacity, asks(800)) == 1.0


def test_a_gang_of_gpus_on_one_node_is_lost_with_the_first_of_them() -> None:
    mix = mixed(asks(2000), asks(1000))
    assert mix.loss(room_of(cores=8, gpus=2), asks(1000)) == 1.5
    assert mix.loss(room_of(cores=8, gpus=1), asks(1000)) == 0.5


def test_without_requests_nothing_is_lost() -> None:
    assert RequestMix().loss(room_of(cores=8, gpus=1), asks(1000)) == 0.0
    assert mixed(asks(0)).state == NO_REQUESTS, "requests without GPUs are not of the mix"


@pytest.mark.parametrize("models", [("T4",), ("T4", "A100")])
def test_the_loss_is_what_the_definition_says_in_many_random_rooms(models: tuple[str, ...]) -> None:
    chance = random.Random(len(models))

    def some() -> Request:
        gpu = chance.choice((100, 250, 500, 700, 1000, 1000, 2000, 4000))
        picky = len(models) > 1 and gpu <= MILLI and chance.random() < 0.3
        asked = {"gpu_model": chance.choice(models)} if picky else {}
        return asks(gpu, chance.choice((0, 500, 1000, 4000)), chance.choice((0, 1, 3)) * GIB, **asked)

    for _ in range(150):
        kinds = list({kind_of(some()): chance.randint(1, 9) for _ in range(chance.randint(1, 8))}.items())
        capacity = room_of(cores=chance.randint(1, 9), gpus=chance.randint(1, 5), memory=chance.randint(0, 6) * GIB)
        for number, uuid in enumerate(capacity.gpus):
            capacity.offers[uuid] = msgspec.structs.replace(capacity.offers[uuid], model=models[number % len(models)])
        for _ in range(6):
            request = some()
            if not capacity.fits(request.resources, request.constraints):
                continue
            grant = capacity.choose(request.resources, request.constraints)
            of = Usable(kinds)
            lost = of.loss(capacity, of.now(capacity), request)
            before = usable(capacity, kinds) - stranded(capacity, kinds)
            capacity.take(grant)
            after = usable(capacity, kinds) - stranded(capacity, kinds)
            assert lost == pytest.approx(before - after, abs=2 / MILLI), "but for whole milli-GPUs"


def test_older_requests_count_less_and_are_forgotten_in_the_end() -> None:
    mix = mixed(*[asks(500)] * HALVED_AFTER)
    counts = []
    for _ in range(12):
        for _ in range(HALVED_AFTER):
            mix.add(asks(1000))
        mix.count()
        counts.append(dict(mix.state.counts).get(kind_of(asks(500)), 0))
    assert counts[0] == 2 * counts[1] == 4 * counts[2] and counts[-1] == 0


def test_the_mix_is_bounded_and_has_the_most_frequent_kinds() -> None:
    mix = RequestMix()
    for number in range(20 * HALVED_AFTER):
        mix.add(asks(1000, cpu=number + 1))
        mix.add(asks(250))
        mix.count()
    assert len(mix.state.counts) <= 6 * HALVED_AFTER
    assert len(mix.state.typical) == KINDS and mix.state.typical[0][0] == kind_of(asks(250))


def test_the_first_requests_count_at_once_and_later_ones_together() -> None:
    mix = mixed(asks(500))
    assert mix.state.typical
    for _ in range(COUNTED_AT_ONCE):
        mix.add(asks(1000))
        mix.count()
    before = mix.state.typical
    mix.add(asks(250))
    mix.count()
    assert mix.state.typical == before


def test_a_request_does_not_count_for_itself() -> None:
    mix = mixed(asks(500))
    mix.add(asks(1000))
    assert mix.loss(room_of(cores=8, gpus=1), asks(600)) == 1.0
    mix.count()
    assert mix.state.requests == 2 and not mix.state.new


def test_a_mix_goes_on_from_its_state() -> None:
    chance = random.Random(1)
    one = RequestMix()
    for _ in range(500):
        one.add(asks(chance.choice((250, 500, 1000)), chance.randint(1, 9) * 1000))
        if chance.random() < 0.9:
            one.count()
    one.add(asks(700))
    other = RequestMix(one.state)
    for number in range(300):
        request, capacity = asks(chance.choice((250, 1000)), 1000), room_of(cores=number % 9 + 1, gpus=2)
        assert one.loss(capacity, request) == other.loss(capacity, request)
        for mix in (one, other):
            mix.add(request)
            mix.count()
    assert one.state == other.state


# --- in the ledger ----------------------------------------------------------------------------------------------------


def submit(ledger: Ledger, *requests: Request) -> None:
    for request in requests:
        name = f"j{len(ledger.state.jobs)}"
        ledger.handle(JobsSubmitted(1, (job(name, request),)), 1.0)
    ledger.settle(1.0)
    ledger.check()


def test_a_request_goes_where_the_others_lose_least() -> None:
    ledger = Ledger()
    join(ledger, facts("wide", cores=16, gpus=2))
    join(ledger, facts("poor", cores=2, gpus=1))
    ledger.state.index.mix = mixed(asks(1000, cpu=4000))
    submit(ledger, asks(500, cpu=1000))
    assert ledger.state.jobs["j0"].node == "poor", "the GPU of that node is of no use to those of the mix"
    verdict = why(ledger.state, "j0", None, 1.0).verdicts[0]
    assert verdict.scores["fragmentation"] == 1.0 and verdict.confidence > 0.8


def test_what_is_kept_of_a_node_goes_when_its_capacity_changes() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=16, gpus=2))
    mix = ledger.state.index.mix = mixed(*[asks(1000, cpu=4000), asks(250)] * COUNTED_AT_ONCE)
    submit(ledger, asks(250))
    assert not mix.known("n1"), "it was kept for the placement, which made it out of date"
    submit(ledger, asks(500), asks(250))
    assert [one.node for one in ledger.state.jobs.values()] == ["n1"] * 3


def test_what_is_kept_of_a_node_is_not_said_of_another_capacity() -> None:
    mix = mixed(asks(1000, cpu=4000))
    ledger = Ledger()
    join(ledger, facts("n1", cores=16, gpus=2))
    node = ledger.state.nodes["n1"]
    assert node.capacity is not None
    other = room_of(cores=4, gpus=2)
    assert mix.losses([(node, node.capacity)], asks(500, cpu=1000)) == [1.0]
    assert mix.losses([(node, other), (node, node.capacity)], asks(500, cpu=1000)) == [1.75, 1.0]
    assert mix.known("n1") == {asks(500, cpu=1000).resources: 1.0}


def test_jobs_that_come_are_counted_and_questions_are_not() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", gpus=1))
    submit(ledger, asks(250), asks(0))
    before = ledger.state.index.mix.state
    assert before.requests == 1
    assert isinstance(place(ledger.state.nodes, ledger.state.index, asks(500), ledger.state.policy), Placement)
    assert ledger.state.index.mix.state == before


def test_a_ledger_that_goes_on_from_a_checkpoint_has_the_same_mix() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", gpus=1))
    submit(ledger, asks(250), asks(500), asks(1000, gpu_model="T4"))
    assert ledger.state.index.mix.state.requests >= 2
    assert resumed(ledger).state.index.mix.state == ledger.state.index.mix.state


def test_a_gang_has_a_member_on_the_node_that_was_named_whatever_others_lose() -> None:
    ledger = Ledger()
    join(ledger, facts("wide", cores=16, gpus=2))
    for name in ("poor1", "poor2"):
        join(ledger, facts(name, cores=2, gpus=1))
    ledger.state.index.mix = mixed(asks(1000, cpu=4000))
    wanted = msgspec.structs.replace(asks(500), nodes=("wide",), gang=2)
    found = gang_places(ledger.state.nodes, ledger.state.index, wanted, ledger.state.policy)
    assert not isinstance(found, Refusal) and found[0].node == "wide"
