"""The use of machines over time."""

from distributed_grid.simulator.lab.formats import use
from distributed_grid.simulator.lab.trace import Trace


def numbered(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.splitlines(), 1))


def series(text: str, separator: str = ",") -> Trace:
    return use.read_series(numbered(text), separator, "m")


def test_one_number_a_line_is_percent_every_five_minutes() -> None:
    trace = use.read_numbers(numbered("10\n10\n50\n"), "m")
    assert trace.use[0].samples == ((0.0, 0.1), (600.0, 0.5)), "only changes are kept"


def test_a_bad_number_is_left_out_and_the_next_keeps_its_time() -> None:
    trace = use.read_numbers(numbered("10\nbusy\n50\n"), "m")
    assert trace.use[0].samples == ((0.0, 0.1), (600.0, 0.5))
    assert trace.words()[1] == "1 row left out, line 2: the use is not a number: 'busy'"


def test_use_may_be_a_count_of_a_total_or_what_is_idle_of_it() -> None:
    busy = series("time,active,total\n2020-01-01 00:00:00,1,4\n2020-01-01 00:01:00,2,4\n")
    idle = series("time,total_gpu_num,idle_gpu_num\n0,8,8\n60,8,2\n")
    assert busy.use[0].samples == ((0.0, 0.25), (60.0, 0.5)) and idle.use[0].samples == ((0.0, 0.0), (60.0, 0.75))


def test_a_column_in_percent_stays_percent_however_small() -> None:
    trace = series("Timestamp [ms];\tCPU usage [%]\n100;\t0.5\n400;\t1\n", ";")
    assert trace.use[0].samples == ((0.0, 0.005), (300.0, 0.01)) and not trace.assumed


def test_a_column_of_parts_is_told_from_one_of_percent() -> None:
    parts, percent = series("time,use\n0,0.5\n1,1"), series("time,use\n0,50\n1,100")
    assert parts.use[0].samples == percent.use[0].samples
    assert "as a part" in parts.assumed[0] and "as percent" in percent.assumed[0], "both are assumed"


def test_only_a_header_with_time_and_use_is_that_of_a_series() -> None:
    assert use.is_series(["Time", "use"]) and not use.is_series(["time", "colour"]) and not use.is_series(["use"])
