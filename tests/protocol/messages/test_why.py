"""An explanation is a question of its own: no list, and nothing to go on with."""

from distributed_grid.protocol.messages import AskWhy, NodeForecast, Why, joined, next_page
from tests.protocol.samples import MESSAGES


def test_an_explanation_is_one_answer_with_its_text_about_how_long_the_node_stays_idle() -> None:
    why, forecast = MESSAGES["Why"], MESSAGES["NodeForecast"]
    assert isinstance(why, Why) and isinstance(forecast, NodeForecast)
    assert next_page(AskWhy(id=13, job="j-a"), why, 14) is None
    assert (joined(why), joined(forecast)) == (why, forecast)
