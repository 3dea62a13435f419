"""The schema: every setting, and the other names that the file may have for some."""

import pytest

from distributed_grid.config.kinds import Path
from distributed_grid.config.render import format_value
from distributed_grid.config.schema import ALIASES, MOVED, NAMED, NODE_SETTINGS, SETTINGS, Root


@pytest.mark.parametrize("path", SETTINGS | NODE_SETTINGS, ids=".".join)
def test_the_default_of_a_setting_is_a_value_that_it_may_hold(path: Path) -> None:
    one = (SETTINGS | NODE_SETTINGS)[path]
    assert one.doc and one.kind.name
    if one.default not in (None, "", (), {}) and one.kind.shape == "scalar":
        assert one.kind.read([format_value(one.default)]) == one.default


def test_another_name_means_one_setting_and_hides_none() -> None:
    assert set(ALIASES.values()) <= SETTINGS.keys()
    assert not ALIASES.keys() & SETTINGS.keys() and not MOVED.keys() & SETTINGS.keys()


def test_what_is_said_of_settings_is_said_of_settings_that_are_there() -> None:
    for section, *names in NAMED:
        assert all(hasattr(getattr(Root(), section), name) for name in names)
