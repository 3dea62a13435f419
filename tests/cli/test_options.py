"""A job's limits in words."""

from distributed_grid.cli.options import limits_words
from distributed_grid.protocol.jobs import JobLimits


def test_limits_are_told_in_words_and_none_by_none() -> None:
    assert limits_words(JobLimits()) == ""
    whole = JobLimits(warn_signal=10, warn_before=300.0, pids=50, cpu=True)
    said = "SIGUSR1 5m00s before the time limit · 50 processes and threads · no more CPU time than granted"
    assert limits_words(whole) == said
