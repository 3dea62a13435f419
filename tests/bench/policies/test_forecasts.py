"""The bench of forecasts scores what the product says."""

import lzma
import math
import random
from pathlib import Path

import pytest

from bench.policies import _traces, forecasts
from distributed_grid.coordinator.core.trends.forecast import PAST, forecast


@pytest.mark.parametrize("smooth", [True, False])
def test_it_scores_the_forecasts_of_the_product(smooth: bool) -> None:
    draw = random.Random(1)
    values = [0.5 + 0.4 * math.sin(at / 30) if smooth else draw.random() for at in range(PAST + 60)]
    values[100] = values[PAST + 20] = math.nan
    steps, inside, said = 6, 0, []
    for at in range(PAST, len(values) - steps):
        told = forecast(values[: at + 1], steps, 1.0)
        if told is not None and math.isfinite(truth := values[at + steps]):
            said.append(abs(told.value - truth))
            inside += told.low <= truth <= told.high
    found = forecasts.score([_traces.Series("m", 0.0, values)], steps)
    assert found["forecasts"] == len(said) and found["coverage"] == round(inside / len(said), 3)
    assert found["error of forecast"] == pytest.approx(sum(said) / len(said), abs=1e-4)
    assert (found["sloped"] > 0.5) is smooth


def test_one_machine_of_bitbrains_is_read_without_pyarrow(tmp_path: Path) -> None:
    text = "Timestamp [ms];\tCPU cores;\tCPU usage [%]\n600;\t1;\t25.0\n900;\t1;\t150\n1500;\t1;\t0\n"
    (tmp_path / "bitbrains.csv.xz").write_bytes(lzma.compress(text.encode()))
    (one,) = _traces.bitbrains_alone(tmp_path)
    assert (one.begin, one.values[:2], one.values[3]) == (600.0, [0.25, 1.0], 0.0) and math.isnan(one.values[2])
