"""Fault points do what they are told, are where they are said to be, and cost nothing while nobody asks for them."""

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.runtime import faults
from distributed_grid.runtime.faults import ACTIONS, POINTS, BadFaults, Fault, fault, parse

ROOT = Path(__file__).parents[2]
ROOMS = ("coordinator", "agent")
COMMIT = "coordinator.commit"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let points that are made from now on find this in GRID_FAULTS."""
    return lambda text: monkeypatch.setattr(faults, "_ASKED", parse(text))


def passes(count: int) -> tuple[list[int], list[int]]:
    """Which of so many passes of a point were made, and which of them failed."""
    made: list[int] = []

    @fault(COMMIT)
    def step(number: int) -> int:
        made.append(number)
        return number

    failed = []
    for number in range(1, count + 1):
        try:
            assert step(number) in (number, None)
        except OSError:
            failed.append(number)
    return made, failed


# --- what may be asked ------------------------------------------------------------------------------------------------


def test_it_is_read_as_it_is_written() -> None:
    assert parse("") == parse(" , ") == {}
    assert parse("coordinator.commit:3:kill, agent.send.after:2+:delay=0.5,coordinator.commit:4-9:eio") == {
        "coordinator.commit": [Fault(3, 3, "kill", 0.0), Fault(4, 9, "eio", 0.0)],
        "agent.send.after": [Fault(2, float("inf"), "delay", 0.5)],
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("coordinator.comit:1:kill", "is it coordinator.commit?"),
        ("xyz:1:kill", "no fault point 'xyz'"),
        ("agent.send.before:1:kill", "no fault point"),
        ("coordinator.commit", "which pass"),
        ("coordinator.commit:0:kill", "which pass"),
        ("coordinator.commit:-1:kill", "which pass"),
        ("coordinator.commit:3-:kill", "which pass"),
        ("coordinator.commit:1", "the action is one of"),
        ("coordinator.commit:1:explode", "the action is one of kill, eio, enospc, erofs, delay, drop"),
        ("coordinator.commit:1:delay", "delay with =SECONDS"),
        ("coordinator.commit:1:kill=3", "delay with =SECONDS"),
        ("coordinator.commit:1:delay=soon", "'soon' is not a number"),
        ("coordinator.commit.after:1:eio", "kill or delay"),
        ("coordinator.commit.after:1:drop", "kill or delay"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(text: str, says: str) -> None:
    with pytest.raises(BadFaults) as caught:
        parse(text)
    assert says in str(caught.value) and repr(text) in str(caught.value)


def test_a_process_that_is_asked_for_nonsense_does_not_start() -> None:
    found = run("import distributed_grid.runtime.faults", "agent.sned:1:kill")
    assert found.returncode == 1
    assert found.stderr.startswith("error: GRID_FAULTS: ") and "agent.send" in found.stderr


def run(code: str, asked: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "GRID_FAULTS"}
    if asked:
        environment["GRID_FAULTS"] = asked
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)


# --- what happens -----------------------------------------------------------------------------------------------------


def test_without_being_asked_for_a_point_is_the_function_itself(asked: Callable[[str], None]) -> None:
    def step() -> None:
        pass

    asked("agent.send:1:kill")
    assert all(fault(name)(step) is step for name in POINTS if name != "agent.send")
    assert fault("agent.send")(step) is not step
    asked("agent.send.after:1:kill")
    assert fault("agent.send")(step) is not step


def test_a_point_that_is_not_in_the_list_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="coordinator.comit"):
        fault("coordinator.comit")


@pytest.mark.parametrize(
    ("which", "hit"),
    [("1", {1}), ("3", {3}), ("3+", {3, 4, 5, 6}), ("2-4", {2, 3, 4}), ("6-9", {6}), ("7", set())],
)
def test_passes_are_counted_from_one_and_ranges_include_both_ends(
    asked: Callable[[str], None], which: str, hit: set[int]
) -> None:
    asked(f"{COMMIT}:{which}:drop")
    made, failed = passes(6)
    assert made == sorted({1, 2, 3, 4, 5, 6} - hit) and failed == []
    asked(f"{COMMIT}:{which}:eio")
    made, failed = passes(6)
    assert made == sorted({1, 2, 3, 4, 5, 6} - hit) and failed == sorted(hit)


@pytest.mark.parametrize("action", ["eio", "enospc", "erofs"])
def test_errors_are_the_kernels_or_what_the_function_makes_of_them(asked: Callable[[str], None], action: str) -> None:
    asked(f"{COMMIT}:1+:{action}")

    @fault(COMMIT)
    def plain() -> None:
        raise AssertionError("it was called")

    @fault(COMMIT, error=lambda error: KeyError(error.errno))
    def of_its_own() -> None:
        raise AssertionError("it was called")

    number = getattr(errno, action.upper())
    with pytest.raises(OSError, match="GRID_FAULTS") as caught:
        plain()
    assert caught.value.errno == number
    with pytest.raises(KeyError, match=str(number)):
        of_its_own()


def test_a_delay_takes_its_time_and_the_call_is_made(asked: Callable[[str], None]) -> None:
    asked(f"{COMMIT}:2:delay=0.05,{COMMIT}.after:2:delay=0.05")
    began = time.monotonic()
    assert passes(3) == ([1, 2, 3], [])
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize(("name", "printed"), [("agent.send", "1\n"), ("agent.send.after", "1\n2\n")])
def test_kill_is_kill_9_before_the_call_or_after_it(name: str, printed: str) -> None:
    code = "from distributed_grid.runtime.faults import fault\n"
    code += "write = fault('agent.send')(lambda n: print(n, flush=True))\n"
    found = run(code + "for n in (1, 2, 3): write(n)", f"{name}:2:kill")
    assert (found.returncode, found.stdout) == (-signal.SIGKILL, printed)
    assert found.stderr == f"GRID_FAULTS {name}:2:kill\n"


# --- where they are ---------------------------------------------------------------------------------------------------


def test_every_point_is_in_the_source_once_and_in_the_room_it_is_named_after() -> None:
    found: dict[str, list[str]] = {}
    for file in itertools.chain.from_iterable((ROOT / room).rglob("*.py") for room in ROOMS):
        for line in file.read_text().splitlines():
            if line.strip().startswith("@fault("):
                found.setdefault(line.split('"')[1], []).append(str(file.relative_to(ROOT)))
    assert sorted(found) == sorted(POINTS)
    assert {name: places for name, places in found.items() if len(places) != 1} == {}
    for name, (place,) in found.items():
        room = {"coordinator": "coordinator/", "agent": "agent/", "supervisor": "agent/supervisor"}[name.split(".")[0]]
        assert place.startswith(room), f"{name} is in {place}"


def test_the_list_of_actions_is_whole(asked: Callable[[str], None]) -> None:
    def outcome(action: str) -> Any:
        asked(f"{COMMIT}:1:{action}{'=0' if action == 'delay' else ''}")
        return passes(1)

    assert {action: outcome(action) for action in ACTIONS if action != "kill"} == {
        "eio": ([], [1]),
        "enospc": ([], [1]),
        "erofs": ([], [1]),
        "delay": ([1], []),
        "drop": ([], []),
    }
