"""`grid predict`, and `run-shared --auto`, on a real grid whose jobs it has seen."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from distributed_grid.cli.jobs.predict import filled, parse_features, say_chance
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import RetryOn
from distributed_grid.protocol.messages import Failed, Need, Needs, Submission
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.grid_fixture import Grid, running_grid, until

MIB = 1 << 20
FILLS = "import sys; held = bytearray(int(sys.argv[1]) * 1024 * 1024); print(len(held))"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        for number in range(6):
            made.run("run-shared", "--no-ship", "--cpus", "0.1", "python3", "-c", FILLS, str(40 + number))
        until(lambda: made.json("predict", "python3", "-c", FILLS, "43")["samples"] >= 6, "it learns nothing")
        yield made


def test_what_a_command_needs_is_told_by_its_runs(grid: Grid) -> None:
    done = grid.run("predict", "--within", "1h", "python3", "-c", FILLS, "43")
    assert done.returncode == 0
    assert "NEED" in done.stdout and "statistics" in done.stdout and "6 runs of commands like it" in done.stdout
    assert "of runs like it end within 1h" in done.stdout
    found = grid.json("predict", "--within", "1h", "python3", "-c", FILLS, "43")
    memory = found["needs"]["memory"]
    assert 40 * MIB < memory["value"] < 400 * MIB and (memory["tier"], memory["samples"]) == ("statistics", 6)
    assert found["chance"] > 0.8 and found["needs"]["planned"]["value"] >= found["needs"]["seconds"]["value"]


def test_nothing_is_told_of_what_is_not_known(grid: Grid) -> None:
    assert grid.json("predict", "nobody-has-run-this")["needs"].keys() <= {"memory", "cores", "seconds", "planned"}
    done = grid.run("predict", "--feature", "batch", "python3")
    assert done.returncode == 2 and "NAME=N" in done.stderr
    done = grid.run("predict", "")
    assert done.returncode == 2 and "the command is empty" in done.stderr


def test_each_form_has_what_the_others_have(grid: Grid) -> None:
    words = ("predict", "python3", "-c", FILLS, "43")
    whole = grid.json(*words)
    lines = grid.run("-o", "jsonl", *words).stdout.splitlines()
    assert [json.loads(line)["needs"].keys() for line in lines] == [whole["needs"].keys()]
    assert [line.split()[0] for line in grid.run("-o", "quiet", *words).stdout.splitlines()] == list(whole["needs"])


def test_a_command_of_any_length_is_predicted_and_submitted(grid: Grid) -> None:
    long = "#" * 100_000
    assert grid.run("predict", "sh", "-c", f"true {long}").returncode == 0
    words = ("--auto", "--finish-by", "+1h", "--cpus", "0.1", "--no-ship", "sh", "-c", f"echo ran {long}")
    done = grid.run("run-shared", *words)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def test_auto_asks_for_what_was_needed_and_says_so(grid: Grid) -> None:
    done = grid.run("run-shared", "--auto", "--no-ship", "--cpus", "0.1", "python3", "-c", FILLS, "42")
    assert done.returncode == 0 and "--auto: asks for " in done.stderr and "of memory (6 runs" in done.stderr
    asks = grid.job()["asks"]
    assert 40 * MIB < asks["memory"] < 400 * MIB and asks["cpu"] == 0.1


def test_how_likely_it_is_over_in_time_is_told_before_and_while_it_waits(grid: Grid) -> None:
    words = ("--no-ship", "--cpus", "0.1", "--begin", "+1h", "--finish-by", "+3h30s", "python3", "-c", FILLS, "42")
    done = grid.run("run-shared", "-d", *words)
    assert done.returncode == 0 and "of runs like it end within 3h00m, if it starts now" in done.stderr
    job = done.stdout.strip()
    assert "with a probability of" in grid.run("why", job).stdout
    assert "nine in ten runs like it" in grid.json("why", job)["prospects"]
    grid.run("cancel", job)
    done = grid.run("run-shared", "--no-ship", "--finish-by", "+3h", "true")
    assert done.returncode == 0 and "it is not known whether it ends by then" in done.stderr
    assert grid.run("run-shared", "--no-ship", "--finish-by", "soon", "true").returncode != 0


def test_auto_leaves_alone_what_was_said(grid: Grid) -> None:
    words = ("--no-ship", "--cpus", "0.1", "--mem", "64M", "python3", "-c", FILLS, "42")
    done = grid.run("run-shared", "--auto", *words)
    assert done.returncode == 0 and "--auto: nothing is asked for by itself, all of it was said" in done.stderr
    assert grid.job()["asks"]["memory"] == 64 * MIB


class Answering:
    """An invocation whose grid knows this."""

    def __init__(self, *needs: Need) -> None:
        self.needs, self.said, self.refused = needs, list[str](), ""

    def ask(self, make: Any) -> Needs:
        if self.refused:
            raise RequestRefused(Failed(1, "busy", self.refused))
        return Needs(make(1).id, "train #", self.needs)

    def say(self, text: str) -> None:
        self.said.append(text)


def need(of: str, value: float, level: str = "shape") -> Need:
    return Need(of, value, "statistics", level, 7, 0.95, "order statistics")


def fill(one: Submission, cores_said: bool, *needs: Need) -> tuple[Submission, list[str]]:
    invocation: Any = Answering(*needs)
    return filled(invocation, one, cores_said, True), invocation.said


def test_a_job_that_is_filled_is_run_again_with_more_unless_it_says_otherwise() -> None:
    asked, said = fill(describe_job(["train"]), False, need("memory", 1.5 * GIB), need("cores", 2.3))
    assert asked.request.resources == Resources(3 * MILLI, 3 * GIB // 2)
    assert (asked.request.retry_on, asked.request.retries) == ((RetryOn.OOM,), 2)
    assert "3 cores (7 runs, enough in 95 %)" in said[0] and "run again with more" in said[0]
    asked, said = fill(describe_job(["train"], retry_on=["lost"]), True, need("memory", 1.5 * GIB), need("cores", 9.0))
    assert asked.request.resources == Resources(MILLI, 3 * GIB // 2)
    assert asked.request.retry_on == (RetryOn.LOST,) and "run again" not in said[0]


def test_a_users_other_jobs_say_too_little_to_ask_by() -> None:
    before = describe_job(["train"])
    asked, said = fill(before, False, need("memory", GIB, "user"))
    assert asked == before and "fewer than 5 runs like it are known" in said[0]


def test_a_job_with_gpus_asks_for_the_memory_that_its_like_had_on_one() -> None:
    gpu = Resources(MILLI, GIB, MILLI)
    asked, said = fill(describe_job(["train"], resources=gpu), True, need("gpu_memory", 5.2 * GIB))
    assert asked.request.constraints is not None and asked.request.constraints.gpu_memory == 5325 * MIB
    assert "5.2G free on each GPU" in said[0] and "run again" not in said[0]
    before = describe_job(["train"], resources=gpu, gpu_memory="2G")
    assert fill(before, True, need("gpu_memory", 5.2 * GIB))[0] == before, "what was said stays"
    before = describe_job(["train"], resources=Resources(MILLI, GIB))
    assert fill(before, True, need("gpu_memory", 5.2 * GIB))[0] == before, "it asks for no GPU"


def test_a_prediction_that_is_refused_keeps_nobody_from_submitting() -> None:
    invocation: Any = Answering(need("memory", GIB))
    invocation.refused = "too many requests"
    before = describe_job(["train"], finish_by="+1h")
    assert filled(invocation, before, False, True) == before
    say_chance(invocation, before, True)
    assert len(invocation.said) == 2 and all("too many requests" in line for line in invocation.said)


@pytest.mark.parametrize("word", ["batch=1e308", "batch=-1e16", "x" * 2000 + "=1"])
def test_a_feature_that_no_message_can_have_is_refused_in_words(word: str) -> None:
    with pytest.raises(BadValue, match="out of bounds"):
        parse_features((word,))


@pytest.mark.parametrize("word", ["batch", "=4", "batch=", "batch=many", "batch=nan", "batch=inf"])
def test_a_feature_is_a_number_by_name(word: str) -> None:
    with pytest.raises(BadValue, match="is not a number by name"):
        parse_features((word,))


def test_a_feature_is_given_once() -> None:
    with pytest.raises(BadValue, match="--feature batch is given twice"):
        parse_features(("batch=1", "rate=2", "batch=3"))


def test_features_are_read_as_numbers() -> None:
    assert parse_features(("batch=64", "rate=1e-3")) == {"batch": 64.0, "rate": 0.001}
    with pytest.raises(BadValue, match="17 features are too many"):
        parse_features(tuple(f"f{number}=1" for number in range(17)))
