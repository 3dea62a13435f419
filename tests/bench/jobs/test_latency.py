"""The figures that are made of latencies."""

from bench.jobs import latency


def test_latencies_are_told_as_percentiles_and_as_multiples_of_the_floor() -> None:
    series = {"floor_start": [1.0], "floor_done": [2.0], "start": [5.0], "done": [8.0], "streamed_start": [6.0]}
    found = latency.figures(series)
    assert found["floor_start_p50_ms"] == 1.0
    assert found["submit_to_done_p99_ms"] == 8.0
    assert found["submit_to_streamed_start_p50_ms"] == 6.0
    assert (found["start_times_floor"], found["done_times_floor"]) == (5.0, 4.0)
