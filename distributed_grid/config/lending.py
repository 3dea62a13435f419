"""The settings about lending in a configuration: those of all nodes, and those of one node."""

from typing import Any

from distributed_grid.config.kinds import Path
from distributed_grid.config.schema import NODE_SETTINGS, SETTINGS
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.config.sharing import NodeSharing, ResourceSharing, Thresholds
from distributed_grid.protocol.nodes import LENDING, Layer, Lending, over

_SHARING = ("resource_sharing",)
GENERAL: dict[str, Path] = {path[-1]: path for path in SETTINGS if path[:1] == _SHARING and path[-1] in LENDING}
"""Where a setting stands for all nodes, by its name."""
SINGLE: dict[str, Path] = {path[-1]: path for path in NODE_SETTINGS if path[:1] == _SHARING}
"""Where it stands in an entry of `nodes`."""


def defaults() -> Lending:
    """The settings of a node that is not configured."""
    of = (NodeSharing(), Thresholds(), ResourceSharing())
    found = {name: value for section in of for name, value in vars(section).items() if name in LENDING}
    return Lending(**found)


def of_all(config: ClusterConfig, whose: str) -> Layer:
    """The settings under `resource_sharing`; every origin begins with `whose` configuration it is."""
    usual = ResourceSharing(), Thresholds()
    said = config.resource_sharing, config.resource_sharing.thresholds
    found = {}
    for name, path in GENERAL.items():
        at = 1 if "thresholds" in path else 0
        origin = config.origins.get(".".join(path), "")
        if origin or getattr(said[at], name) != getattr(usual[at], name):
            found[name] = getattr(said[at], name), origin
    return _layer(found, whose)


def of_node(config: ClusterConfig, node: str, whose: str) -> Layer:
    """The settings in the entry of this node."""
    said, usual = config.sharing_of(node), NodeSharing()
    found = {}
    for name, path in SINGLE.items():
        origin = config.origins.get(f"nodes.{node}.{'.'.join(path)}", "")
        if origin or getattr(said, name) != getattr(usual, name):
            found[name] = getattr(said, name), origin
    return _layer(found, f"{whose}, nodes[{node}]")


def of_agent(config: ClusterConfig, node: str) -> Layer:
    """Return the settings for a node in the configuration of its own machine."""
    return over(of_all(config, "node"), of_node(config, node, "node"))


def _layer(found: dict[str, tuple[Any, str]], whose: str) -> Layer:
    values = {name: value for name, (value, _) in found.items()}
    origins = {name: f"{whose}: {origin}" if origin else whose for name, (_, origin) in found.items()}
    return Layer(Lending(**values), origins)
