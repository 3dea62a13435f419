"""The configuration of the grid: finds, reads and checks it. Every program that has settings uses it.

Later sources win: defaults, then the file, then `GRID_…` variables, then flags. Every value knows its origin.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from distributed_grid.config import scaling
from distributed_grid.config.kinds import ConfigError, Problem, sections_of, settings_of
from distributed_grid.config.places import (
    NO_HOST,
    as_path,
    find,
    joined_at,
    local_address,
    near_address,
    places,
    state_dir,
)
from distributed_grid.config.read import Found, Reader, Values
from distributed_grid.config.scaling import PoolSection, ScalingSection
from distributed_grid.config.schema import NAMED, SETTINGS, GpuBackend, Root
from distributed_grid.config.section import section
from distributed_grid.config.sharing import Node, NodeSharing, ResourceSharing
from distributed_grid.identity.member import Member
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import NAME, is_valid_name
from distributed_grid.protocol.sharing.policies import GAP, OffloadingMode, PolicyName, too_close
from distributed_grid.runtime.local import SCHEME, SOCKET, socket_path

__all__ = [
    "ClusterConfig",
    "ConfigError",
    "GpuBackend",
    "OffloadingMode",
    "PolicyName",
    "Problem",
    "Row",
    "SharingDisabled",
    "find",
    "load",
    "places",
    "state_dir",
]


T = TypeVar("T")
HEARTBEAT_MOST = 3.0
"""Seconds between two heartbeats: one may be late, and its node is not suspect yet (Policy.suspect_after)."""


class SharingDisabled(GridError):
    """`resource_sharing.enabled` is false."""

    def __init__(self, origin: str) -> None:
        super().__init__(
            "Resource sharing not enabled", why=f"{origin} says so", hint="set resource_sharing.enabled: true"
        )


class Row(NamedTuple):
    """One line of `grid config show`: a setting's dotted name, its value, and the origin of that."""

    name: str
    value: Any
    origin: str


@section(frozen=True)
class ClusterConfig(Root):
    """The whole configuration, checked. `path` is its file (None: there is none)."""

    path: Path | None = None
    warnings: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def from_yaml(cls, path: str | Path) -> "ClusterConfig":
        """The configuration in this file, under the environment's `GRID_…` variables. Raises ConfigError,
        BadValue."""
        return load(as_path("path", path))

    def coordinator_url(self) -> str:
        """Return the address of the coordinator for agents and clients."""
        if self.coordinator.url:
            return self.coordinator.url
        if self.coordinator.host == NO_HOST:
            return f"{SCHEME}{self.coordinator_state_dir() / SOCKET}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.coordinator.host, self.coordinator.host)  # noqa: S104
        return f"ws://[{host}]:{self.coordinator.port}" if ":" in host else f"ws://{host}:{self.coordinator.port}"

    def client_url(self) -> str:
        """Return the address of the coordinator for people on this machine: the configured one; that of a configured
        listener, by its socket, if its state is here, or by TLS, if they have joined its grid; else that of the grid
        that they are a member of."""
        own = self.coordinator
        if own.url:
            return own.url
        if not any(self.origins.get(f"coordinator.{name}", "default") != "default" for name in ("host", "port")):
            return near_address()
        joined = joined_at(own.host, own.port)
        return local_address(self.coordinator_state_dir()) or joined or self.coordinator_url()

    def agent_url(self, member: Member | None) -> str:
        """Return the address of the coordinator for the agent of this machine: the configured one; that of the grid it
        has joined; or that of a configured listener."""
        return self.coordinator.url or (member.url if member is not None else self.coordinator_url())

    def coordinator_state_dir(self) -> Path:
        """Return the state directory of the coordinator."""
        return Path(self.coordinator.state_dir).expanduser() if self.coordinator.state_dir else state_dir("coordinator")

    def node_name(self, given: str | None = None) -> str:
        """The name of this machine's node: as given, as configured, or the host's; `node` where that has none, or one
        that no node can have, such as `(none)`."""
        host = platform.node().partition(".")[0]
        return given or self.agent.name or (host if NAME.fullmatch(host) else "node")

    def agent_state_dir(self, name: str) -> Path:
        """Return the state directory of the agent of this node."""
        return Path(self.agent.state_dir).expanduser() if self.agent.state_dir else state_dir(f"agent-{name}")

    def require_sharing(self) -> None:
        """Raise SharingDisabled where sharing is switched off: requests to run are refused then."""
        if not self.resource_sharing.enabled:
            raise SharingDisabled(self.origins.get("resource_sharing.enabled", "the configuration"))

    def sharing_of(self, node: str) -> NodeSharing:
        """Return the settings for this node alone."""
        return next((one.resource_sharing for one in self.nodes if one.name == node), NodeSharing())

    def rows(self) -> list[Row]:
        """Every setting with its value and origin, in the order of the schema; nodes last."""
        rows = []
        for path in SETTINGS:
            name = ".".join(path)
            rows.append(Row(name, _at(self, path), self.origins.get(name, "default")))
        for node in self.nodes:
            if node.owner:
                name = f"nodes.{node.name}.owner"
                rows.append(Row(name, node.owner, self.origins.get(name, "default")))
            for key, value in vars(node.resource_sharing).items():
                name = f"nodes.{node.name}.resource_sharing.{key}"
                rows.append(Row(name, value, self.origins.get(name, "default")))
        for path in (*NAMED, ("pools",)):
            for one in _at(self, path):
                for setting in settings_of(type(one)):
                    name = ".".join((*path, one.name, setting.name))
                    if (origin := self.origins.get(name)) is not None:
                        rows.append(Row(name, getattr(one, setting.name), origin))
        return rows


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = getattr(value, name)
    return value


