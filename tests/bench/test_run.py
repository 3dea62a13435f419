"""Which words of the command line go to which benchmark."""

import sys

import pytest

from bench import run


def test_options_go_to_the_benchmark_before_them() -> None:
    words = ["throughput", "--walls", "none", "latency", "connections", "1000", "--tls"]
    assert run.parse(words) == (
        [("throughput", ["--walls", "none"]), ("latency", []), ("connections", ["1000", "--tls"])],
        [],
    )


def test_a_mistyped_name_is_no_option() -> None:
    assert run.parse(["latency", "throughptu"]) == ([("latency", [])], ["throughptu"])
    assert run.parse(["--jobs", "5", "latency"]) == ([("latency", [])], ["--jobs", "5"])


def test_other_systems_are_run_only_where_they_are_named() -> None:
    assert set(run.LARGE) <= set(run.NAMES)


@pytest.mark.parametrize("name", run.NAMES)
def test_a_benchmark_does_not_ignore_an_option_that_it_does_not_have(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--no-such-option"])
    with pytest.raises(SystemExit) as ended:
        run.load(name).main()
    assert ended.value.code == 2 and "--no-such-option" in capsys.readouterr().err
