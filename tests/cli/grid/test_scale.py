"""`grid scale` as people and programs see it."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.main import main
from distributed_grid.protocol.messages import Done, OrderScaling, PoolView, ScalingStatus
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.plans import Create, DrainCause, DrainMachine, NotDone, ScaleOrder, ScalePlan
from distributed_grid.protocol.scaling.pools import Billing, Pool, ScalingMode, Shape

NOW = 1e9
POOL = Pool(name="burst", provider="aws", shapes=(Shape(type="x", resources=Resources(4000, 8 * GIB), price=0.5),))
LIVE = Machine(
    name="burst-1-2", pool="burst", provider="aws", type="x", state=MachineState.JOINED, born=NOW - 3600,
    since=NOW - 60,
    resources=Resources(4000, 8 * GIB), price=0.5, text="its agent has joined",
)  # fmt: skip
GONE = replace(
    LIVE, name="burst-1-1", state=MachineState.GONE, joined=NOW - 3540, over=NOW - 1800, text="without jobs for 10m00s"
)
PLAN = ScalePlan(
    at=NOW,
    creates=(
        Create(pool="burst", provider="aws", type="x", resources=Resources(4000, 8 * GIB), price=0.5, why="it waits"),
    ),
    drains=(DrainMachine(machine="burst-1-2", pool="burst", cause=DrainCause.IDLE, why="without jobs for 10m00s"),),
    not_done=(NotDone(what="8 cpu for bob", code="no-pool", why="lends 4 cpu at the most"),),
    workers=1,
    rate=0.5,
    spent=1.25,
)
STATUS = ScalingStatus(
    id=1, mode=ScalingMode.PLAN, now=NOW, pools=(PoolView(pool=POOL, paused="by op", boots={"x": (30.0, 45.0)}),),
    machines=(LIVE, GONE), plan=PLAN, limits="20 machines",
)  # fmt: skip


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(answer: Any, *words: str) -> tuple[Result, list[Any]]:
        asked: list[Any] = []

        def ask(self: Invocation, request: Any) -> Any:
            asked.append(request(1))
            return answer

        monkeypatch.setattr(Invocation, "ask", ask)
        return CliRunner().invoke(main, list(words)), asked

    return run


def test_the_plan_says_what_would_be_done_and_what_not_with_reasons(grid: Any) -> None:
    done, _ = grid(STATUS, "scale", "plan")
    assert done.exit_code == 0
    for part in (
        "create  burst x (4 cpu, 8G memory, 0.5 an hour): it waits",
        "end     burst-1-2 when it is empty: without jobs for 10m00s",
        "not     8 cpu for bob: lends 4 cpu at the most",
        "1 machine now, 0.5 an hour, 1.25 spent today; limits: 20 machines",
        "scaling.mode is plan: nothing of this is done; grid scale apply does it once",
    ):
        assert part in done.output, done.output


def test_the_status_names_pools_and_machines_that_are_there(grid: Any) -> None:
    done, _ = grid(STATUS, "scale", "status")
    assert "burst  aws       1      0-10     x 30-45 s  paused by op" in done.output, done.output
    assert "burst-1-2" in done.output and "burst-1-1" not in done.output
    done, _ = grid(STATUS, "-o", "json", "scale", "status")
    said = json.loads(done.output)
    assert [(one["name"], one["state"], one["cost"]) for one in said["machines"]] == [("burst-1-2", "joined", 0.5)]


def test_programs_get_every_key_and_cores_as_numbers_in_the_plan_and_of_pools(grid: Any) -> None:
    done, _ = grid(STATUS, "-o", "json", "scale", "plan")
    plan = json.loads(done.output)["plan"]
    assert plan["creates"][0] == {
        "pool": "burst", "provider": "aws", "type": "x", "zone": "", "price": 0.5, "life": 0.0, "serves": 0, "jobs": [],
        "resources": {"cpu": 4.0, "memory": 8 * GIB, "gpu": 0.0}, "why": "it waits",
    }  # fmt: skip
    assert (plan["drains"][0]["cause"], plan["not_done"][0]["jobs"], plan["utilisation"]) == ("idle", [], None)
    done, _ = grid(replace(STATUS, plan=ScalePlan(at=NOW)), "-o", "json", "scale", "plan")
    quiet = json.loads(done.output)["plan"]
    assert [quiet[what] for what in ("creates", "drains", "returns", "not_done", "workers")] == [[], [], [], [], 0]
    done, _ = grid(STATUS, "-o", "json", "scale", "status")
    pool = json.loads(done.output)["pools"][0]
    assert (pool["refused"], pool["trouble"], pool["pool"]["spot"]) == ([], "", False)
    assert pool["pool"]["shapes"][0]["resources"] == {"cpu": 4.0, "memory": 8 * GIB, "gpu": 0.0}


def test_history_counts_machines_that_ran_no_job(grid: Any) -> None:
    done, _ = grid(STATUS, "scale", "history")
    assert "burst-1-1  x     gone   1m00s  30m00s  0.250  no" in done.output, done.output
    assert "1 machine; 1 joined and ran no job, which cost 0.25" in done.output


def test_history_counts_begun_hours_where_they_are_paid_and_nothing_for_a_machine_that_was_refused(grid: Any) -> None:
    by_hour = PoolView(pool=replace(POOL, billing=Billing.HOUR))
    refused = replace(GONE, name="burst-1-3", state=MachineState.FAILED, joined=0.0)
    done, _ = grid(replace(STATUS, pools=(by_hour,), machines=(GONE, refused)), "-o", "json", "scale", "history")
    assert [one["cost"] for one in json.loads(done.output)["machines"]] == [0.5, 0.0]


def test_a_grid_without_pools_says_so(grid: Any) -> None:
    for what in ("plan", "status"):
        done, _ = grid(ScalingStatus(1, ScalingMode.PLAN, NOW), "scale", what)
        assert done.output == "no pool of machines is configured: pools, docs/scaling.md\n"


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("apply",), OrderScaling(1, ScaleOrder.APPLY)),
        (("pause", "burst", "--reason", "audit"), OrderScaling(1, ScaleOrder.PAUSE, "burst", "audit")),
        (("resume",), OrderScaling(1, ScaleOrder.RESUME)),
    ],
)
def test_orders_go_to_the_coordinator(grid: Any, words: tuple[str, ...], order: OrderScaling) -> None:
    done, asked = grid(Done(1, "so be it"), "scale", *words)
    assert done.exit_code == 0 and asked == [order] and "so be it" in done.stderr


@pytest.mark.parametrize("what", ["apply", "pause", "resume"])
def test_an_empty_name_is_not_taken_for_all_pools(grid: Any, what: str) -> None:
    """As of a variable of the shell that is not set."""
    done, asked = grid(Done(1, "so be it"), "scale", what, "")
    assert done.exit_code != 0 and asked == []
    assert "the name of the pool is empty" in done.output + done.stderr
