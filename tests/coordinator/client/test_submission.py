"""A job to submit, made of a command and options; and when it may begin, as people write it."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.client.submission import describe_hold, describe_job, parse_begin
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import GIB, Resources

NOW = datetime(2030, 1, 31, 22, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("22:15", datetime(2030, 1, 31, 20, 15, tzinfo=UTC)),
        ("9:05:30", datetime(2030, 2, 1, 7, 5, 30, tzinfo=UTC)),
        ("22:00", datetime(2030, 2, 1, 20, 0, tzinfo=UTC)),
        ("2030-02-03", datetime(2030, 2, 2, 22, 0, tzinfo=UTC)),
        ("2030-02-03T10:00", datetime(2030, 2, 3, 8, 0, tzinfo=UTC)),
        ("2030-02-03T10:00Z", datetime(2030, 2, 3, 10, 0, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_of_here(text: str, at: datetime) -> None:
    assert parse_begin(text, NOW) == {"begin": at.timestamp()}


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_beyond_a_change_of_the_clocks_is_by_the_clock_of_then(berlin: None) -> None:
    summer, eve = datetime(2030, 7, 1, 12, 0), datetime(2030, 10, 26, 23, 0)
    assert parse_begin("2030-12-24T22:15", summer) == {"begin": datetime(2030, 12, 24, 21, 15, tzinfo=UTC).timestamp()}
    assert parse_begin("22:15", eve) == {"begin": datetime(2030, 10, 27, 21, 15, tzinfo=UTC).timestamp()}
    job = describe_job("true", begin="2030-12-24T22:15")
    july = describe_job("true", begin="2030-07-24T22:15")
    assert job.begin == datetime(2030, 12, 24, 21, 15, tzinfo=UTC).timestamp()
    assert july.begin == datetime(2030, 7, 24, 20, 15, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59"])
def test_the_ends_of_the_calendar_are_times_too(berlin: None, text: str) -> None:
    utc = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    assert abs(parse_begin(text, datetime(2030, 7, 1))["begin"] - max(0.0, utc)) <= 3600.0


def test_a_delay_is_counted_by_who_takes_the_job() -> None:
    assert parse_begin("+1h30m", NOW) == {"delay": 5400.0}


def test_a_moment_long_ago_is_at_once_however_it_is_written() -> None:
    for when in ("1960-01-01", datetime(1960, 1, 1), datetime(1960, 1, 1, tzinfo=UTC)):
        assert parse_begin(when, NOW) == {"begin": 0.0}
        assert describe_job("true", begin=when).begin == 0.0


@pytest.mark.parametrize("text", ["", "25:00", "tomorrow", "+", "2030-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_begin(text, NOW)


@pytest.mark.parametrize("option", ["begin", "finish_by"])
def test_a_number_is_no_time(option: str) -> None:
    with pytest.raises(BadValue, match="the time 5 cannot be read"):
        describe_job("true", **{option: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["nodes", "only", "exclude", "labels", "near", "apart", "retry_on"])
def test_a_string_for_an_option_of_several_names_one(option: str) -> None:
    one, listed = ({option: text} for text in ("lost", ["lost"]))
    assert describe_job("true", **one).request == describe_job("true", **listed).request  # type: ignore[arg-type]
    if option != "retry_on":
        hold = describe_hold(**one)  # type: ignore[arg-type]
        assert hold.request == describe_hold(**listed).request  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["after", "after_ok", "after_any"])
def test_a_string_for_what_to_wait_for_is_one_job(option: str) -> None:
    assert [one.on for one in describe_job("true", **{option: "uh"}).after] == ["uh"]  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["nodes", "only", "labels", "retry_on", "after_ok"])
def test_what_is_no_name_is_refused(option: str) -> None:
    for wrong in ([3], 3.5, [None]):
        with pytest.raises(BadValue, match="no names"):
            describe_job("true", **{option: wrong})  # type: ignore[arg-type]
    assert describe_job("true", **{option: ""}).request == describe_job("true").request  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"resources": {"cpu": 2}}, {"warn_signal": 10}, {"pids_limit": "100"}, {"gpu_model": 5}, {"retries": "2"},
        {"max_fails": "3", "array": "0-9"}, {"features": ["batch"]}, {"features": 3}, {"env": "SEED=7"},
        {"retries": True, "retry_on": "lost"}, {"pids_limit": True}, {"nodes": True}, {"grace": True},
        {"max_fails": False, "array": "0-9"}, {"immediate": 1}, {"cpu_limit": "no"}, {"requeue": 0}, {"stdin": None},
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_option(options: dict[str, Any]) -> None:
    option, given = next(iter(options.items()))
    for _ in range(2):
        with pytest.raises(BadValue, match=f"{option} cannot be") as caught:
            describe_job("true", **options)
        assert repr(given) in caught.value.what and caught.value.hint.startswith("give ")


def test_none_is_what_is_not_said() -> None:
    nothing = dict.fromkeys(
        ("cpus", "memory", "resources", "env", "warn_signal", "pids_limit", "gpu_model", "retries", "max_fails"), None
    )
    assert describe_job("true", key="k", **nothing) == describe_job("true", key="k")  # type: ignore[arg-type]


def test_an_unknown_kind_of_output_full_is_refused_whatever_it_is() -> None:
    for wrong in ("later", ["wait"], {"wait": 1}):
        with pytest.raises(BadValue, match="output_full .* is not known"):
            describe_job("true", output_full=wrong)  # type: ignore[arg-type]


def test_a_command_is_text_or_words() -> None:
    for wrong in (5, None, b"true", ["sleep", 5], {"true": 1}.values()):
        with pytest.raises(BadValue, match="is not a command") as caught:
            describe_job(wrong)  # type: ignore[arg-type]
        assert caught.value.hint == "give a string, or a list of strings"


def test_amounts_are_read_in_the_seeds_units_and_a_job_has_a_core() -> None:
    assert describe_job("x", memory=4).request.resources == Resources(cpu=1000, memory=4 * GIB)
    assert describe_job("x", gpus="0.25", cpus=2).request.resources == Resources(cpu=2000, gpu=250)
    assert describe_job(["a b", "c"], time_limit="1h30m").spec.time_limit == 5400
    assert describe_job("x").key != describe_job("x").key
    assert (
        describe_job("x", only=iter(["n1"])).request.constraints == describe_job("x", only=["n1"]).request.constraints
    )


def test_jobs_that_ask_for_the_same_share_what_was_made_of_it_and_nothing_else() -> None:
    options: dict[str, Any] = {
        "cpus": 2,
        "labels": ["a=b"],
        "retry_on": ["lost"],
        "warn_signal": "USR1@5",
        "time_limit": 60,
    }
    one, other = describe_job("x", **options), describe_job("y", **options)
    assert one.request is other.request and one.spec.limits is other.spec.limits
    assert describe_job("x", **options | {"cpus": 3}).request == msgspec.structs.replace(
        one.request, resources=Resources(cpu=3000)
    )
    for _ in range(2):
        with pytest.raises(BadValue):
            describe_job("x", time_limit=[1])  # type: ignore[arg-type]
        with pytest.raises(BadValue):
            describe_job("x", memory=["4G"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"cpus": 0},
        {"cpus": -1},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"memory": 1e308},
        {"gpus": 1.5},
        {"priority": "urgentt"},
        {"time_limit": "soon"},
        {"command": ""},
        {"command": "echo 'open"},
        {"command": []},
        {"env": "SEED=7"},
        {"env": ["SEED"]},
        {"max_fails": 3},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(bad: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        describe_job(**({"command": "true"} | bad))


def test_every_job_has_a_key_of_its_own_in_forked_processes_too() -> None:
    reader, writer = os.pipe()
    before = describe_job("true").key
    if not (child := os.fork()):
        os.write(writer, describe_job("true").key.encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs, ours = os.read(reader, 100).decode(), describe_job("true").key
    os.close(reader)
    os.close(writer)
    assert before < ours and theirs[:24] != ours[:24]
    assert len({describe_job("true").key for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("echo a | cat", "|"),
        ("make && make test", "&&"),
        ("a || b", "||"),
        ("python x.py > out", ">"),
        ("python x.py >out", ">out"),
        ("python x.py 2>&1", "2>&1"),
        ("cat < in", "<"),
        ("cd x; ls", "x;"),
        ("sleep 1 &", "&"),
    ],
)
def test_a_command_for_a_shell_is_refused_with_what_to_write(command: str, word: str) -> None:
    with pytest.raises(BadValue, match="no shell runs the command") as caught:
        describe_job(command)
    assert caught.value.what.startswith(repr(word))
    assert f'["sh", "-c", "{command}"]' in caught.value.hint


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("grep 'a|b' file", ("grep", "a|b", "file")),
        ("echo '|' \"&&\" \\; \\|", ("echo", "|", "&&", ";", "|")),
        ("curl http://x/?a=1&b=2", ("curl", "http://x/?a=1&b=2")),
        ("find . -exec ls {} ';'", ("find", ".", "-exec", "ls", "{}", ";")),
        ("sh -c 'echo a | cat'", ("sh", "-c", "echo a | cat")),
        ("awk '$1 > 3' f", ("awk", "$1 > 3", "f")),
    ],
)
def test_a_command_that_a_shell_would_pass_on_is_taken(command: str, argv: tuple[str, ...]) -> None:
    assert describe_job(command).spec.argv == argv


def test_a_hold_is_a_job_that_ends_by_itself_and_does_not_wait_unless_it_is_to() -> None:
    hold = describe_hold(cpus=2, memory="4G", duration="30m", name="evening", only=("lab1",))
    assert (hold.spec.hold, hold.spec.time_limit, hold.spec.grace, hold.spec.name) == (True, 1800.0, 0.0, "evening")
    assert hold.request.immediate and not hold.request.requeue and hold.request.resources == Resources(2000, 4 << 30)
    assert not describe_hold(cpus=2, immediate=False).request.immediate
    assert describe_job("true", within="evening").request.within == "evening"
