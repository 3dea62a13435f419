"""Which node of Ray is on which of ours, and what of it others use. Asking a real one: tests/ray/test_placing.py."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.model import Node, OnRay
from distributed_grid.coordinator.ray.reservations import matched
from distributed_grid.protocol.boosts import LABEL
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts


def shown(id: str, ip: str = "192.0.2.9", **more: Any) -> dict[str, Any]:
    """A node as Ray tells of it."""
    blank: dict[str, Any] = {"name": "", "host": "elsewhere", "labels": {}, "status": "idle"}
    free = {"total": {"CPU": 4.0}, "available": {"CPU": 4.0}, "ours": {"CPU": 0.0, "GPU": 0.0, "memory": 0.0}}
    return {"id": id, "ip": ip, **blank, **free, **more}


def found(*told: dict[str, Any], address: str = "192.0.2.7") -> str:
    """The node of Ray that is on lab1; empty: none."""
    on = matched({"lab1": Node(facts("lab1", address=address))}, told).get("lab1")
    return on.id if on is not None else ""


LABELLED = shown("label", labels={"grid-node": "lab1"})
NAMED = shown("name", name="lab1")
THERE = shown("address", ip="192.0.2.7")


@pytest.mark.parametrize(
    ("told", "which"),
    [
        ((THERE, NAMED, LABELLED), "label"),
        ((THERE, NAMED), "name"),
        ((THERE, shown("other")), "address"),
        ((shown("other", host="lab1"),), ""),
        ((shown("other", ip="192.0.2.7", labels={"grid-node": "lab2"}),), ""),
        ((shown("lent", ip="192.0.2.7", labels={LABEL: "j-1"}), THERE), "address"),
        ((shown("leaves", ip="192.0.2.7", status="draining"),), ""),
        ((), ""),
    ],
)
def test_a_label_comes_before_a_name_and_that_before_an_address(told: tuple[dict[str, Any], ...], which: str) -> None:
    assert found(*told) == which


def test_an_agent_on_our_own_machine_is_found_by_that_machines_name() -> None:
    for address in ("127.0.0.1", "::1", ""):
        assert found(shown("here", host="lab1"), shown("there"), address=address) == "here"


def test_what_others_use_is_what_is_gone_and_not_reserved_for_our_jobs() -> None:
    told = shown(
        "label",
        labels={"grid-node": "lab1"},
        total={"CPU": 4.0, "GPU": 2.0, "memory": 8e9, "node:192.0.2.9": 1.0},
        available={"CPU": 1.0, "GPU": 1.0, "memory": 7e9},
        ours={"CPU": 0.5, "GPU": 0.0, "memory": 1e9},
    )
    assert matched({"lab1": Node(facts("lab1"))}, [told]) == {
        "lab1": OnRay("label", Resources(4000, 8_000_000_000, 2000), Resources(2500, 0, 1000))
    }
