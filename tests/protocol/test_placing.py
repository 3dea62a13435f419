import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.placing import Strategy, parse_strategy


@pytest.mark.parametrize("text", ["best-fit", "Best-Fit", " best_fit "])
def test_a_strategy_is_known_by_its_name_however_it_is_written(text: str) -> None:
    assert parse_strategy(text) is Strategy.BEST_FIT


def test_an_unknown_strategy_is_refused_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(BadValue) as refused:
        parse_strategy("bestfit")
    assert "did you mean best-fit?" in refused.value.hint
