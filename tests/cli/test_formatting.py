"""How things are put: nothing that a stranger wrote acts on the terminal, every end of a job has its sentence."""

import json
from typing import Any

import pytest

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, printable
from distributed_grid.cli.formatting import grant_words, iso, job_json, table, verdict
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State
from distributed_grid.protocol.resources import GIB, GpuShare, Grant, Resources, ResourceType, format_ranges


def job(outcome: Outcome | None = None, **fields: Any) -> JobView:
    base = {
        "id": "j-abc",
        "user": "me",
        "state": State.ENDED,
        "spec": JobSpec(argv=("true",), time_limit=90.0),
        "request": Request(Resources(cpu=1000)),
        "submitted": 1.5,
        "node": "n1",
        "outcome": outcome,
    }
    return JobView(**(base | fields))  # type: ignore[arg-type]


def test_names_cannot_act_on_a_terminal() -> None:
    shown = table(Invocation(), ("NAME", "STATE"), [("\x1b[2Jevil\r\n", "up"), ("plain", "up")])
    assert shown == "NAME                 STATE\n\\x1b[2Jevil\\x0d\\x0a  up\nplain                up\n"
    assert printable("grün\u202e") == "grün\\u202e"


def test_states_are_coloured_only_where_that_is_asked_for() -> None:
    rows = [("n1", "up", "x")]
    assert "\x1b" not in table(Invocation(color="never"), ("A", "B", "C"), rows)
    colored = table(Invocation(color="always"), ("A", "B", "C"), rows)
    assert "\x1b[32mup\x1b[0m" in colored


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome(Cause.EXITED, code=3), ""),
        (Outcome(Cause.SIGNALLED, signal=9), "j-abc was killed by signal 9 (SIGKILL)"),
        (Outcome(Cause.TIME_LIMIT, signal=15), "j-abc was ended at its time limit of 1m30s"),
        (Outcome(Cause.CANCELLED, text="^C", started=False), "j-abc was cancelled before it ran: ^C"),
        (Outcome(Cause.NOT_FOUND, text="x: not found"), "j-abc could not be run on n1: x: not found"),
        (
            Outcome(Cause.OUT_OF_MEMORY, text="used 2G of 1G"),
            "j-abc ran out of memory: used 2G of 1G (ask for more with --mem, or see --retry-on oom)",
        ),
        (Outcome(Cause.NODE_LOST), "j-abc is lost with its node n1"),
        (Outcome(Cause.SUPERVISOR_LOST), "j-abc failed on n1: supervisor lost"),
    ],
)
def test_every_end_has_its_sentence(outcome: Outcome, says: str) -> None:
    assert verdict(job(outcome)) == says


@pytest.mark.parametrize("cause", Cause)
def test_no_end_but_a_plain_exit_is_silent(cause: Cause) -> None:
    assert bool(verdict(job(Outcome(cause)))) == (cause is not Cause.EXITED)


def test_grants_and_ranges_read_well() -> None:
    assert format_ranges([3, 0, 1, 2, 6]) == "0-3,6"
    assert format_ranges([]) == ""
    grant = Grant(cores=(0, 1), memory=GIB, gpus=(GpuShare("GPU-a"), GpuShare("GPU-b", 250)), virtual=True)
    assert grant_words(grant) == "virtual cores 0-1, 1G memory, GPU-a, 0.25 of GPU-b"
    assert grant_words(Grant(shared_core=3, shared_milli=500)) == "0.5 of core 3"


def test_json_has_times_in_utc_and_every_key() -> None:
    shown = job_json(job())
    assert (shown["submitted"], shown["started"], shown["outcome"]) == ("1970-01-01T00:00:01.500Z", None, None)
    assert iso(0.0) is None


# --- on a terminal ----------------------------------------------------------------------------------------------------

EVIL = "a\x1b[2J\x07\x9b31m\u202eb\u2066c\x7f\r\nd"
"""What would clear a screen, ring, colour, and turn the order of reading."""


def test_nothing_from_elsewhere_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = formatting.table(Invocation(), ("NAME",), [(EVIL,)])
    said = "\n".join(GridError(EVIL, why=EVIL, hint=EVIL).lines())
    Invocation().say(EVIL)
    for text in (shown, said, capsys.readouterr().err):
        assert all(line.isprintable() for line in text.split("\n")), repr(text)
    assert said.count("a\\x1b[2J\\x07\\x9b31m\\u202eb\\u2066c\\x7f\\x0d\\x0ad") == 3


def test_one_thing_is_one_line_of_jsonl_as_each_of_several_is(capsys: pytest.CaptureFixture[str]) -> None:
    formatting.emit_json(Invocation(output="jsonl"), {"boost": {"id": "j-1"}}, "boost")
    formatting.emit_json(Invocation(output="jsonl"), {"boosts": [{"id": "j-1"}]}, "boosts")
    assert capsys.readouterr().out == '{"schema":1,"id":"j-1"}\n' * 2


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_json_says_the_same_and_does_not_act_on_a_terminal_either(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    formatting.emit_json(Invocation(output=form), {"rows": [{"name": EVIL}]}, "rows")
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.split("\n")), repr(text)
    found = json.loads(text)
    assert (found if form == "jsonl" else found["rows"][0])["name"] == EVIL


def test_a_boost_is_shown_by_what_it_does_and_not_by_a_command_that_nobody_typed() -> None:
    lent = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 2000)
    view = job(spec=JobSpec(("ray", "start", "--block"), boost=lent))
    assert formatting.job_row(view)[1] == formatting.command(view.spec) == "boost cpu 2 for gpu-master"
    assert formatting.job_label(view) == "j-abc (boost cpu 2 for gpu-master)"
    assert job_json(view)["boost"]["amount"] == 2 and job_json(job())["boost"] is None
    failed = job(Outcome(Cause.OUT_OF_MEMORY), spec=view.spec)
    assert verdict(failed).endswith("ran out of memory (ask for a boost of more memory)")
    named = job(spec=JobSpec(("echo", "a b"), name="greeting"))
    assert (formatting.job_row(named)[1], formatting.command(named.spec)) == ("greeting", "echo 'a b'")
