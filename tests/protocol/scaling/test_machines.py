"""The law of the states of machines: what is on its way comes to an end, and what is over stays so."""

from distributed_grid.protocol.scaling.machines import MACHINE_MOVES, OVER, Machine, MachineState


def test_every_state_leads_to_one_that_is_over() -> None:
    def reaches(state: MachineState, seen: frozenset[MachineState]) -> bool:
        others = MACHINE_MOVES[state] - seen
        return state in OVER or any(reaches(other, seen | {state}) for other in others)

    assert set(MACHINE_MOVES) == set(MachineState)
    assert all(reaches(state, frozenset()) for state in MachineState)


def test_nothing_comes_after_the_end() -> None:
    assert {state for state, to in MACHINE_MOVES.items() if not to} == OVER


def test_a_machine_whose_creation_is_unanswered_is_not_forgotten() -> None:
    to = MACHINE_MOVES[MachineState.CREATING]
    assert MachineState.GONE not in to and MachineState.ENDING in to


def test_a_machine_is_sure_only_when_every_call_was_answered() -> None:
    one = Machine(name="a-1-1", pool="a", provider="process", calls=2, answered=0b10)
    assert one.live and not one.sure
    assert Machine(name="a-1-1", pool="a", provider="process", calls=2, answered=0b11).sure
