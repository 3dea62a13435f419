"""The schema as text: a value as it stands in a file, a file to start from, and the JSON schema for editors."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from distributed_grid.config.kinds import (
    Path,
    Setting,
    sections_of,
    settings_of,
)
from distributed_grid.config.scaling import PoolSection
from distributed_grid.config.schema import (
    ALIASES,
    MOVED,
    NAMED,
    NODE_SETTINGS,
    SETTINGS,
    RightsSection,
    Root,
)
from distributed_grid.config.sharing import (
    Node,
    NodeSharing,
)


def format_value(value: Any) -> str:
    """A value as it would be written in the file."""
    if value is None or value == "":
        return '""' if value == "" else "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {item}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def template() -> str:
    """Return a file to start from: every setting with its default and a line about it; those rarely changed are
    comments."""
    lines = [
        "# Settings of the grid. What is left out has the default shown. Durations: seconds, 30m, 1h30m.",
        "# Check this file with: grid config check",
        "",
    ]
    lines += _section(Root, 0, "")
    lines += [
        "",
        "# Settings of single nodes, by name.",
        "# nodes:",
        "# - name: gpu-master",
        f"#   owner: ann  # {NODE_SETTINGS['owner',].doc}",
        "#   resource_sharing:",
    ]
    for one in settings_of(NodeSharing):
        lines.append(f"#     {one.name}: {format_value(one.default)}  # {one.doc}")
    lines += ["", "# Settings of pools of machines, which the grid creates by itself (docs/scaling.md).", "# pools:"]
    example = {"name": "burst", "provider": "process", "cpus": 4, "memory": "8G"}
    for number, one in enumerate(settings_of(PoolSection)):
        value = format_value(example.get(one.name, one.default))
        lines.append(f"# {'  ' if number else '- '}{one.name}: {value}  # {one.doc}")
    return "\n".join(lines) + "\n"


_PLAIN = {"name", "enabled", "host", "port", "check_interval", "offer_expiry", "max_offers_per_node"}


def _section(section: type[Any], depth: int, above: str) -> Iterator[str]:
    indent = "  " * depth
    for one in settings_of(section):
        plain = above in ("", "coordinator", "resource_sharing") and one.name in _PLAIN or above == "thresholds"
        yield f"{indent}{'' if plain else '# '}{one.name}: {format_value(one.default)}  # {one.doc}"
    for name, below in sections_of(section).items():
        if depth == 0:
            yield ""
        yield f"{indent}{name}:  # {_first_line(below)}"
        yield from _section(below, depth + 1, name)
    if section is RightsSection:
        yield f"{indent}# users: {{ann: {{highest_priority: urgent, cores: 64}}}}  # single users, by name"
        yield f"{indent}# groups: {{lab: {{members: [ann, bob], gpus: 8}}}}  # groups, by name"


def _first_line(section: type[Any]) -> str:
    return (section.__doc__ or "").partition("\n")[0].rstrip(".")


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors. It has the other names too; what contradicts itself only the check
    finds."""
    root = _schema_of(Root)
    node = _schema_of(Node)
    node["required"] = ["name"]
    root["properties"]["nodes"] = {"type": "array", "items": node}
    pool = _schema_of(PoolSection)
    pool["required"] = ["name", "provider"]
    root["properties"]["pools"] = {"type": "array", "items": pool}
    for path, below in NAMED.items():
        _put(root, path, {"type": ["object", "null"], "additionalProperties": _schema_of(below)})
    for alias, target in sorted(ALIASES.items(), key=lambda item: len(item[0])):
        _put(root, alias, _property(SETTINGS[target]) | {"description": f"the same as {'.'.join(target)}"})
    for there, here in MOVED.items():
        _put(root, there, _at(root, here))
    root["properties"]["cluster"] = {
        "anyOf": [{"type": "string"}, {"type": "object", "properties": {"name": {"type": "string"}}}]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Distributed Grid"} | root


def _schema_of(section: type[Any]) -> dict[str, Any]:
    properties = {one.name: _property(one) for one in settings_of(section)}
    properties |= {name: _schema_of(below) for name, below in sections_of(section).items()}
    return _object(properties) | {"description": _first_line(section)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    # A section whose settings are all comments reads as null.
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _property(one: Setting) -> dict[str, Any]:
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    return dict(one.kind.schema) | {"description": one.doc, "default": default}


def _at(schema: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in path:
        schema = schema["properties"][name]
    return schema


def _put(schema: dict[str, Any], path: Path, what: dict[str, Any]) -> None:
    for name in path[:-1]:
        schema = schema["properties"].setdefault(name, _object({}))
        schema.setdefault("properties", {})
    schema["properties"][path[-1]] = what
