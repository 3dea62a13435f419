"""Quotas: who passes one waits without keeping anybody else waiting, and is refused where it could never start."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import (
    Accepted,
    CancelRequested,
    Command,
    ExtensionRequested,
    Granted,
    JobsSubmitted,
    MessageReceived,
    RecordRights,
    Rejected,
    RightsSet,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import reasons, why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Group
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.queue.quotas import DAY
from distributed_grid.coordinator.core.queue.reservations import ends
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Reason, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Launch, Started, Stop
from distributed_grid.protocol.messages.rights import UNLIMITED, GroupRights, Rights, Rules, Whose
from distributed_grid.protocol.resources import GIB, MILLI, Resources, ResourceType
from tests.coordinator.core.scene import facts, job, join, resumed, step

NOON = 100 * DAY + DAY / 2
PATIENT: dict[str, Any] = {"suspect_after": 1e9, "disconnected_after": 1e9, "lost_after": 1e9}


def grid(rules: Rules, nodes: int = 1, cores: int = 8, **more: Any) -> Ledger:
    ledger = Ledger(policy=Policy(rights=rules, **PATIENT))
    for number in range(1, nodes + 1):
        join(ledger, facts(f"n{number}", cores, **more), now=NOON, expires_in=1e9)
    return ledger


def of_ann(**limits: Any) -> Rules:
    return Rules(users={"ann": Rights(**limits)})


def asks(cores: float = 1, priority: Priority = Priority.MEDIUM, **more: Any) -> Request:
    return Request(Resources(int(cores * MILLI), more.pop("memory", 0)), priority, **more)


def submit(
    ledger: Ledger,
    name: str,
    request: Request,
    user: str = "ann",
    at: float = NOON,
    operator: bool = False,
    **spec: Any,
) -> list[Command]:
    one = job(name, request, at, user, **spec)
    one.by_operator = operator
    return step(ledger, JobsSubmitted(1, (one,)), at)


def started(ledger: Ledger) -> list[str]:
    return [name for name, one in ledger.state.jobs.items() if one.state is not State.WAITING]


def end(ledger: Ledger, name: str, at: float = NOON + 10, cause: Cause = Cause.EXITED) -> list[Command]:
    """It has run, and ends."""
    allocation = ledger.state.allocations[ledger.state.jobs[name].allocation]
    out = step(ledger, MessageReceived(allocation.node, Started(allocation=allocation.id)), at)
    told = Exited(allocation=allocation.id, outcome=Outcome(cause=cause), returned=True)
    return out + step(ledger, MessageReceived(allocation.node, told), at)


def reason(ledger: Ledger, name: str) -> Reason:
    found = reasons.now_for(ledger.state, ledger.state.jobs[name])
    assert found is not None, f"{name} does not wait"
    return found


def refused(out: list[Command]) -> Rejected:
    (found,) = [one for one in out if isinstance(one, Rejected)]
    return found


def grant(
    ledger: Ledger, name: str, given: Rights | None, whose: Whose = Whose.USER, at: float = NOON
) -> list[Command]:
    return step(ledger, RightsSet(9, whose, name, given, "op"), at)


# --- what is held at once ---------------------------------------------------------------------------------------------


def test_who_holds_as_much_as_may_be_waits_with_the_numbers() -> None:
    ledger = grid(of_ann(cores=2 * MILLI))
    for number in range(3):
        submit(ledger, f"j{number}", asks())
    assert started(ledger) == ["j0", "j1"]
    assert reason(ledger, "j2") == Reason("Quota", "ann may hold 2 cpu at once and holds 2; it needs 1")
    said = why.why(ledger.state, "j2", None, NOON)
    assert said.reason.code == "Quota" and "grid quota set ann --cores 3" in said.hint


def test_when_something_becomes_free_it_starts_with_its_age() -> None:
    ledger = grid(of_ann(cores=2 * MILLI))
    for number in range(4):
        submit(ledger, f"j{number}", asks())
    end(ledger, "j0")
    assert started(ledger) == ["j1", "j2"]


def test_another_user_starts_behind_a_quota_and_nothing_is_reserved_for_who_waits_for_one() -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    submit(ledger, "first", asks(3))
    submit(ledger, "waits", asks(4, Priority.HIGH))
    submit(ledger, "small", asks(1), "ben")
    submit(ledger, "large", asks(4), "ben")
    assert started(ledger) == ["first", "small", "large"]
    assert reason(ledger, "waits").code == "Quota" and not ledger.state.reservations.by_job


def test_an_urgent_job_that_waits_for_its_quota_preempts_nobody() -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    submit(ledger, "mine", asks(4))
    submit(ledger, "victim", asks(4), "ben")
    out = submit(ledger, "urgent", asks(4, Priority.URGENT), at=NOON + 100)
    assert not [one for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert reason(ledger, "urgent").code == "Quota"


def test_sixteen_urgent_jobs_that_wait_for_a_quota_keep_nobody_from_preempting() -> None:
    ledger = grid(of_ann(cores=0 * MILLI, jobs_waiting=UNLIMITED))
    grant(ledger, "ann", Rights(cores=MILLI))
    submit(ledger, "mine", asks(1))
    submit(ledger, "victim", asks(7, Priority.LOW), "eve")
    for number in range(20):
        submit(ledger, f"u{number}", asks(0.5 + number / 100, Priority.URGENT), at=NOON + 50)
    out = submit(ledger, "urgent", asks(7, Priority.URGENT), "ben", at=NOON + 100)
    assert [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)] == [
        "victim.1"
    ]


def test_what_is_earmarked_for_a_job_counts_as_held() -> None:
    ledger = grid(of_ann(cores=6 * MILLI))
    submit(ledger, "victim", asks(8, Priority.LOW), "ben")
    submit(ledger, "urgent", asks(4, Priority.URGENT), at=NOON + 100)
    join(ledger, facts("n2", 8), now=NOON + 101, expires_in=1e9)
    submit(ledger, "other", asks(4), at=NOON + 102)
    assert reason(ledger, "other") == Reason("Quota", "ann may hold 6 cpu at once and holds 4; it needs 4")
    end(ledger, "victim", NOON + 103, Cause.PREEMPTED)
    assert "urgent" in started(ledger) and "other" not in started(ledger)


def test_an_earmark_is_not_used_where_the_quota_was_lowered_meanwhile() -> None:
    ledger = grid(Rules())
    submit(ledger, "victim", asks(8, Priority.LOW), "ben")
    submit(ledger, "urgent", asks(4, Priority.URGENT), at=NOON + 100)
    grant(ledger, "ann", Rights(cores=2 * MILLI), at=NOON + 101)
    end(ledger, "victim", NOON + 102, Cause.PREEMPTED)
    assert "urgent" not in started(ledger) and "victim" in started(ledger)


def test_all_members_of_a_gang_count_together() -> None:
    ledger = grid(of_ann(cores=3 * MILLI), nodes=3)
    submit(ledger, "one", asks())
    whole = job("g", asks(1, gang=3), NOON)
    group = Group(
        id="g", key="key-g", user="ann", kind=GroupKind.GANG, spec=whole.spec, request=whole.request, submitted=NOON,
        count=3, array=Array(((0, 2, 1),)),
    )  # fmt: skip
    step(ledger, JobsSubmitted(1, (whole,), (group,)), NOON)
    assert started(ledger) == ["one"]
    assert reason(ledger, "g_0").text == "ann may hold 3 cpu at once and holds 1; it needs 3"
    end(ledger, "one")
    assert started(ledger) == ["g_0", "g_1", "g_2"]


def test_a_member_of_an_array_waits_and_the_next_starts_when_one_ends() -> None:
    ledger = grid(of_ann(cores=2 * MILLI))
    many = job("a", asks(), NOON)
    group = Group(
        id="a", key="key-a", user="ann", kind=GroupKind.ARRAY, spec=many.spec, request=many.request, submitted=NOON,
        count=5, array=Array(((0, 4, 1),)),
    )  # fmt: skip
    step(ledger, JobsSubmitted(1, (many,), (group,)), NOON)
    assert started(ledger) == ["a_0", "a_1"]
    end(ledger, "a_0")
    assert started(ledger) == ["a_1", "a_2"]


def test_a_group_shares_its_quota_beside_those_of_its_members() -> None:
    rules = Rules(
        users={"ann": Rights(cores=2 * MILLI)}, groups={"lab": GroupRights(("ann", "ben"), Rights(cores=3 * MILLI))}
    )
    ledger = grid(rules)
    for number in range(3):
        submit(ledger, f"a{number}", asks())
        submit(ledger, f"b{number}", asks(), "ben")
    assert started(ledger) == ["a0", "b0", "a1"]
    assert reason(ledger, "a2").text.startswith("ann may hold 2 cpu")
    assert reason(ledger, "b1") == Reason("Quota", "group lab may hold 3 cpu at once and holds 3; it needs 1")


def test_memory_and_gpus_have_quotas_too() -> None:
    ledger = grid(of_ann(memory=2 * GIB, gpus=MILLI), gpus=2)
    submit(ledger, "one", Request(Resources(MILLI, GIB, MILLI)))
    submit(ledger, "memory", Request(Resources(MILLI, 2 * GIB)))
    submit(ledger, "gpu", Request(Resources(MILLI, 0, 500)))
    submit(ledger, "neither", asks())
    assert started(ledger) == ["one", "neither"]
    assert reason(ledger, "memory").text == "ann may hold 2G memory at once and holds 1G; it needs 2G"
    assert reason(ledger, "gpu").text == "ann may hold 1 gpu at once and holds 1; it needs 0.5"


def test_a_large_job_is_not_starved_by_later_ones_of_its_own_user() -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    submit(ledger, "a", asks(2))
    submit(ledger, "b", asks(2))
    submit(ledger, "large", asks(4))
    submit(ledger, "later", asks(1))
    end(ledger, "a")
    assert started(ledger) == ["b"]
    assert reason(ledger, "later").text == "ann may hold 4 cpu at once; large, which comes first, needs them"
    end(ledger, "b", NOON + 20)
    assert started(ledger) == ["large"]


def test_who_waits_behind_a_job_that_is_cancelled_starts_at_once() -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    submit(ledger, "a", asks(2))
    submit(ledger, "large", asks(4))
    submit(ledger, "later", asks(1))
    assert started(ledger) == ["a"]
    step(ledger, CancelRequested(2, ("large",)), NOON + 1)
    assert started(ledger) == ["a", "later"]


def test_a_retry_starts_although_an_overdue_job_behind_it_waits_for_the_same_quota() -> None:
    overdue = Sharing(head_start=10.0, shortest=1.0, usual=20.0, overdue_after=2.0)
    ledger = Ledger(policy=Policy(rights=of_ann(cores=MILLI), sharing=overdue, **PATIENT))
    join(ledger, facts("n1", 2), now=NOON, expires_in=1e9)
    for name in ("before", "fails", "behind"):
        submit(ledger, name, asks(retry_on=(RetryOn.FAILED,), retries=1), time_limit=1.0, grace=0.0)
    submit(ledger, "beside", asks(1), user="ben")
    submit(ledger, "waits", asks(2), user="carl")
    end(ledger, "before", NOON + 100)
    end(ledger, "beside", NOON + 110)  # the first pass with room since: it finds the quota reached
    line = ledger.state.queue.line("behind")
    assert line.excluded and line.standing.overdue == ledger.state.queue.turns["behind"]
    step(ledger, CancelRequested(2, ("waits",)), NOON + 111)
    failed = Exited(ledger.state.jobs["fails"].allocation, Outcome(Cause.EXITED, code=1, seconds=1.0), True)
    step(ledger, MessageReceived("n1", failed), NOON + 120)
    for second in range(121, 130):
        step(ledger, Tick(), NOON + second)
    assert started(ledger) == ["fails"]


def test_an_overdue_large_job_that_waits_for_the_quota_is_not_passed_by_overdue_ones_behind_it() -> None:
    overdue = Sharing(head_start=10.0, shortest=1.0, usual=20.0, overdue_after=2.0)
    ledger = Ledger(policy=Policy(rights=of_ann(cores=2 * MILLI), sharing=overdue, **PATIENT))
    join(ledger, facts("n1", 8), now=NOON, expires_in=1e9)
    submit(ledger, "beside", asks(8), user="ben")
    submit(ledger, "large", asks(2), time_limit=1.0, grace=0.0)
    submit(ledger, "behind", asks(1), time_limit=1.0, grace=0.0)
    submit(ledger, "other", asks(8, Priority.LOW), user="carl")
    submit(ledger, "above", asks(1, Priority.HIGH), at=NOON + 99)
    end(ledger, "beside", NOON + 100)
    assert started(ledger) == ["above"]
    end(ledger, "above", NOON + 110)
    assert started(ledger) == ["large"]


@pytest.mark.parametrize("limit", [0.0, 600.0, 2000.0, 3000.0])
def test_a_large_job_that_waits_for_the_quota_is_not_passed_for_ever_by_later_ones_of_other_lengths(
    limit: float,
) -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    submit(ledger, "s0", asks(1), time_limit=3000.0)
    submit(ledger, "large", asks(4), time_limit=limit, at=NOON + 1)
    for number in range(1, 30):  # one ends after the next has come
        submit(ledger, f"s{number}", asks(1), time_limit=3000.0, at=NOON + 300 * number)
        if f"s{number - 1}" in started(ledger):
            end(ledger, f"s{number - 1}", NOON + 300 * number + 100)
    assert "large" in started(ledger)


def test_who_waits_for_his_own_hours_keeps_nobody_of_his_group_waiting() -> None:
    lab = GroupRights(members=("ann", "ben"), rights=Rights(cores=2 * MILLI))
    ledger = grid(Rules(users={"ann": Rights(core_hours=6 * MILLI)}, groups={"lab": lab}))
    submit(ledger, "before", asks(1), user="ben")
    submit(ledger, "large", asks(2), time_limit=7200.0, grace=0.0)
    submit(ledger, "later", asks(1, Priority.LOW), user="ben")
    assert reason(ledger, "later").text == "group lab may hold 2 cpu at once; large, which comes first, needs them"
    submit(ledger, "above", asks(1, Priority.HIGH), time_limit=10800.0, grace=0.0)
    end(ledger, "before")
    assert reason(ledger, "large").text.startswith("ann may use 6 core-hours a day")
    assert started(ledger) == ["later", "above"]


def test_who_comes_first_in_a_quota_is_not_forgotten_for_a_larger_job_behind() -> None:
    ledger = grid(of_ann(cores=4 * MILLI, reservations=False), gpus=1)
    submit(ledger, "gpu", Request(Resources(gpu=MILLI)), user="ben")
    for name, cores in (("run1", 1), ("run2", 3)):
        submit(ledger, name, asks(cores))
    submit(ledger, "small", asks(1), at=NOON + 1)
    submit(ledger, "large", Request(Resources(3 * MILLI, gpu=MILLI), Priority.HIGH), at=NOON + 2)
    submit(ledger, "larger", asks(4, Priority.LOW), at=NOON + 3)
    end(ledger, "run2", NOON + 10)
    step(ledger, Tick(), NOON + 20)
    assert "small" in started(ledger), "what comes first has no place now, and nothing is reserved for it"


def test_urgent_jobs_of_one_line_do_not_keep_it_from_being_served() -> None:
    ledger = grid(of_ann(cores=MILLI), cores=2)
    for name, priority, user in (
        ("holds", Priority.MEDIUM, "ann"),
        ("beside", Priority.MEDIUM, "ben"),
        ("eve", Priority.URGENT, "eve"),
        ("first", Priority.URGENT, "ann"),
        ("second", Priority.URGENT, "ann"),
    ):
        submit(ledger, name, asks(1, priority), user=user)
    submit(ledger, "small", asks(0.5, Priority.LOW), user="carl")
    assert ledger.state.queue.line("first").excluded, "her quota is reached"
    end(ledger, "holds", NOON + 2)
    assert started(ledger) == ["beside", "eve"], "there is no room, and it is looked whom each may preempt"
    assert "first" in ledger.state.reservations.by_job
    end(ledger, "eve", NOON + 4)
    assert started(ledger) == ["beside", "first"]


def test_many_kinds_of_jobs_that_wait_for_a_quota_are_reviewed_together_and_all_run() -> None:
    ledger = grid(of_ann(cores=2 * MILLI))
    kinds = [job(f"j{number}", asks(1, memory=number + 1), NOON, "ann") for number in range(2 * rights.FEW)]
    step(ledger, JobsSubmitted(1, tuple(kinds)), NOON)
    assert started(ledger) == ["j0", "j1"]
    end(ledger, "j0", NOON + 10)
    assert started(ledger) == ["j1", "j2"]
    end(ledger, "j1", NOON + 10.001)
    end(ledger, "j2", NOON + 10.002)
    assert started(ledger) == []
    due = ledger.next_deadline()
    assert due is not None and NOON + 10.002 < due < NOON + 10.1
    step(ledger, Tick(), due)
    assert started(ledger) == ["j3", "j4"]


def test_a_checkpoint_keeps_when_many_kinds_of_jobs_are_reviewed_next() -> None:
    ledger = grid(of_ann(cores=MILLI))
    kinds = [job(f"j{number}", asks(1, memory=number + 1), NOON, "ann") for number in range(2 * rights.FEW)]
    step(ledger, JobsSubmitted(1, tuple(kinds)), NOON)
    end(ledger, "j0", NOON + 10)
    twin = resumed(ledger)
    for one in (ledger, twin):
        end(one, "j1", NOON + 10.001)
        assert started(one) == []
        due = one.next_deadline()
        assert due is not None
        step(one, Tick(), due)
        assert started(one) == ["j2"]
    assert ledger.state.now == twin.state.now


def test_another_users_few_jobs_do_not_wait_for_the_review_of_many_kinds() -> None:
    ledger = grid(Rules(default=Rights(cores=2 * MILLI)))
    kinds = [job(f"j{number}", asks(1, memory=number + 1), NOON, "ann") for number in range(2 * rights.FEW)]
    step(ledger, JobsSubmitted(1, tuple(kinds)), NOON)
    for name in ("first", "second", "third"):
        submit(ledger, name, asks(1), "ben")
    end(ledger, "j0", NOON + 10)
    end(ledger, "first", NOON + 10.001)
    assert sorted(started(ledger)) == ["j1", "j2", "second", "third"]


def test_a_retry_with_more_memory_stays_within_the_quota() -> None:
    ledger = grid(of_ann(memory=3 * GIB))
    request = asks(memory=2 * GIB, retry_on=(RetryOn.OOM,), retries=2, retry_memory=2 * MILLI)
    submit(ledger, "grows", request)
    end(ledger, "grows", cause=Cause.OUT_OF_MEMORY)
    assert ledger.state.jobs["grows"].request.resources.memory == 3 * GIB and started(ledger) == ["grows"]
    end(ledger, "grows", NOON + 20, Cause.OUT_OF_MEMORY)
    assert "grows" not in ledger.state.jobs


# --- hours a day ------------------------------------------------------------------------------------------------------


def test_a_job_counts_with_its_time_limit_and_what_it_does_not_use_is_free_again() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    submit(ledger, "one", asks(2), time_limit=3600.0, grace=0.0)
    submit(ledger, "two", asks(2), time_limit=3600.0, grace=0.0)
    assert started(ledger) == ["one"]
    text = "ann may use 4 core-hours a day, 1.998 are left until 1970-04-12 00:00:00 UTC; it may use 2.002"
    assert reason(ledger, "two") == Reason("Quota", text)
    end(ledger, "one", NOON + 600)
    assert started(ledger) == ["two"]


def test_what_is_spent_is_free_again_when_the_day_turns() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    submit(ledger, "one", asks(3), time_limit=3600.0)
    end(ledger, "one", NOON + 3600)
    submit(ledger, "two", asks(2), time_limit=3000.0, at=NOON + 3700)
    assert reason(ledger, "two").code == "Quota"
    due = ledger.next_deadline()
    assert due is not None and due <= 101 * DAY
    for at in (101 * DAY - 1, 101 * DAY):
        step(ledger, Tick(), at)
    assert started(ledger) == ["two"]


def test_of_many_that_start_at_once_each_is_counted_and_not_all_of_them_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def counting(state: GridState, allocation: Allocation, now: float) -> float:
        looked.append(allocation.id)
        return ends(state, allocation, now)

    monkeypatch.setattr(rights, "ends", counting)
    ledger = grid(of_ann(core_hours=1000 * MILLI), cores=100)
    ledger.handle(JobsSubmitted(1, tuple(job(f"j{n}", asks(), NOON, time_limit=60.0) for n in range(100))), NOON)
    ledger.settle(NOON)
    assert len(started(ledger)) == 100 and len(looked) <= 2 * 100
    ledger.check()


def test_a_job_that_runs_into_tomorrow_needs_hours_of_both_days() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    late = 101 * DAY - 1800
    submit(ledger, "one", asks(2), at=late, time_limit=5400.0)
    submit(ledger, "two", asks(2), at=late, time_limit=5400.0)
    assert started(ledger) == ["one"]
    assert "for the day after 1970-04-12 00:00:00 UTC" in reason(ledger, "two").text
    submit(ledger, "short", asks(1), at=late, time_limit=900.0)
    assert started(ledger) == ["one", "short"]


def test_a_job_whose_time_limit_alone_passes_the_hours_is_refused_and_told_so() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    told = refused(submit(ledger, "endless", asks(1)))
    assert (told.what, told.why) == (
        "asks 24 core-hours a day; ann may use 4",
        "it has no time limit, so it counts with whole days",
    )
    assert told.hint == "give it a shorter --time; or have an operator run: grid quota set ann --core-hours 24"


def test_a_running_job_is_not_ended_when_the_hours_are_lowered() -> None:
    ledger = grid(Rules())
    submit(ledger, "runs", asks(2))
    out = grant(ledger, "ann", Rights(core_hours=1), at=NOON + 5)
    out += step(ledger, Tick(), 102 * DAY)
    assert not [one for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert started(ledger) == ["runs"]


def test_a_boost_is_not_extended_beyond_the_hours() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    lent = Boost(target="head", address="h:1", kind=ResourceType.CPU, amount=2000)
    submit(ledger, "boost", asks(2), time_limit=3600.0, boost=lent)
    told = refused(step(ledger, ExtensionRequested(2, "boost", 3600.0), NOON + 1))
    assert told.code == "not-allowed" and told.hint.startswith("have an operator run: grid quota set ann --core-hours")
    assert any(isinstance(one, Granted) for one in step(ledger, ExtensionRequested(3, "boost", 1800.0), NOON + 1))


# --- the submission ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "request_", "what", "command"),
    [
        ({"cores": 2 * MILLI}, asks(3), "asks 3 cpu; ann may hold 2", "grid quota set ann --cores 3"),
        (
            {"memory": GIB}, asks(memory=2 * GIB), "asks 2G memory; ann may hold 1G", "grid quota set ann --memory 2G",
        ),
        (
            {"highest_priority": Priority.HIGH}, asks(1, Priority.URGENT), "ann may not ask for priority urgent",
            "grid quota set ann --highest-priority urgent",
        ),
    ],
)  # fmt: skip
def test_what_could_never_start_is_refused_with_the_number_and_whom_to_ask(
    limits: dict[str, Any], request_: Request, what: str, command: str
) -> None:
    told = refused(submit(grid(of_ann(**limits)), "j", request_))
    assert told.code == "not-allowed" and told.what == what and told.hint.endswith(f"have an operator run: {command}")


def test_exclusive_boosts_are_refused_to_who_may_not_have_them() -> None:
    ledger = grid(of_ann(exclusive_boosts=False))
    lent = Boost(target="head", address="h:1", kind=ResourceType.CPU, amount=1000, exclusive=True)
    assert refused(submit(ledger, "b", asks(), boost=lent)).what == "ann may not ask for exclusive boosts"
    assert submit(ledger, "c", asks(), "ben", boost=lent) and "c" in ledger.state.jobs


def test_too_many_waiting_jobs_are_refused_and_members_count_each() -> None:
    ledger = grid(of_ann(cores=MILLI, jobs_waiting=3))
    submit(ledger, "runs", asks())
    for number in range(3):
        submit(ledger, f"w{number}", asks())
    told = refused(submit(ledger, "more", asks()))
    assert told.what == "ann may have 3 jobs waiting, and has 3; 1 more are too many"
    assert told.hint.endswith("grid quota set ann --jobs-waiting 4") and "more" not in ledger.state.jobs
    end(ledger, "runs")
    assert any(isinstance(one, Accepted) for one in submit(ledger, "more", asks(), at=NOON + 11))


def test_the_default_is_for_everybody_but_operators() -> None:
    ledger = grid(Rules(default=Rights(highest_priority=Priority.HIGH, cores=MILLI)))
    assert refused(submit(ledger, "u", asks(1, Priority.URGENT))).code == "not-allowed"
    submit(ledger, "o", asks(4, Priority.URGENT), "op", operator=True)
    submit(ledger, "h", asks(1, Priority.HIGH))
    assert started(ledger) == ["o", "h"]


def test_an_operator_who_is_named_has_the_rights_that_are_named() -> None:
    ledger = grid(Rules(default=Rights(highest_priority=Priority.LOW), users={"op": Rights(cores=MILLI)}))
    assert (
        refused(submit(ledger, "o", asks(4, Priority.URGENT), "op", operator=True)).what == "asks 4 cpu; op may hold 1"
    )
    assert submit(ledger, "p", asks(1, Priority.URGENT), "op", operator=True) and started(ledger) == ["p"]


def test_a_group_gives_its_members_the_best_of_its_rights() -> None:
    rules = Rules(
        default=Rights(highest_priority=Priority.LOW),
        users={"eve": Rights(highest_priority=Priority.MEDIUM)},
        groups={"lab": GroupRights(("ann", "eve"), Rights(highest_priority=Priority.URGENT))},
    )
    allowed = grid(rules).state.quotas.allowed
    assert [allowed(user, False).highest.word for user in ("ann", "eve", "ben")] == ["urgent", "medium", "low"]


def test_nothing_is_reserved_for_who_has_no_right_to_reservations() -> None:
    for may in (True, False):
        ledger = grid(of_ann(reservations=may))
        submit(ledger, "fills", asks(6), "ben")
        submit(ledger, "large", asks(8, Priority.HIGH))
        submit(ledger, "waits", asks(4), "ben")
        assert ("large" in ledger.state.reservations.by_job) is may


# --- changes by operators ---------------------------------------------------------------------------------------------


def test_what_an_operator_grants_is_recorded_and_lets_waiting_jobs_start() -> None:
    ledger = grid(of_ann(cores=MILLI))
    submit(ledger, "a", asks())
    submit(ledger, "b", asks())
    out = grant(ledger, "ann", Rights(cores=2 * MILLI))
    assert RecordRights("user/ann", Rights(cores=2 * MILLI)) in out
    assert Granted(9, "ann has: --cores 2") in out and started(ledger) == ["a", "b"]
    out = grant(ledger, "ann", None)
    assert RecordRights("user/ann", None) in out and started(ledger) == ["a", "b"]
    assert Granted(9, "ann has by the configuration again: --cores 1") in out


def test_a_second_grant_changes_what_it_names_alone() -> None:
    ledger = grid(Rules())
    grant(ledger, "ann", Rights(cores=MILLI))
    grant(ledger, "ann", Rights(gpus=UNLIMITED))
    assert ledger.state.quotas.granted == {"user/ann": Rights(cores=MILLI, gpus=UNLIMITED)}


def test_rights_of_an_unknown_group_are_refused() -> None:
    told = refused(grant(grid(Rules(groups={"lab": GroupRights(("ann",))})), "labs", Rights(cores=1), Whose.GROUP))
    assert (told.what, told.why) == ("there is no group 'labs'", "the groups are lab")


def test_what_is_granted_and_spent_outlives_the_coordinator() -> None:
    ledger = grid(Rules())
    grant(ledger, "ann", Rights(core_hours=4 * MILLI, cores=4 * MILLI))
    submit(ledger, "one", asks(3), time_limit=3600.0)
    submit(ledger, "runs", asks(1), time_limit=600.0)
    end(ledger, "one", NOON + 3600)
    quotas, state = ledger.state.quotas, ledger.state
    again = Ledger(epoch=2, policy=state.policy)
    nodes = [node.facts for node in state.nodes.values()]
    again.restore(
        list(state.jobs.values()), list(state.allocations.values()), nodes, NOON + 3600, granted=quotas.granted,
        spent=quotas.spent,
    )  # fmt: skip
    again.check()
    assert rights.quotas(again.state, "ann", False) == rights.quotas(ledger.state, "ann", False)
    (mine,) = rights.quotas(again.state, "ann", False)
    assert (mine.holds, mine.core_hours) == (Resources(MILLI), 3000 + 1168)


def test_hours_of_who_has_no_job_any_more_are_shown_after_a_restart_and_after_another_grant() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    submit(ledger, "one", asks(3), time_limit=3600.0)
    end(ledger, "one", NOON + 3600)
    again = Ledger(epoch=2, policy=ledger.state.policy)
    nodes = [node.facts for node in ledger.state.nodes.values()]
    again.restore([], [], nodes, NOON + 3600, spent=ledger.state.quotas.spent)
    grant(ledger, "ben", Rights(cores=MILLI), at=NOON + 3600)
    for one in (again, ledger):
        (mine,) = rights.quotas(one.state, "ann", False)
        assert mine.core_hours == 3000


def test_an_operator_is_shown_as_one_also_when_no_job_of_theirs_lives() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    submit(ledger, "one", asks(3), operator=True, time_limit=3600.0)
    end(ledger, "one", NOON + 3600)
    (found,) = rights.quotas(ledger.state, "ann", True)
    assert (found.operator, found.core_hours) == (True, 3000)
    (mine,) = rights.quotas(ledger.state, "ann", False)
    assert (mine.operator, mine.core_hours) == (False, 0), "who asks as a client sees what counts for them as one"


def test_a_checkpoint_keeps_who_waits_for_a_quota() -> None:
    ledger = grid(of_ann(cores=4 * MILLI))
    for name, cores in (("a", 3), ("large", 4), ("later", 1)):
        submit(ledger, name, asks(cores))
    twin = resumed(ledger)
    for one in (ledger, twin):
        end(one, "a")
        assert started(one) == ["large"]


def test_a_question_says_what_a_quota_would_say() -> None:
    ledger = grid(of_ann(cores=2 * MILLI))
    submit(ledger, "a", asks(2))
    said = why.why(ledger.state, None, asks(1), NOON, "ann")
    assert said.reason == Reason("Quota", "ann may hold 2 cpu at once and holds 2; it needs 1") and not said.chosen
    assert why.why(ledger.state, None, asks(1), NOON, "ben").reason.code == "Fits"


def test_a_question_about_a_job_that_would_come_first_says_that_it_fits() -> None:
    lab = GroupRights(("ann", "ben"), Rights(cores=4 * MILLI))
    ledger = grid(Rules(groups={"lab": lab}))
    submit(ledger, "a", asks(2))
    submit(ledger, "large", asks(3))
    said = why.why(ledger.state, "large", None, NOON)
    assert (said.reason.code, "grid quota set --group lab --cores 5" in said.hint) == ("Quota", True)
    assert why.why(ledger.state, None, asks(1), NOON, "ben").reason.code == "Fits", "ben has nothing yet"
    behind = why.why(ledger.state, None, asks(1), NOON, "ann")
    assert behind.reason.text.endswith("large, which comes first, needs them")
    assert behind.hint == "it starts when enough is free for large and for it"
    submit(ledger, "b", asks(1), user="ben")
    assert started(ledger) == ["a", "b"]


def test_a_question_counts_the_hours_of_a_job_by_its_time_limit() -> None:
    ledger = grid(of_ann(core_hours=4 * MILLI))
    for lasts, code in ((3600.0, "Fits"), (5 * 3600.0, "Quota"), (0.0, "Quota")):
        assert why.why(ledger.state, None, asks(1), NOON, "ann", lasts=lasts).reason.code == code


def test_everybody_is_shown_once_with_limits_and_what_is_used() -> None:
    rules = Rules(
        users={"ann": Rights(cores=2 * MILLI)}, groups={"lab": GroupRights(("ann", "ben"), Rights(gpus=MILLI))}
    )
    ledger = grid(rules)
    submit(ledger, "a", asks(2))
    submit(ledger, "b", asks(1))
    submit(ledger, "c", asks(1), "eve")
    found = {(one.whose, one.name): one for one in rights.quotas(ledger.state, "op", True, everybody=True)}
    assert list(found) == [
        (Whose.DEFAULT, ""),
        (Whose.USER, "ann"),
        (Whose.USER, "eve"),
        (Whose.USER, "op"),
        (Whose.GROUP, "lab"),
    ]
    ann = found[Whose.USER, "ann"]
    assert (ann.rights.cores, ann.holds.cpu, ann.waiting) == (2 * MILLI, 2 * MILLI, 1)
    assert [one.name for one in rights.quotas(ledger.state, "ben", False)] == ["ben", "lab"]


def test_a_job_of_whom_no_quota_holds_is_launched_as_ever() -> None:
    out = submit(grid(of_ann(cores=MILLI)), "j", asks(4), "ben")
    assert [one.message.job for one in out if isinstance(one, Send) and isinstance(one.message, Launch)] == ["j"]
