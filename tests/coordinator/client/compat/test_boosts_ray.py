"""What a program of Ray's gives its tasks to be on one boost. With a real Ray: tests/ray/test_exclusive.py and
tests/ray/test_boost_api.py."""

from typing import Any

import pytest

from distributed_grid.orchestration.resource_boost_manager import (
    boost_placement_group_options,
    boost_scheduling_options,
)
from distributed_grid.protocol.errors import BadValue


def test_what_ray_is_given_to_use_one_boost_and_no_other() -> None:
    selector = {"grid-boost": "j-xnbj3nh7tusz"}
    assert boost_scheduling_options("j-xnbj3nh7tusz") == {"label_selector": selector}
    assert boost_placement_group_options("j-xnbj3nh7tusz", 2) == {
        "strategy": "STRICT_PACK",
        "bundle_label_selector": [selector, selector],
    }


@pytest.mark.parametrize("id_", ["", "last", "j-xnbj", "j-xnbj3nh7tusz.1", "j-xnbj3nh7tusz ", None])
def test_an_id_that_ray_would_wait_for_forever_is_refused(id_: Any) -> None:
    with pytest.raises(BadValue, match="no id of a boost"):
        boost_scheduling_options(id_)
    with pytest.raises(BadValue, match="no id of a boost"):
        boost_placement_group_options(id_)
