"""Trends on the wire: windows by their names."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.history.trends import RATES, WINDOWS, Measured, parse_window


@pytest.mark.parametrize(("name", "seconds"), WINDOWS.items())
def test_a_window_is_known_by_its_name(name: str, seconds: float) -> None:
    assert parse_window(f" {name.upper()}") == seconds


def test_another_window_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadValue) as refused:
        parse_window("2h")
    assert refused.value.hint == "there are 5m, 15m, 1h, 1d, 1w"


def test_only_disk_and_net_are_rates() -> None:
    assert set(Measured) - RATES == {Measured.CPU, Measured.MEMORY, Measured.GPU, Measured.GPU_MEMORY}
