"""What the options of `grid run-shared` ask for."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distributed_grid.cli.jobs.run_shared import run_shared, submission_of
from distributed_grid.cli.main import main
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import parse_array
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.resources import GIB, MILLI, Resources


def asked(*words: str) -> Submission:
    options: dict[str, Any] = run_shared.make_context("run-shared", [*words, "make", "all"]).params
    return submission_of(options.pop("command"), options)


def test_a_job_has_one_core_where_nothing_is_said() -> None:
    one = asked()
    assert (one.spec.argv, one.request.resources) == (("make", "all"), Resources(cpu=MILLI))
    assert (one.request.priority, one.request.requeue, one.spec.grace, one.array) == (Priority.MEDIUM, True, 5.0, None)


def test_what_is_needed_is_said_by_type_or_by_name() -> None:
    assert asked("-t", "gpu", "-a", "2", "--mem", "4G").request.resources == Resources(MILLI, 4 * GIB, 2 * MILLI)
    assert asked("--cpus", "0.5").request.resources.cpu == MILLI // 2


def test_the_rest_is_said_as_a_program_says_it() -> None:
    one = asked(
        "-n", "a", "--nodes", "2", "--time", "1m", "--warn-signal", "USR1@10", "--retry-on", "lost", "-e", "A=b"
    )
    assert (one.request.nodes, one.request.gang, one.request.retries) == (("a",), 2, 1)
    assert (one.spec.time_limit, one.spec.limits.warn_before, one.spec.env) == (60.0, 10.0, {"A": "b"})
    assert asked("--array", "0-9%2", "--max-fails", "3").array == parse_array("0-9%2", 3)
    assert asked("--begin", "+30m").delay == 1800.0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-a", "2"), "--amount 2 of what"),
        (("-t", "cpu", "--cpus", "2"), "cpu is asked for twice"),
        (("--workdir", "here"), "is not an absolute path"),
        (("--array", "0-9", "--nodes", "2"), "an array of gangs"),
        (("--max-fails", "2"), "--max-fails 2 of what"),
        (("-e", "=x"), "has no name"),
        (("--name", "\udcff"), "cannot be sent"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(BadValue, match=why):
        asked(*words)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_where_sharing_is_off_a_dry_run_is_refused_as_the_submission_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("resource_sharing: {enabled: false}\ncoordinator: {url: 'ws://127.0.0.1:1'}\n")
    done = CliRunner().invoke(main, ["-c", str(file), "run-shared", *words, "true"])
    assert done.exit_code == 125 and "Resource sharing not enabled" in done.stderr
