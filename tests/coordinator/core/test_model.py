"""A job is in one phase, which has the data of that phase alone."""

from typing import get_args

import msgspec
import pytest

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import (
    PHASES,
    Active,
    Attempt,
    AwaitsHold,
    Condition,
    Earmark,
    Earmarked,
    Ended,
    EndKind,
    HeldBack,
    Job,
    MemberEnd,
    MemberEnded,
    Phase,
    Queued,
)
from distributed_grid.protocol.jobs import After, Cause, Outcome, Reason, Request, State, Suspension
from distributed_grid.protocol.resources import Grant, Resources
from tests.coordinator.core.scene import job

PLACE = Attempt("n1", Grant((0,)), 2.0, 1.5)
OK = Outcome(Cause.EXITED)
EXAMPLES: dict[type, Phase] = {
    Queued: Queued(reason=Reason("Resources", "needs 1 cpu")),
    HeldBack: HeldBack(after=(Condition("j-b", After.ENDED),)),
    Earmarked: Earmarked(earmark=Earmark("n1", Grant((0,)), 9.0)),
    AwaitsHold: AwaitsHold(reason=Reason("Hold", "1 cpu needed")),
    MemberEnded: MemberEnded(end=MemberEnd(3.0, EndKind.DONE, OK), attempt=PLACE),
    Active: Active(state=State.RUNNING, attempt=PLACE, suspended=Suspension(3.0, "busy")),
    Ended: Ended(outcome=OK, at=4.0, attempt=PLACE),
}


def one(phase: Phase) -> Job:
    made = job("j", Request(Resources(cpu=1000)))
    made.phase = phase
    return made


@pytest.mark.parametrize("kind", get_args(Phase))
def test_a_job_is_stored_with_its_phase(kind: type) -> None:
    before = one(EXAMPLES[kind])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=Job) == before


@pytest.mark.parametrize("kind", get_args(Phase))
def test_a_view_says_what_belongs_to_the_phase_and_no_more(kind: type) -> None:
    view = one(EXAMPLES[kind]).view(None)
    assert (view.node == "n1", view.started == 2.0) == (kind in (MemberEnded, Active, Ended),) * 2
    assert (view.outcome is not None, view.ended > 0) == (kind is Ended,) * 2
    assert (view.suspended is not None) is (kind is Active)
    assert bool(view.after) is (kind is HeldBack)


def test_each_phase_has_its_moves_and_only_these_are_made() -> None:
    assert set(PHASES) == set(get_args(Phase)) and set().union(*PHASES.values()) <= set(PHASES)
    for before, allowed in PHASES.items():
        for after in get_args(Phase):
            state, moved = Ledger().state, one(EXAMPLES[before])
            if after in allowed:
                state.become(moved, EXAMPLES[after])
                assert moved.phase is EXAMPLES[after]
            else:
                with pytest.raises(AssertionError, match=f"j cannot go from {before.__name__} to {after.__name__}"):
                    state.become(moved, EXAMPLES[after])
                assert moved.phase is EXAMPLES[before]


def test_only_who_holds_something_is_asked_for_it() -> None:
    assert one(EXAMPLES[Active]).active is EXAMPLES[Active]
    with pytest.raises(AssertionError, match="j is waiting and holds nothing"):
        _ = one(Queued()).active
