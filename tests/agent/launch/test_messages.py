"""What the launcher orders of the supervisor, and what that reports."""

from pathlib import Path

import msgspec

from distributed_grid.agent.core.entry import Kept
from distributed_grid.agent.launch.isolation import Account
from distributed_grid.agent.launch.messages import (
    REPORTS,
    SupervisorReport,
    frozen,
    known_of,
    launch_order,
    outcome_of,
    slot_order,
    with_output,
)
from distributed_grid.agent.supervisor.job import OWNER, READER
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Cause, JobLimits, JobSpec, Outcome, State
from distributed_grid.protocol.messages import AwaitsReader, Launch, Suspended
from distributed_grid.protocol.resources import GpuShare, Grant, ResourceType

GRANT = Grant(cores=(2, 3), memory=1 << 30)
ANN = Account("ann", 1000, 1000, (1000, 44), "/nonexistent", "/bin/sh")


def launch(spec: JobSpec, grant: Grant = GRANT) -> Launch:
    return Launch(allocation="j.1", job="j", user="ann", epoch=1, grant=grant, spec=spec, lease=20.0)


def test_a_start_says_what_runs_where_and_how_long() -> None:
    order = launch_order(launch(JobSpec(argv=("true",), time_limit=9.0, grace=2.0)), "/w", {"A": "b"}, 5.0, Kept("ann"))
    assert (order["op"], order["id"], order["argv"], order["cwd"]) == ("launch", "j.1", ("true",), "/w")
    assert (order["cores"], order["limit"], order["grace"]) == ((2, 3), 9.0, 2.0)
    assert (order["lease"], order["lease_from"], order["kept"]) == (20.0, 5.0, Kept("ann"))


def test_a_slot_is_for_one_submitter_with_that_users_account() -> None:
    order = slot_order(launch(JobSpec(argv=("true",))), ANN, True, 0, 15)
    assert (order["submitter"], order["trusted"], order["gpus"]) == ("ann", True, False)
    assert order["user"] == {"uid": 1000, "gid": 1000, "groups": (1000, 44)}
    assert slot_order(launch(JobSpec(argv=("true",))), None, True, 0, 15)["user"] is None
    shared = msgspec.structs.replace(GRANT, gpus=(GpuShare("GPU-0", 1000),))
    assert slot_order(launch(JobSpec(argv=("true",)), shared), ANN, True, 0, 15)["gpus"]


def test_a_job_on_slack_is_idle_and_gets_no_more_of_its_cores_than_it_asked_for() -> None:
    slack = Grant(memory=1 << 30, slack=(4, 5), slack_milli=1500, holder="j-holder.1")
    order = slot_order(launch(JobSpec(argv=("true",)), slack), None, True, 0, 15)
    limits = order["limits"]
    assert (order["idle"], limits["idle"], limits["nice"], limits["cpu"]) == (True, True, 19, 1500)
    assert launch_order(launch(JobSpec(argv=("true",)), slack), "/w", {}, 5.0, Kept("ann"))["cores"] == (4, 5)
    plain = slot_order(launch(JobSpec(argv=("true",))), None, True, 0, 15)
    assert (plain["idle"], plain["limits"]["nice"], plain["limits"]["cpu"]) == (False, 15, 0)


def test_the_lower_of_the_jobs_and_the_nodes_limit_of_processes_holds() -> None:
    def pids(own: int, node: int) -> object:
        return slot_order(launch(JobSpec(argv=("true",), limits=JobLimits(pids=own))), None, False, node, 0)["limits"][
            "pids"
        ]

    assert [pids(10, 20), pids(30, 20), pids(0, 20), pids(10, 0), pids(0, 0)] == [10, 20, 20, 10, 0]


def test_a_raylet_gets_the_niceness_of_jobs_later_and_is_asked_gently_to_end() -> None:
    boost = Boost("gpu-master", "head:6379", ResourceType.CPU, 1000, join_within=30.0)
    raylet = slot_order(launch(JobSpec(argv=(), boost=boost)), None, False, 0, 15)["limits"]
    assert (raylet["nice"], raylet["nice_later"], raylet["nice_after"], raylet["gently"]) == (0, 15, 30.0, True)
    plain = slot_order(launch(JobSpec(argv=("true",))), None, False, 0, 15)["limits"]
    assert plain["nice"] == 15 and "gently" not in plain


# --- reports ----------------------------------------------------------------------------------------------------------


def test_a_report_has_what_was_said_and_ignores_what_a_newer_supervisor_says_as_well() -> None:
    said = REPORTS.decode(b'{"id":"j.1","op":"exited","outcome":{"cause":"exited","code":3},"new":1}')
    assert said.id == "j.1" and said.outcome is not None and outcome_of(said.outcome) == Outcome(Cause.EXITED, code=3)


def test_an_end_whose_reason_is_longer_than_a_message_allows_is_reported_with_the_first_part_of_it(
    tmp_path: Path,
) -> None:
    long = {"cause": "not-found", "text": "x" * 100_000, "started": False}
    line = msgspec.json.encode({"id": "j.1", "op": "exited", "outcome": long})
    said = REPORTS.decode(line)
    assert said.outcome is not None and outcome_of(said.outcome).text == "x" * 2000
    known = known_of(tmp_path, {"id": "j.1", "outcome": long, "stopping": False, "for": 0.0}, "user")
    assert known.outcome is not None and known.outcome.text == "x" * 2000


def test_a_freeze_is_told_by_who_it_is_for() -> None:
    said = SupervisorReport("j.1", "frozen", cause=OWNER, why="he types", lasted=2.0, in_all=5.0)
    assert frozen(said) == Suspended(allocation="j.1", why="he types", lasted=2.0, in_all=5.0)
    said = SupervisorReport("j.1", "frozen", cause=READER, why="far behind", lasted=2.0)
    assert frozen(said) == AwaitsReader(allocation="j.1", why="far behind", lasted=2.0)


def test_an_outcome_gets_the_size_and_the_end_of_the_output_of_what_has_started(tmp_path: Path) -> None:
    folder = tmp_path / "allocs" / "j.1"
    folder.mkdir(parents=True)
    (folder / "stdout").write_bytes(b"hello\n")
    done = with_output(tmp_path, "j.1", Outcome(Cause.EXITED, code=0))
    assert (done.stdout_size, done.stdout_tail, done.stderr_size) == (6, b"hello\n", 0)
    never = Outcome(Cause.CANCELLED, started=False)
    assert with_output(tmp_path, "j.1", never) is never


def test_what_a_supervisor_knows_is_running_stopping_or_ended(tmp_path: Path) -> None:
    said = {"id": "j.1", "outcome": None, "stopping": False, "for": 3.0, "walls": "user"}
    runs = known_of(tmp_path, said, "")
    assert (runs.state, runs.started_for, runs.walls) == (State.RUNNING, 3.0, "user")
    assert known_of(tmp_path, said | {"stopping": True}, "none").walls == "none"
    ended = known_of(tmp_path, said | {"outcome": {"cause": "exited", "code": 3}}, "")
    assert (ended.state, ended.outcome) == (State.ENDED, Outcome(Cause.EXITED, code=3))
