"""What Ray tells becomes what a pass looks at: shapes, who may lend, and passes in time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import BalancingRequested, DemandReported, Event
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.rebalancing.view import Waiting
from distributed_grid.coordinator.ray.balancing import Balancer, waiting
from distributed_grid.coordinator.ray.bridge_client import NoRay
from distributed_grid.protocol.boosts import RayAuth
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode
from tests.coordinator.core.rebalancing.test_stays import BEGAN, Grid
from tests.coordinator.core.scene import facts, join, step


def node(name: str = "head", **more: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": name, "ip": "192.0.2.9", "name": name, "host": name, "port": 1, "head": name == "head",
        "status": "running", "labels": {}, "total": {"CPU": 2.0}, "available": {"CPU": 0.5}, "idle": 0.0,
    }  # fmt: skip
    return {**known, **more}


def waits(*demand: dict[str, Any], own: str = "boost_head") -> tuple[Waiting, ...]:
    return waiting({"nodes": [node()], "demand": list(demand)}, own)


def test_tasks_are_told_by_their_shape_and_whether_a_node_could_ever_hold_one() -> None:
    small, large = waits({"count": 3, "shape": {"CPU": 1.0}}, {"count": 1, "shape": {"CPU": 4.0, "memory": 2.0 * GIB}})
    assert small == Waiting("1 CPU", Resources(MILLI), 3)
    assert large == Waiting("4 CPU, 2G memory", Resources(4 * MILLI, 2 * GIB), 1, fits=False)


def test_groups_say_that_their_bundles_belong_together_and_of_those_alike_the_first_is_told() -> None:
    group = {"count": 2, "shape": {"CPU": 1.0}, "group": True, "apart": True}
    assert waits(group, {**group, "count": 5}) == (
        Waiting("1 CPU, in one group, apart", Resources(MILLI), 2, group=True, apart=True),
    )


@pytest.mark.parametrize(
    ("demand", "odd"),
    [
        ({"count": 1, "shape": {"CPU": 1.0, "TPU": 4.0}}, "it asks for TPU, which no boost brings"),
        ({"count": 1, "shape": {"CPU": 1.0}, "labels": True}, "it asks for labels of its node"),
        ({"count": 1, "shape": {}}, "it asks for no core, GPU or memory, and so does not wait for room"),
        ({"count": 1, "shape": {"CPU": 1e300}}, "it asks for an impossible amount"),
    ],
)
def test_what_no_boost_can_serve_is_told_with_the_reason(demand: dict[str, Any], odd: str) -> None:
    (one,) = waits(demand)
    assert one.odd == odd


def test_who_insists_on_a_boost_of_this_target_asks_for_cores_of_one() -> None:
    (one,) = waits({"count": 1, "shape": {"CPU": 1.0, "boost_head": 2.0}})
    assert (one.each, one.odd, one.fits) == (Resources(2 * MILLI), "", False)


class Bridge:
    """Answers as the bridge does."""

    address = "192.0.2.9:6379"

    def __init__(self) -> None:
        self.asked = 0
        self.trouble: NoRay | None = None

    async def ask(self, what: str, **_: Any) -> Any:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        if what == "cluster":
            return {"ray": "2.60.0", "python": "3.11.7"}
        boost = node("j-boost", labels={"grid-boost": "j-boost"}, idle=12.5, total={"CPU": 1.0}, available={"CPU": 1.0})
        return {"nodes": [node(), boost, node("lab1")], "demand": [{"count": 1, "shape": {"CPU": 4.0}}]}


def balancer(bridge: Bridge | None, put: Callable[[Event], None], mode: OffloadingMode, *nodes: str) -> Balancer:
    ledger = Ledger(policy=Policy(balancing=Balancing(mode=mode, interval=0.01)))
    for name in nodes:
        join(ledger, facts(name, address="192.0.2.7"))
    ids = lambda count: [f"j-{at}" for at in range(count)]  # noqa: E731
    return Balancer(ledger.state, bridge, RayAuth.DISABLED, put, ids)  # type: ignore[arg-type]


async def test_a_look_has_the_target_the_amounts_the_members_and_what_is_idle() -> None:
    look = await balancer(Bridge(), print, OffloadingMode.DYNAMIC_BALANCING, "lab1", "lab2").look()
    assert (look.target, look.members) == ("head", ("lab1",))
    assert (look.total, look.used) == (Resources(5 * MILLI), Resources(3 * MILLI))
    assert (look.idle, look.ray) == ({"j-boost": 12.5}, "2.60.0")
    on_head = await balancer(Bridge(), print, OffloadingMode.DYNAMIC_BALANCING, "head").look()
    assert (on_head.target, on_head.members) == ("head", ("head",))


async def test_each_interval_tells_the_ledger_what_waits_or_why_that_is_not_known() -> None:
    events: asyncio.Queue[Event] = asyncio.Queue()
    bridge = Bridge()
    passing = balancer(bridge, events.put_nowait, OffloadingMode.SHARE_AND_OFFLOAD)
    passing.begin()
    async with asyncio.timeout(10):
        first = await events.get()
        bridge.trouble = NoRay("there is no Ray", why="it is away")
        while (event := await events.get()) != DemandReported(None, trouble="there is no Ray: it is away"):
            assert isinstance(event, DemandReported) and event.look is not None
    await passing.close()
    assert isinstance(first, DemandReported) and first.look is not None
    assert first.ids == tuple(f"j-{at}" for at in range(8))


async def test_a_mode_that_is_set_while_ray_is_asked_decides_what_becomes_of_the_answer() -> None:
    """The answer is an event of its own, so that no pass is decided by an order and done by another."""
    bridge, asked, answers, done = Bridge(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    asks = bridge.ask

    async def slowly(what: str, **words: Any) -> Any:
        told = await asks(what, **words)
        asked.set()
        await answers.wait()
        return told

    bridge.ask = slowly  # type: ignore[method-assign]

    def put(event: Event) -> None:
        step(ledger, event, 1001.0)
        done.set()

    ledger = Ledger(policy=Policy(balancing=Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, interval=0.01)))
    passing = Balancer(ledger.state, bridge, RayAuth.DISABLED, put, lambda count: ["j-one"])  # type: ignore[arg-type]
    passing.begin()
    async with asyncio.timeout(10):
        await asked.wait()
        assert ledger.state.balancing.last is None
        step(ledger, BalancingRequested(1, mode=OffloadingMode.SHARE_AND_OFFLOAD, by="op"), 1000.0)
        answers.set()
        await done.wait()
    await passing.close()
    last = ledger.state.balancing.last
    assert last is not None and not last.applied and not ledger.state.jobs


async def test_ray_is_not_asked_where_jobs_alone_run_elsewhere_nor_where_there_is_none() -> None:
    bridge, events = Bridge(), list[Event]()
    passing = balancer(bridge, events.append, OffloadingMode.OFFLOAD_ONLY)
    passing.begin()
    await asyncio.sleep(0.05)  # five intervals: what does not happen cannot be awaited
    await passing.close()
    assert not bridge.asked and not events
    nowhere = balancer(None, events.append, OffloadingMode.DYNAMIC_BALANCING)
    nowhere.begin()
    assert nowhere.address == ""
    with pytest.raises(NoRay, match="knows of no Ray cluster"):
        await nowhere.look()
    await nowhere.close()


async def test_without_ray_it_is_still_proposed_which_jobs_leave_and_why_nothing_else() -> None:
    grid = Grid(mode="share_and_offload")
    state = grid.state
    nowhere = Balancer(state, None, RayAuth.DISABLED, lambda event: None, lambda count: [])
    found = await nowhere.proposed(lambda: BEGAN + 600.0)
    assert [(one.kind, one.job) for one in found.moves] == [(MoveKind.LEAVE, "j-1")]
    assert "knows of no Ray cluster (set ray.address there)" in found.trouble
    assert not found.applied and state.balancing.last is None and state.jobs["j-1"].node == "lab1"
