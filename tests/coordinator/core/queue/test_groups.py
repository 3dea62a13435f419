"""Arrays: made whole, let go few at a time, ended together."""

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Accepted,
    CancelRequested,
    Command,
    Granted,
    JobsSubmitted,
    MessageReceived,
    RecordGroup,
    RecordJob,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Group
from distributed_grid.protocol.groups import GroupKind, count, parse_array
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Launch, Started, Stop
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, step

CPU = Request(resources=Resources(cpu=1000))


def submitted(text: str, name: str = "j-a", max_fails: int | None = None, request: Request = CPU) -> JobsSubmitted:
    template = job(name, request, env={"A": "1"})
    array = parse_array(text, max_fails)
    group = Group(
        id=name,
        key=template.key,
        user=template.user,
        kind=GroupKind.ARRAY,
        spec=template.spec,
        request=request,
        submitted=0.0,
        count=count(array.parts),
        array=array,
    )
    return JobsSubmitted(1, (template,), (group,))


def ledger_with(cores: int = 4) -> Ledger:
    ledger = Ledger()
    join(ledger, facts("n1", cores))
    return ledger


def launched(out: list[Command]) -> list[str]:
    return [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]


def ended(ledger: Ledger, allocation: str, code: int = 0, now: float = 5.0) -> list[Command]:
    step(ledger, MessageReceived("n1", Started(allocation=allocation)), now)
    return step(
        ledger,
        MessageReceived("n1", Exited(allocation=allocation, outcome=Outcome(cause=Cause.EXITED, code=code))),
        now,
    )


def test_an_array_is_made_whole_in_one_answer() -> None:
    ledger = ledger_with(cores=2)
    out = step(ledger, submitted("1-9:4"), 1.0)
    assert [one.jobs for one in out if isinstance(one, Accepted)] == [("j-a",)]
    assert [one.job.id for one in out if isinstance(one, RecordJob) and one.new] == ["j-a_1", "j-a_5", "j-a_9"]
    assert [one.group.count for one in out if isinstance(one, RecordGroup)] == [3]
    assert launched(out) == ["j-a_1.1", "j-a_5.1"]
    assert ledger.state.jobs["j-a_9"].state is State.WAITING


def test_a_member_is_told_which_it_is() -> None:
    ledger = ledger_with()
    out = step(ledger, submitted("3,8"), 1.0)
    (first, _) = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]
    assert first.spec.env == {"A": "1", "GRID_ARRAY_ID": "j-a", "GRID_ARRAY_INDEX": "3", "GRID_ARRAY_COUNT": "2"}
    assert ledger.state.jobs["j-a_3"].spec.env == {"A": "1"}


def test_the_same_key_is_the_same_array() -> None:
    ledger = ledger_with()
    step(ledger, submitted("0-9"), 1.0)
    again = submitted("0-9", "j-b")
    again.jobs[0].key = again.groups[0].key = ledger.state.groups["j-a"].group.key
    out = step(ledger, again, 2.0)
    assert [one.jobs for one in out if isinstance(one, Accepted)] == [("j-a",)]
    assert len(ledger.state.jobs) == 10


def test_an_array_that_never_fits_leaves_nothing() -> None:
    ledger = ledger_with(cores=2)
    out = step(ledger, submitted("0-9", request=Request(resources=Resources(cpu=8000))), 1.0)
    assert [type(one) for one in out] == [Rejected]
    assert not ledger.state.jobs and not ledger.state.groups and not ledger.state.keys


