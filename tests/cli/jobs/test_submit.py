"""A file of jobs: what may stand in it, and how a mistake is told."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from distributed_grid.cli.jobs import submit
from distributed_grid.cli.jobs.submit import Described, JobsFileError, read_jobs
from distributed_grid.cli.main import main
from distributed_grid.protocol.jobs import Priority, RetryOn
from distributed_grid.protocol.resources import GIB, MILLI, Resources


def jobs(text: str) -> list[Described]:
    return read_jobs(text.encode(), "jobs.yaml")


def refused(text: str) -> list[str]:
    with pytest.raises(JobsFileError) as error:
        jobs(text)
    *lines, last = error.value.lines()
    assert last == "nothing was submitted"
    return lines


def test_a_job_takes_the_defaults_where_it_says_nothing_itself() -> None:
    one, other = jobs(
        """
        defaults: {cpus: 2, mem: 1G, priority: low, no_ship: true}
        jobs:
        - command: python train.py --name "a b"
          name: first
        - command: [sh, -c, "exit 3"]
          priority: high
          no_ship: false
          retry_on: [lost, failed]
          time: 1h30m
        """
    )
    assert one.submission.spec.argv == ("python", "train.py", "--name", "a b")
    assert (one.submission.spec.name, one.submission.request.priority, one.shipped) == ("first", Priority.LOW, False)
    assert one.submission.request.resources == Resources(2 * MILLI, GIB)
    assert other.submission.spec.argv == ("sh", "-c", "exit 3")
    assert (other.submission.request.priority, other.shipped, other.submission.spec.time_limit) == (
        Priority.HIGH,
        True,
        5400,
    )
    assert other.submission.request.retry_on == (RetryOn.LOST, RetryOn.FAILED)


def test_variables_of_the_defaults_and_of_the_job_are_both_given_and_the_jobs_own_count() -> None:
    (one,) = jobs("defaults: {env: {A: 1, B: 2}}\njobs: [{command: env, env: {B: 3, C: 4}}]")
    assert one.submission.spec.env == {"A": "1", "B": "3", "C": "4"}


def test_null_takes_a_default_away() -> None:
    (one,) = jobs("defaults: {time: 5, cpus: 3}\njobs: [{command: 'true', time: null, cpus: ~}]")
    assert (one.submission.spec.time_limit, one.submission.request.resources.cpu) == (0, MILLI)


def test_json_lines_are_a_job_a_line_and_complaints_name_the_line() -> None:
    one, other = jobs('{"command": ["a"], "gpus": 1}\n\n{"command": "b c"}\n')
    assert (one.submission.spec.argv, one.submission.request.resources.gpu, other.submission.spec.argv) == (
        ("a",),
        MILLI,
        ("b", "c"),
    )
    assert refused('{"command": "a"}\n{"command": "b", "gpu": 1}\n')[0].startswith(
        "error: jobs.yaml:2: unknown key 'gpu'"
    )


def test_one_line_of_json_that_lists_jobs_is_a_whole_file() -> None:
    assert [one.submission.spec.argv for one in jobs('{"jobs": [{"command": "a"}, {"command": "b"}]}')] == [
        ("a",),
        ("b",),
    ]


def test_all_that_is_wrong_is_told_at_once_with_lines_and_suggestions() -> None:
    assert refused("jobs:\n- command: a\n  retry-on: lost\n- comand: b\n- command: c\n  retries: many\n- 5\n") == [
        "error: jobs.yaml:3: unknown key 'retry-on' in a job",
        "  try: did you mean 'retry_on'?",
        "error: jobs.yaml:4: unknown key 'comand' in a job",
        "  try: did you mean 'command'?",
        "error: jobs.yaml:6: retries: 'many' is not a valid integer",
        "error: jobs.yaml:7: a job must hold settings, as `name: value`",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "jobs.yaml: has no jobs"),
        ("jobs: []", "jobs.yaml: has no jobs"),
        ("- command: a", "jobs.yaml:1: must hold `jobs:`"),
        ("job:\n- command: a", "jobs.yaml:1: unknown key 'job'"),
        ("jobs: {command: a}", "jobs.yaml:1: jobs must be a list"),
        ("jobs:\n- name: a", "jobs.yaml:2: the job has no command"),
        (
            "jobs:\n- command: 'a \"b'",
            "jobs.yaml:2: the command 'a \"b' cannot be split into words: No closing quotation",
        ),
        ("jobs:\n- command: a | b", "jobs.yaml:2: '|' in 'a | b' is for a shell, and no shell runs the command"),
        ("jobs:\n- command: a\n  command: b", "jobs.yaml:3: command appears twice, first at jobs.yaml:2"),
        ("jobs:\n- command: a\n  no_ship: perhaps", "jobs.yaml:3: no_ship must be true or false"),
        ("jobs:\n- command: a\n  detach: true", "jobs.yaml:3: unknown key 'detach'"),
        ("jobs:\n- command: a\n  auto: true", "jobs.yaml:3: unknown key 'auto'"),
        ("jobs:\n- command: a\n  cpus: [1]", "jobs.yaml:3: cpus must be one value"),
        ("jobs:\n- command: a\n  type: cpu\n  resource_type: gpu", "jobs.yaml:4: resource_type is another name"),
        ("jobs:\n- command: a\n  priority: highest", "jobs.yaml:2: unknown priority 'highest'"),
        ("defaults: {command: a}\njobs: [{command: b}]", "jobs.yaml:1: a command belongs to a job"),
        ("jobs:\n- {command: a", "not YAML"),
        ("jobs: &a [*a]", "a job must hold settings"),
        ("jobs:\n- <<: {command: a}", "unknown key '<<'"),
    ],
)
def test_what_cannot_be_taken(text: str, said: str) -> None:
    assert said in refused(text)[0]


def test_an_option_of_the_command_is_said_to_be_none_of_a_job() -> None:
    assert refused("jobs:\n- command: a\n  dry_run: true")[1].startswith("  try: leave it out")


def test_a_file_without_a_name_is_said_to_be_that() -> None:
    done = CliRunner().invoke(main, ["submit", "--file", ""])
    assert done.exit_code == 2 and "--file names no file" in done.stderr and "try: name one" in done.stderr


def test_objects_of_python_are_never_made() -> None:
    (one,) = jobs("jobs:\n- command: !!python/object/apply:os.system [echo, gone]")
    assert one.submission.spec.argv == ("echo", "gone")


def test_of_a_file_without_end_no_more_is_read_than_one_may_have(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "FILE_BYTES", 1000)
    told = CliRunner().invoke(main, ["submit", "--file", str(endless)])
    assert told.exit_code and f"{endless}: has more than 1000 bytes" in told.stderr