def load(
    path: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    here: Path | None = None,
) -> ClusterConfig:
    """The configuration from file, environment and flags (dotted setting to text). Raises ConfigError with all that
    is wrong in it."""
    environment = os.environ if environment is None else environment
    reader = Reader()
    file = find(path, environment, here)
    if file is not None:
        reader.read_file(file)
    reader.read_environment(environment)
    for name, text in (flags or {}).items():
        reader.set(tuple(name.split(".")), text, "flag --" + name.rpartition(".")[2].replace("_", "-"))
    return _checked(reader, file)


def _checked(reader: Reader, file: Path | None) -> ClusterConfig:
    origins = {".".join(path): found.origin for path, found in reader.values.items()}
    for listed, entries in reader.lists.items():
        for values in entries:
            name = values.get(("name",))
            for path, found in values.items():
                origins[f"{listed}.{name.value if name else '?'}.{'.'.join(path)}"] = found.origin
                origins.setdefault(f"{listed}.{name.value if name else '?'}", found.origin)
    root = _build(Root, (), reader.values)
    nodes = tuple(_build(Node, (), values) for values in reader.lists["nodes"])
    pools = tuple(_build(PoolSection, (), values) for values in reader.lists["pools"])
    named = {path[-1]: _build_named(path, reader, origins) for path in NAMED}
    root = replace(root, nodes=nodes, pools=pools, rights=replace(root.rights, **named))
    _check(root, origins, reader)
    if reader.problems:
        raise ConfigError(reader.problems)
    kept = {name: getattr(root, name) for name in Root.__dataclass_fields__}
    return ClusterConfig(**kept, path=file, warnings=tuple(reader.warnings), origins=MappingProxyType(origins))


def _build_named(path: tuple[str, ...], reader: Reader, origins: dict[str, str]) -> tuple[Any, ...]:
    """The sections of a map from names, each with its name."""
    sections = []
    for name, values in reader.named[path].items():
        origins |= {".".join((*path, name, *at)): found.origin for at, found in values.items()}
        sections.append(replace(_build(NAMED[path], (), values), name=name))
    return tuple(sections)


def _build(section: type[Any], at: tuple[str, ...], values: Values) -> Any:
    """A section from the values below its path, with defaults for the rest."""
    given = {
        one.name: values.get((*at, one.name), Found(one.default, "")).value
        for one in settings_of(section)
        if (*at, one.name) in values
    }
    for name, below in sections_of(section).items():
        given[name] = _build(below, (*at, name), values)
    return section(**given)


def _check(root: Root, origins: Mapping[str, str], reader: Reader) -> None:
    """Check what concerns several values together."""

    def where(name: str) -> str:
        return origins.get(name, name)

    sharing = root.resource_sharing
    _check_pressures(sharing, where, reader)
    if sharing.offer_expiry <= sharing.check_interval:
        reader.warnings.append(
            f"{where('resource_sharing.offer_expiry')}: offers expire after {sharing.offer_expiry:g} s, sooner than "
            f"check_interval ({sharing.check_interval:g} s); agents say them again in time all the same"
        )
    if root.coordinator.heartbeat > HEARTBEAT_MOST:
        what = f"{root.coordinator.heartbeat:g} s is too long: a node that is silent for 6 s gets no new jobs"
        reader.problems.append(Problem(where("coordinator.heartbeat"), what, f"{HEARTBEAT_MOST:g} s or less"))
    if (url := root.coordinator.url) and not _is_address(url):
        form = "write it as ws://HOST:PORT, wss://HOST:PORT or unix://PATH (of ports 1 to 65535)"
        hint = f"ws://{url}" if "//" not in url else form
        reader.problems.append(Problem(where("coordinator.url"), f"{url!r} is not a coordinator's address", hint))
    if root.pools or root.scaling != ScalingSection():
        reader.problems += scaling.check(root.scaling, root.providers, root.pools, origins)
    seen: dict[str, str] = {}
    for values in reader.lists["nodes"]:
        if (found := values.get(("name",))) is None:
            continue
        if found.value in seen:
            reader.problems.append(
                Problem(found.origin, f"the node {found.value!r} is listed twice, first at {seen[found.value]}")
            )
        elif not is_valid_name(found.value):
            said = f"no node can be called {found.value[:80]!r}"
            reader.problems.append(Problem(found.origin, said, "give 1 to 64 printable characters"))
        seen.setdefault(found.value, found.origin)


def _is_address(url: str) -> bool:
    """Whether a coordinator may be there, by how it is written."""
    if (path := socket_path(url)) is not None:
        return path != Path()
    from urllib.parse import urlsplit

    from websockets.exceptions import InvalidURI
    from websockets.uri import parse_uri

    try:
        uri = parse_uri(url)  # which takes port 0 for the default one
        return uri.username is None and urlsplit(url).port != 0 and not any(char.isspace() for char in uri.host)
    except (InvalidURI, ValueError):
        return False


def _check_pressures(sharing: ResourceSharing, where: Any, reader: Reader) -> None:
    for what in ("cpu", "memory", "gpu"):
        high = getattr(sharing.thresholds, f"{what}_pressure_high")
        low = getattr(sharing.thresholds, f"{what}_pressure_low")
        if too_close(high, low):
            name = f"resource_sharing.thresholds.{what}_pressure_low"
            said = f"{what}_pressure_low ({low:g}) is not {GAP:g} or more below high ({high:g})"
            reader.problems.append(Problem(where(name), said))
