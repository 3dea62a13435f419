"""The settings of what is lent: those of one node are those of all nodes, or bounds of its own."""

from distributed_grid.config.kinds import settings_of
from distributed_grid.config.sharing import NodeSharing, ResourceSharing

OWN = {"can_share", "max_share_cpu", "max_share_memory_gb", "max_share_gpu", "priority"}
"""The settings that only single nodes have."""


def test_a_setting_of_a_node_may_hold_what_that_of_all_nodes_may() -> None:
    general = {one.name: one for one in settings_of(ResourceSharing)}
    single = {one.name: one for one in settings_of(NodeSharing)}
    assert single.keys() - general.keys() == OWN
    for name in single.keys() & general.keys():
        assert single[name].kind.name == general[name].kind.name


def test_a_node_has_the_settings_of_all_nodes_where_it_has_none_of_its_own() -> None:
    assert all(getattr(NodeSharing(), one.name) is None for one in settings_of(NodeSharing) if one.name not in OWN)