def test_no_more_run_at_once_than_was_said() -> None:
    ledger = ledger_with(cores=8)
    assert launched(step(ledger, submitted("0-4%2"), 1.0)) == ["j-a_0.1", "j-a_1.1"]
    assert len(ledger.state.queue) == 0
    reason = views.job(ledger.state, "j-a_2").reason  # type: ignore[union-attr]
    assert reason is not None and reason.code == "ArrayLimit" and "2 of its array are at work" in reason.text
    assert launched(ended(ledger, "j-a_1.1")) == ["j-a_2.1"]
    assert launched(ended(ledger, "j-a_0.1", code=1)) == ["j-a_3.1"]
    assert launched(ended(ledger, "j-a_2.1")) == ["j-a_4.1"]
    assert launched(ended(ledger, "j-a_3.1")) == []
    out = ended(ledger, "j-a_4.1", now=9.0)
    (group,) = [one.group for one in out if isinstance(one, RecordGroup)]
    assert (group.failed, group.cancelled, group.ended) == (1, 0, 9.0)
    assert not ledger.state.groups and not ledger.state.keys and not ledger.state.jobs


def test_a_member_that_runs_again_keeps_its_place() -> None:
    from distributed_grid.protocol.jobs import RetryOn

    ledger = ledger_with(cores=8)
    request = Request(resources=Resources(cpu=1000), retry_on=(RetryOn.FAILED,), retries=1)
    step(ledger, submitted("0-2%1", request=request), 1.0)
    assert launched(ended(ledger, "j-a_0.1", code=1)) == ["j-a_0.2"]
    assert launched(ended(ledger, "j-a_0.2", code=1)) == ["j-a_1.1"]
    assert ledger.state.groups["j-a"].group.failed == 1


def test_a_waiting_member_that_is_cancelled_is_passed_over() -> None:
    ledger = ledger_with(cores=8)
    step(ledger, submitted("0-3%1"), 1.0)
    step(ledger, CancelRequested(2, ("j-a_1",)), 2.0)
    assert launched(ended(ledger, "j-a_0.1")) == ["j-a_2.1"]
    assert ledger.state.groups["j-a"].group.cancelled == 1


def test_the_rest_is_ended_when_more_have_failed_than_may() -> None:
    ledger = ledger_with(cores=3)
    step(ledger, submitted("0-99", max_fails=1), 1.0)
    step(ledger, MessageReceived("n1", Started(allocation="j-a_2.1")), 2.0)
    assert launched(ended(ledger, "j-a_0.1", code=3)) == ["j-a_3.1"]
    out = ended(ledger, "j-a_1.1", code=3)
    stops = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert [stop.allocation for stop in stops] == ["j-a_2.1", "j-a_3.1"]
    assert stops[0].text == "2 of its array have failed, and --max-fails is 1"
    assert launched(out) == []
    waiting = [one.job for one in out if isinstance(one, RecordJob) and one.job.outcome and one.job.id != "j-a_1"]
    assert len(waiting) == 96
    assert waiting[0].outcome is not None and waiting[0].outcome.cause is Cause.CANCELLED
    group = ledger.state.groups["j-a"].group
    assert (group.failed, group.cancelled, group.never) == (2, 96, 96)
    ended(ledger, "j-a_2.1", code=143)
    ended(ledger, "j-a_3.1", code=143)
    assert not ledger.state.groups


def test_a_cancel_of_an_array_ends_all_of_it_at_once() -> None:
    ledger = ledger_with(cores=2)
    step(ledger, submitted("0-9%4"), 1.0)
    out = step(ledger, CancelRequested(2, ("j-a",), "enough"), 2.0)
    assert [one.text for one in out if isinstance(one, Granted)] == [""]
    stops = [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert stops == ["j-a_0.1", "j-a_1.1"]
    assert len(ledger.state.queue) == 0 and len(ledger.state.jobs) == 2


def test_a_restart_lets_go_no_more_than_may_be() -> None:
    one = ledger_with(cores=8)
    step(one, submitted("0-11%3"), 1.0)
    ended(one, "j-a_1.1", code=1)
    other = Ledger()
    other.restore(
        one.state.jobs.values(),
        one.state.allocations.values(),
        [node.facts for node in one.state.nodes.values()],
        10.0,
        many=[members.group for members in one.state.groups.values()],
    )
    other.check()
    assert other.state.groups["j-a"].active == 3
    assert list(other.state.groups["j-a"].pending)[:2] == ["j-a_4", "j-a_5"]
    assert other.state.groups["j-a"].group.failed == 1
    assert not other.state.queue.turns
