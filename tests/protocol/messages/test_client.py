"""A boost as clients see it says why it ends."""

from msgspec.structs import replace

from distributed_grid.protocol.jobs import State, Step
from distributed_grid.protocol.messages import BoostView
from tests.protocol.samples import VIEW


def test_a_boost_says_why_it_ends_from_when_it_is_told_to() -> None:
    story = (Step(1.0, State.RUNNING, "on n1"), Step(2.0, State.STOPPING, "its owner is back"))
    assert BoostView(replace(VIEW, state=State.RUNNING, story=story)).ending == ""
    assert BoostView(replace(VIEW, state=State.STOPPING, story=story)).ending == "its owner is back"
    assert BoostView(replace(VIEW, state=State.STOPPING, story=())).ending == ""
