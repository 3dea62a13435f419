"""`grid shared-status` says what is offered and what is lent."""

import pytest
from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.shared import _shared_json, _show_shared
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Shared
from distributed_grid.protocol.nodes import AllocationView, NodeState, OfferView
from distributed_grid.protocol.resources import Grant, Resources


def test_shared_status_says_what_a_job_that_does_not_go_on_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    held = AllocationView(
        id="j.1", job="j", user="ann", node="n1", state=State.RUNNING, grant=Grant((1,)), priority="normal", since=1.0
    )
    both = replace(held, suspended="foreign CPU 87 %", awaits_reader="257M of stdout unread")
    answer = Shared(1, (), (held, replace(held, awaits_reader="257M of stdout unread"), both))
    _show_shared(Invocation(), answer, "allocations")
    reader = "waits for the reader of its output (257M of stdout unread)"
    first, second, third = capsys.readouterr().out.splitlines()[2:]
    assert " running " in first and f" {reader} " in second
    assert f" suspended: the owner is back (foreign CPU 87 %); {reader} " in third
    told = [(one["suspended"], one["awaits_reader"]) for one in _shared_json(answer)["allocations"]]
    assert told == [(None, None), (None, "257M of stdout unread"), ("foreign CPU 87 %", "257M of stdout unread")]


def test_offers_show_how_likely_the_node_stays_idle_where_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    offers = tuple(OfferView(node=name, state=NodeState.UP, room=Resources(), total=Resources()) for name in ("a", "b"))
    answer = Shared(1, offers, (), lasting={"a": 0.823})
    _show_shared(Invocation(), answer, "offers")
    header, first, second = capsys.readouterr().out.splitlines()[1:]
    at = header.index("LASTS 2H")
    assert first[at:].split()[:2] == ["82", "%"] and second[at:].split()[0] == "-"
    assert [one["lasts_2h"] for one in _shared_json(answer)["offers"]] == [0.823, None]
