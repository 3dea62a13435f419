"""What a node has to say of an allocation goes to the events of its job."""

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import MessageReceived, RecordJob
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.messages import Noted
from tests.coordinator.core.lifecycle.test_attempts_retries import CORE, running
from tests.coordinator.core.scene import step

TEXT = "something of it lives 5 s after SIGKILL (process 7 in state D)"


def test_it_is_a_line_of_the_jobs_story_once_and_no_change_of_its_state() -> None:
    ledger = running(Request(CORE))
    out = step(ledger, MessageReceived("n1", Noted(allocation="j.1", text=TEXT)), 5.0)
    assert [one for one in out if isinstance(one, RecordJob)]
    again = step(ledger, MessageReceived("n1", Noted(allocation="j.1", text=TEXT)), 6.0)
    view = views.job(ledger.state, "j")
    assert view is not None and view.state is State.RUNNING
    assert [line.text for line in view.story if TEXT in line.text] == [f"n1: {TEXT}"] and again == []


def test_what_a_node_says_of_what_is_not_its_own_is_not_heard() -> None:
    ledger = running(Request(CORE))
    assert step(ledger, MessageReceived("n1", Noted(allocation="j.2", text=TEXT)), 5.0) == []
