"""A job's limits in words, and what options say a node is to lend."""

import pytest
from click.testing import CliRunner

from distributed_grid.cli.main import main
from distributed_grid.cli.options import lending, limits_words
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import JobLimits
from distributed_grid.protocol.nodes import Lending


def test_limits_are_told_in_words_and_none_by_none() -> None:
    assert limits_words(JobLimits()) == ""
    whole = JobLimits(warn_signal=10, warn_before=300.0, pids=50, cpu=True)
    said = "SIGUSR1 5m00s before the time limit · 50 processes and threads · no more CPU time than granted"
    assert limits_words(whole) == said


def test_only_the_options_that_are_given_say_what_a_node_lends() -> None:
    none = dict.fromkeys(("cores", "memory", "gpus", "share"))
    assert lending(none) == Lending()
    all_of_it = lending({"cores": 0.0, "memory": "512M", "gpus": 0, "share": False})
    assert all_of_it == Lending(max_share_cpu=0.0, max_share_memory_gb=0.5, max_share_gpu=0, can_share=False)
    assert lending(none | {"memory": "0"}) == Lending(max_share_memory_gb=0.0)
    with pytest.raises(BadValue, match="is not a size"):
        lending(none | {"memory": "lots"})
    with pytest.raises(BadValue, match="is no number of cores"):
        lending(none | {"cores": float("nan")})


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "--user", ""],
        ["cancel", "--user", " "],
        ["ledger", "--user", ""],
        ["ledger", "--node", ""],
        ["shared-status", "--node", ""],
        ["trends", ""],
        ["quota", "show", ""],
        ["boost", "status", "--node", ""],
        ["config", "show", "--node", ""],
        ["node", "remove", ""],
    ],
)
def test_an_empty_name_does_not_mean_all_of_them(words: list[str]) -> None:
    done = CliRunner().invoke(main, ["--coordinator", "ws://127.0.0.1:1", *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it is empty; leave it out, or name something" in done.stderr
