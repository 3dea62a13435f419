"""`grid resource-sharing status`, `grid policy` and `grid boost suggest` as people and programs see them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.main import main
from distributed_grid.protocol.messages import BalancingStatus, Done, SetBalancing, Suggestions
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.sharing.moves import Barred, Hint, LenderView, Move, MoveKind, Pass, Unserved
from distributed_grid.protocol.sharing.policies import Balancing, BalancingOrder, OffloadingMode, PolicyName
from distributed_grid.protocol.sharing.pressure import Pressure

LEND = Move(
    kind=MoveKind.LEND, source="lab1", target="head", resources=Resources(4000), boost="j-lent", asks="4 CPU", tasks=1,
    reason="1 task that asks for 4 CPU waits in Ray for 1m00s", undone_by="nothing of it used", gain=1200.0, cost=14.0,
    at=1e9,
)  # fmt: skip
PASS = Pass(
    at=1e9,
    target="head",
    applied=True,
    moves=(LEND,),
    unserved=(Unserved(asks="1 TPU", count=3, waited=90.0, why="it asks for TPU, which no boost brings"),),
    hints=(Hint(boost="j-idle", user="bob", text="idle for 20m00s; grid boost release j-idle"),),
)
BALANCING = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=PolicyName.AGGRESSIVE)
STATUS = BalancingStatus(
    id=1,
    balancing=BALANCING,
    configured=Balancing(mode=OffloadingMode.DYNAMIC_BALANCING),
    order=BalancingOrder(policy=PolicyName.AGGRESSIVE, since=1e9, by="op"),
    address="192.0.2.1:6379",
    last=PASS,
    recent=(LEND,),
    barred=(Barred(source="lab1", target="head", kind=MoveKind.GIVE_BACK, until=1e9, why="it has not joined yet"),),
    nodes=(
        LenderView(node="lab1", owner=Pressure(0.1, 0.1, 0.1), all=Pressure(0.6, 1.0, 0.2), excess=Resources(2000)),
        LenderView(node="lab2", why="it is drained"),
    ),
)


@contextmanager
def answered(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Iterator[list[Any]]:
    """The coordinator answers with this; what it was asked."""
    asked: list[Any] = []

    def ask(self: Invocation, make: Any) -> Any:
        asked.append(make(1))
        return answer

    monkeypatch.setattr(Invocation, "ask", ask)
    yield asked


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(answer: Any, *words: str) -> tuple[Result, list[Any]]:
        with answered(monkeypatch, answer) as asked:
            return CliRunner().invoke(main, list(words)), asked

    return run


def test_the_status_says_mode_policy_moves_with_reasons_and_the_pressure_of_each_node(grid: Any) -> None:
    done, _ = grid(STATUS, "resource-sharing", "status")
    assert done.exit_code == 0
    for part in (
        "mode dynamic_balancing (as configured): and the grid lends boosts by itself",
        "policy aggressive (order of op; configured: balanced), a pass every 30 s",
        "Ray at 192.0.2.1:6379, for head; the last pass was",
        "moves: 1 made",
        "j-lent: 1 task that asks for 4 CPU waits in Ray for 1m00s",
        "3      1 TPU  1m30s   it asks for TPU, which no boost brings",
        "! j-idle of bob: idle for 20m00s; grid boost release j-idle",
        "give-back  in 0.0s  it has not joined yet",
        "lab1  0.10   0.10  0.10    -    0.60     2 cpu  -",
        "lab2  -      -     -       -    -        -      it is drained",
    ):
        assert part in done.output, part


def test_the_status_for_programs_has_all_of_it(grid: Any) -> None:
    done, _ = grid(STATUS, "-o", "json", "resource-sharing", "status")
    said = json.loads(done.output)
    assert (said["mode"], said["policy"], said["order"]["by"]) == ("dynamic_balancing", "aggressive", "op")
    assert said["moves"][0]["reason"] == LEND.reason and said["last"]["waiting"][0]["count"] == 3
    assert said["nodes"][1] == {
        "node": "lab2", "owner": None, "all": None, "lends": {"cpu": 0.0, "memory": 0, "gpu": 0.0},
        "why": "it is drained",
    }  # fmt: skip
    done, _ = grid(STATUS, "-o", "quiet", "resource-sharing", "status")
    assert done.output == "j-lent\n"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"address": ""}, "this coordinator knows of no Ray cluster (set ray.address there)"),
        ({"address": "", "last": None}, "(set ray.address there), so nothing is lent by itself\n"),
        (
            {"address": "", "last": Pass(at=1e9, applied=True)},
            "so nothing is lent by itself; jobs may leave before owners come: the last pass was ",
        ),
        ({"last": None}, "Ray at 192.0.2.1:6379; there was no pass yet"),
        ({"last": Pass(at=1e9, trouble="it is away")}, "Ray at 192.0.2.1:6379 cannot be asked: it is away"),
    ],
)
def test_the_status_says_why_nothing_is_decided(grid: Any, changed: dict[str, Any], said: str) -> None:
    done, _ = grid(replace(STATUS, **changed), "resource-sharing", "status")
    assert said in done.output


def test_a_policy_is_shown_with_what_each_number_trades(grid: Any) -> None:
    done, _ = grid(STATUS, "policy", "show")
    assert "mode dynamic_balancing (as configured)" in done.output
    assert "policy aggressive (order of op; configured: balanced)" in done.output
    assert "min_hold    1m00s  time from a move until its reverse is allowed" in done.output
    done, _ = grid(STATUS, "policy", "show", "conservative")
    assert done.output.startswith("policy conservative\n") and "15m00s" in done.output


def test_two_policies_are_compared_by_the_numbers_that_differ(grid: Any) -> None:
    done, _ = grid(STATUS, "policy", "diff", "balanced")
    assert "SETTING     AGGRESSIVE  BALANCED" in done.output and "moves       8           2" in done.output
    done, _ = grid(STATUS, "policy", "diff", "balanced", "predictive")
    assert "horizon  -         30m00s      jobs that may run" in done.output and done.output.count("\n") == 3
    assert "slack    no        yes         unused cores" in done.output
    done, _ = grid(STATUS, "policy", "diff", "balanced", "balanced")
    assert done.output == "balanced and balanced do not differ\n"


def test_what_is_set_goes_to_the_coordinator(grid: Any) -> None:
    done, asked = grid(Done(1, "policy conservative"), "policy", "set", "conservative", "--mode", "offload-only")
    assert asked == [SetBalancing(1, OffloadingMode.OFFLOAD_ONLY, PolicyName.CONSERVATIVE, False)]
    assert done.exit_code == 0 and "policy conservative" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set",), "nothing to set"),
        (("set", "agressive"), "did you mean aggressive?"),
        (("set", "--mode", "all"), "there is no mode 'all'"),
        (("diff", "calm"), "there is no policy 'calm'"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(grid: Any, words: tuple[str, ...], said: str) -> None:
    done, _ = grid(STATUS, "policy", *words)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.output


def test_a_suggestion_comes_with_the_command_that_does_it_where_the_grid_does_not(grid: Any) -> None:
    shared = Suggestions(1, Balancing(), PASS)
    done, _ = grid(shared, "boost", "suggest")
    assert "lab1: 1 task that asks for 4 CPU waits in Ray for 1m00s; undone by: nothing of it used" in done.output
    assert "  grid boost request head cpu 4 --only-source lab1\n" in done.output
    assert "it asks for TPU, which no boost brings" in done.output
    done, _ = grid(Suggestions(1, BALANCING, PASS), "boost", "suggest")
    assert "grid boost request" not in done.output
    done, _ = grid(shared, "-o", "json", "boost", "suggest")
    assert json.loads(done.output)["moves"][0]["source"] == "lab1"
    done, _ = grid(Suggestions(1, Balancing(), Pass(at=1.0)), "boost", "suggest")
    assert done.output == "no moves\n"


@pytest.mark.parametrize(
    ("resources", "command"),
    [
        (Resources(2000, 0, 2000), "grid boost request head gpu 2 --only-source lab1\n"),
        (Resources(1000, 2 * GIB + (512 << 20)), "grid boost request head memory 2 --only-source lab1\n"),
        (Resources(4000, 0, 1000), ""),
    ],
)
def test_only_what_a_request_can_say_is_given_as_a_command(grid: Any, resources: Resources, command: str) -> None:
    found = Pass(at=1.0, moves=(replace(LEND, resources=resources),))
    done, _ = grid(Suggestions(1, Balancing(), found), "-o", "quiet", "boost", "suggest")
    assert done.output == command
    back = Pass(at=1.0, moves=(replace(LEND, kind=MoveKind.GIVE_BACK),))
    done, _ = grid(Suggestions(1, Balancing(), back), "-o", "quiet", "boost", "suggest")
    assert done.output == "grid boost release j-lent\n"
