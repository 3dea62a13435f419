import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.history.trends import IdleChance

HOUR = 3600.0


def forecast(*likely: float, cases: int = 31, believed: bool = True) -> IdleForecast:
    """Of half an hour, two and four hours."""
    horizons = (0.5 * HOUR, 2 * HOUR, 4 * HOUR)
    lasting = tuple(
        IdleChance(seconds, one, cases, round(one * cases), 1204, 987, believed)
        for seconds, one in zip(horizons, likely, strict=False)
    )
    return IdleForecast(1e9, 11_400.0, lasting)


def test_between_horizons_it_falls_evenly_and_beyond_them_as_before() -> None:
    one = forecast(0.9, 0.6, 0.5)
    assert [one.stays(hours * HOUR) for hours in (0, 0.25, 0.5, 1.25, 2, 3, 4)] == pytest.approx(
        [1.0, 0.95, 0.9, 0.75, 0.6, 0.55, 0.5]
    )
    assert [one.stays(hours * HOUR) for hours in (4.5, 8, 12)] == pytest.approx([0.45, 0.25, 0.125])


def test_nothing_is_known_without_a_past_or_belief() -> None:
    for one in (forecast(), forecast(0.9, 0.6, 0.5, cases=0), forecast(0.9, 0.6, 0.5, believed=False)):
        assert one.stays(HOUR) is None and one.at(2 * HOUR) is None


def test_a_horizon_that_is_not_believed_is_left_out() -> None:
    lasting = [*forecast(0.9, 0.1, 0.5).lasting]
    lasting[1] = IdleChance(2 * HOUR, 0.1, 31, 3, 1204, 987, False)
    one = IdleForecast(1e9, 0.0, tuple(lasting))
    assert one.at(2 * HOUR) is None and one.stays(2 * HOUR) == pytest.approx(0.9 - 0.4 * 1.5 / 3.5)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=3),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_whatever_is_told_it_is_a_probability_that_only_falls(told: list[float], first: float, then: float) -> None:
    one = IdleForecast(0.0, 0.0, tuple(IdleChance(7200.0 * (at + 1), likely, 9, 9) for at, likely in enumerate(told)))
    sooner, later = one.stays(min(first, then)), one.stays(max(first, then))
    if sooner is None or later is None:
        assert all(likely != likely for likely in told)
    else:
        assert 0.0 <= later <= sooner <= 1.0


def test_the_past_is_told_in_words_and_so_is_that_it_is_not_believed() -> None:
    said = forecast(0.9, 0.81, 0.5).words("lab3", 5400.0)
    assert said == "lab3 is idle for 3h10m; of 31 times that it was so, 25 lasted 2h00m more"
    off = forecast(0.9, 0.81, 0.5, believed=False).words("lab3", 5400.0)
    assert off == f"{said}, but that is not used: forecasts of about 81% came true 987 of 1204 times"
    assert "never was idle for about so long" in forecast(0.9, cases=0).words("lab3", 1.0)
    assert forecast().words("lab3", 1.0) == ""


def test_a_node_that_was_never_idle_for_so_long_goes_by_its_past_in_all() -> None:
    one = IdleForecast(1e9, 11_400.0, (IdleChance(7200.0, 0.8, past=31),))
    assert one.stays(7200.0) == one.at(7200.0) == 0.8
    never = "lab3 is idle for 3h10m; it never was idle for about so long before"
    assert one.words("lab3", 1.0) == f"{never}, and by its past in all it stays so 2h00m more with 80%"


def test_of_a_node_in_use_nothing_is_said_about_how_long_it_is_idle() -> None:
    one = IdleForecast(1e9, 0.0, forecast(0.9, 0.81, 0.5).lasting)
    assert one.words("lab3", 5400.0) == "" and one.stays(7200.0) == 0.81
