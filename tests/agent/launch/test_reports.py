"""What a supervisor says, as the agent takes it and the coordinator is told."""

from distributed_grid.agent.launch.reports import REPORTS, SupervisorReport, frozen
from distributed_grid.agent.supervisor.job import OWNER, READER
from distributed_grid.protocol.messages import AwaitsReader, Suspended


def test_a_report_has_what_was_said_and_ignores_what_a_newer_supervisor_says_as_well() -> None:
    said = REPORTS.decode(b'{"id":"j.1","op":"exited","outcome":{"cause":"exited","code":3},"new":1}')
    assert said.id == "j.1" and said.outcome is not None and said.outcome.code == 3


def test_a_freeze_is_told_by_who_it_is_for() -> None:
    said = SupervisorReport("j.1", "frozen", cause=OWNER, why="he types", lasted=2.0, in_all=5.0)
    assert frozen(said) == Suspended(allocation="j.1", why="he types", lasted=2.0, in_all=5.0)
    said = SupervisorReport("j.1", "frozen", cause=READER, why="far behind", lasted=2.0)
    assert frozen(said) == AwaitsReader(allocation="j.1", why="far behind", lasted=2.0)
