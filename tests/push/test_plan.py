"""What is decided for a host, by what was found there and what the coordinator knows."""

from typing import Any

import msgspec
import pytest

from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.push.plan import (
    AWAIT,
    BRING,
    DISK,
    ENTER,
    RUN,
    START,
    STEPS,
    Found,
    Known,
    Plan,
    Target,
    decide,
    judge,
    parse_target,
)

BARE = Found(
    hostname="lab1",
    name="lab1",
    user="ann",
    root=False,
    python="3.11.7",
    machine="x86_64",
    system="Linux",
    disk_free=DISK,
    service="user",
    linger=True,
    state_dir="/s",
)
NODE = msgspec.structs.replace(BARE, builds=("1-a",), current="1-a", grid="g", agent=7, running="1-a", state_there=True)
STRANGER = Known("g")
UP = Known("g", there=True, up=True, incarnation=3, certified=True)


def found(base: Found, **changes: Any) -> Found:
    return msgspec.structs.replace(base, **changes)


def test_a_bare_host_goes_all_the_way() -> None:
    assert decide(BARE, STRANGER, "1-a") == Plan(STEPS)


def test_what_is_installed_already_is_not_copied_again() -> None:
    assert decide(found(BARE, builds=("1-a",)), STRANGER, "1-a").steps == (*ENTER, *RUN)


def test_a_node_with_this_version_that_is_up_needs_nothing() -> None:
    plan = decide(NODE, UP, "1-a")
    assert (plan, plan.verb) == (Plan(()), "unchanged")


def test_a_node_with_another_version_gets_this_one_and_keeps_its_identity() -> None:
    plan = decide(NODE, UP, "2-b")
    assert (plan.steps, plan.verb) == ((*BRING, *RUN), "upgraded")


def test_an_agent_that_still_runs_the_version_before_is_started_again() -> None:
    assert decide(found(NODE, running="0-z"), UP, "1-a").steps == RUN


@pytest.mark.parametrize("of", [found(NODE, agent=0, running=""), NODE])
def test_a_node_whose_agent_is_not_heard_has_it_started_again(of: Found) -> None:
    plan = decide(of, UP._replace(up=of.agent == 0), "1-a")
    assert (plan.steps, plan.verb) == ((START, AWAIT), "started")


def test_a_node_whose_certificate_was_taken_back_joins_anew() -> None:
    plan = decide(NODE, UP._replace(certified=False), "1-a")
    assert plan.steps == (*ENTER, *RUN)
    assert "joins anew" in plan.notes[0]


@pytest.mark.parametrize("known", [UP, UP._replace(certified=False), Known("g", certified=True)])
def test_a_name_that_another_machine_has_is_not_taken_from_it(known: Known) -> None:
    with pytest.raises(GridError, match="there is a node lab1 already, which is not lab1"):
        decide(BARE, known, "1-a")


def test_a_node_of_another_grid_is_left_to_it() -> None:
    with pytest.raises(GridError, match=r"is a node of another grid \(h\)"):
        decide(found(NODE, grid="h"), STRANGER, "1-a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"disk_free": DISK - 1}, "too little room"),
        ({"unreached": "connection refused"}, "cannot reach the coordinator at m:7433"),
        ({"foreign": "/etc/x.service"}, "has an agent already"),
        ({"lacks": "ensurepip"}, "cannot make environments"),
        ({"system": "Darwin"}, "runs Darwin"),
    ],
)
def test_a_host_that_cannot_be_a_node_is_refused_with_the_reason(change: dict[str, object], said: str) -> None:
    judge(BARE, "m:7433")
    with pytest.raises(GridError, match=said):
        judge(found(BARE, **change), "m:7433")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"root": True, "service": "system"}, "will run as root"),
        ({"service": "none"}, "runs no systemd"),
    ],
)
def test_what_one_should_know_of_a_host_is_said(change: dict[str, object], said: str) -> None:
    (note,) = decide(found(BARE, **change), STRANGER, "1-a").notes
    assert said in note


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("lab1", Target("lab1")),
        ("ann@lab1.example.org", Target("lab1.example.org", "ann")),
        ("ann@lab1:2222", Target("lab1", "ann", 2222)),
        ("ann@[::1]:2222", Target("::1", "ann", 2222)),
    ],
)
def test_hosts_are_written_as_for_ssh(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(str(target)) == target


@pytest.mark.parametrize("text", ["", "@lab1", "-oProxyCommand=x", "a@-x", "lab1/x", "lab1:99999", "two words"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="names no host"):
        parse_target(text)
