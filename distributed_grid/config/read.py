"""Reads YAML, environment and flags into settings by path, each with its origin. All errors are reported together."""

from collections.abc import Mapping
from pathlib import Path as File
from types import MappingProxyType
from typing import Any, NamedTuple

from distributed_grid.config.kinds import Path, Problem, Setting, did_you_mean, walk
from distributed_grid.config.schema import ALIASES, MOVED, NAMED, NODE_SETTINGS, POOL_SETTINGS, SETTINGS
from distributed_grid.protocol.errors import BadValue

FILE_BYTES = 4 << 20
LIST_ITEMS = 20_000


class Found(NamedTuple):
    """A value and where it was set: `file:line`, `env NAME` or `flag --name`."""

    value: Any
    origin: str


Values = dict[Path, Found]


class Table:
    """The structure of a file: settings, aliases of settings, sections with a second place, and lists."""

    def __init__(
        self,
        settings: Mapping[Path, Setting],
        aliases: Mapping[Path, Path] = MappingProxyType({}),
        moved: Mapping[Path, Path] = MappingProxyType({}),
        lists: tuple[Path, ...] = (),
    ) -> None:
        self.settings = settings
        self._aliases = aliases
        self._moved = moved
        names = {*settings, *aliases, *moved, *lists}
        self.sections = {path[:n] for path in names for n in range(1, len(path))}
        self._names = names | self.sections

    def canonical(self, path: Path) -> Path:
        """The path that this one is an alias of, or itself."""
        for there, here in self._moved.items():
            if path[: len(there)] == there:
                path = (*here, *path[len(there) :])
        return self._aliases.get(path, path)

    def below(self, at: Path) -> set[str]:
        """The names that may stand in a section."""
        return {path[len(at)] for path in self._names if len(path) > len(at) and path[: len(at)] == at}

    def elsewhere(self, name: str) -> Path:
        """Return the path of the setting, or else section, of this name; empty if there is none, or more than one."""
        found = [path for path in self.settings if path[-1] == name]
        found = found or [path for path in self._names - {*self._aliases, *self._moved} if path[-1] == name]
        return found[0] if len(found) == 1 else ()


LISTS = {"nodes": Table(NODE_SETTINGS), "pools": Table(POOL_SETTINGS)}
"""Lists of sections, each of which has a name."""
ROOT = Table(SETTINGS, ALIASES, MOVED, (*((name,) for name in LISTS), *NAMED))
BY_NAME = {path: Table(dict(walk(section))) for path, section in NAMED.items()}


class Reader:
    """Collects settings and problems from every source; a later source replaces what an earlier one set."""

    def __init__(self) -> None:
        self.values: Values = {}
        self.lists: dict[str, list[Values]] = {name: [] for name in LISTS}
        self.named: dict[Path, dict[str, Values]] = {path: {} for path in BY_NAME}
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self._file = ""

    # --- YAML ---------------------------------------------------------------------------------------------------

    def read_file(self, file: File) -> None:
        """Read a YAML file. What cannot be opened or is no YAML becomes a problem too."""
        self._file = str(file)
        try:
            with file.open("rb") as opened:
                raw = opened.read(FILE_BYTES + 1)
        except OSError as error:
            hint = "" if file.exists() else "write one with: grid config init"
            self.problems.append(Problem(self._file, f"cannot be read: {error.strerror}", hint))
            return
        if len(raw) > FILE_BYTES:
            self.problems.append(Problem(self._file, f"has more than {FILE_BYTES} bytes"))
            return
        self.read_yaml(raw, self._file)

    def read_yaml(self, raw: bytes, name: str) -> None:
        """Read YAML text, named so in messages."""
        import yaml

        self._file = name
        try:
            root = yaml.compose(raw, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
            self.problems.append(Problem(where, f"not YAML: {error.problem or error.context}"))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            text = str(error).splitlines()[0] if str(error) else "nested too deeply"
            self.problems.append(Problem(name, f"not YAML: {text}"))
        else:
            if root is not None and not _empty(root):
                self._mapping(root, (), (), ROOT, self.values)

    def _where(self, node: Any) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"

    def _problem(self, node: Any, what: str, hint: str = "") -> None:
        self.problems.append(Problem(self._where(node), what, hint))

    def _mapping(self, node: Any, at: Path, written: Path, table: Table, into: Values) -> None:
        """Read one section. `at` is its path, `written` the path as the file has it."""
        if node.id != "mapping":
            self._problem(node, f"{_dotted(written) or 'the file'} must hold settings, as `name: value`")
            return
        seen: dict[str, str] = {}
        for key, value in node.value:
            name = key.value if key.id == "scalar" else ""
            if name in seen:
                self._problem(key, f"{_dotted((*written, name))} appears twice, first at {seen[name]}")
                continue
            seen[name] = self._where(key)
            if at == () and name in LISTS and table is ROOT:
                self._list(value, name)
            else:
                self._entry(key, value, (*at, name), (*written, name), table, into)

    def _entry(self, key: Any, value: Any, path: Path, written: Path, table: Table, into: Values) -> None:
        if table is ROOT and path in BY_NAME:
            self._named(value, path)
            return
        target = table.canonical(path)
        section = path if target in table.settings else target
        one = table.settings.get(target)
        if section in table.sections and (value.id == "mapping" or one is None):
            if not _empty(value):
                self._mapping(value, section, written, table, into)
        elif one is not None:
            if not _empty(value):
                self._leaf(key, value, target, written, one, into)
        else:
            inside = f" in {_dotted(written[:-1])}" if written[:-1] else ""
            there = table.elsewhere(written[-1])
            if len(there) == 1:
                at = "at the beginning of a line" if table is ROOT else "beside 'name'"
                hint = f"it is not in any section: write it {at}"
            else:
                hint = f"it is {_dotted(there)}" if there else did_you_mean(written[-1], table.below(path[:-1]))
            self._problem(key, f"unknown key {written[-1]!r}{inside}", hint)

    def _leaf(self, key: Any, node: Any, path: Path, written: Path, one: Setting, into: Values) -> None:
        parts = self._parts(node, one, written)
        if parts is None:
            return
        try:
            value = one.kind.read(parts)
        except BadValue as error:
            told = one.kind.schema.get("enum") or one.kind.shape == "maps"
            shown = error.what if told and error.what else f"{', '.join(parts)!r} is not {one.kind.name}"
            self._problem(node, f"{_dotted(written)}: {shown}", error.hint)
            return
        before = into.get(path)
        if before is not None and before.origin.startswith(self._file):
            same = "the same" if before.value == value else "another"
            text = f"{_dotted(written)} says {same} value as {before.origin}, for {_dotted(path)}"
            if before.value != value:
                self._problem(key, text, "keep one of the two")
            else:
                self.warnings.append(f"{self._where(key)}: {text}")
            return
        into[path] = Found(value, self._where(key))

    def _parts(self, node: Any, one: Setting, written: Path) -> list[str] | None:
        """The texts of a scalar, a list or a map, where they are of the form that the setting has."""
        if node.id == "scalar":
            return str(node.value).split(",") if one.kind.shape != "scalar" else [str(node.value)]
        items = node.value if node.id == "sequence" and one.kind.shape == "list" else None
        if items is not None and len(items) <= LIST_ITEMS and all(item.id == "scalar" for item in items):
            return [str(item.value) for item in items]
        if node.id == "mapping" and one.kind.shape == "maps" and all(inner.id == "mapping" for _, inner in node.value):
            both = [(key, *pair) for key, inner in node.value for pair in inner.value]
            if len(both) <= LIST_ITEMS and all(part.id == "scalar" for three in both for part in three):
                return [f"{key.value}.{name.value}={value.value}" for key, name, value in both]
        pairs = node.value if node.id == "mapping" and one.kind.shape == "map" else None
        if pairs is not None and all(key.id == value.id == "scalar" for key, value in pairs):
            seen: dict[str, str] = {}
            for key, _ in pairs:
                if key.value in seen:
                    self._problem(key, f"{_dotted((*written, key.value))} appears twice, first at {seen[key.value]}")
                seen.setdefault(key.value, self._where(key))
            return [f"{key.value}={value.value}" for key, value in pairs]
        self._problem(node, f"{_dotted(written)} must be {one.kind.name}")
        return None

    def _list(self, node: Any, name: str) -> None:
        if _empty(node):
            return
        if node.id != "sequence":
            self._problem(node, f"{name} must be a list, each item with a name")
            return
        for number, item in enumerate(node.value[:LIST_ITEMS]):
            values: Values = {}
            self._mapping(item, (), (f"{name}[{number}]",), LISTS[name], values)
            if item.id == "mapping" and ("name",) not in values:
                self._problem(item, f"{name}[{number}] has no name", f"add `name: {name[:-1].upper()}`")
            self.lists[name].append(values)

    def _named(self, node: Any, path: Path) -> None:
        """Read a map from names to sections."""
        if _empty(node):
            return
        if node.id != "mapping":
            self._problem(node, f"{_dotted(path)} must hold names, each with settings")
            return
        for key, item in node.value[:LIST_ITEMS]:
            name = key.value if key.id == "scalar" else ""
            if not name or name in self.named[path]:
                self._problem(key, f"{_dotted(path)} has {f'{name} twice' if name else 'something without a name'}")
                continue
            values = self.named[path][name] = {}
            if not _empty(item):
                self._mapping(item, (), (*path, name), BY_NAME[path], values)

    # --- environment and flags ----------------------------------------------------------------------------------

    def read_environment(self, environment: Mapping[str, str]) -> None:
        """`GRID_COORDINATOR` is `coordinator.url`; `GRID_A__B` (two underscores between parts) is the setting `a.b`."""
        if url := environment.get("GRID_COORDINATOR"):
            self.set(("coordinator", "url"), url, "env GRID_COORDINATOR")
        if address := environment.get("RAY_ADDRESS"):
            self.values.setdefault(("ray", "address"), Found(address, "env RAY_ADDRESS"))
        for name in sorted(environment):
            if name.startswith("GRID_") and "__" in name:
                path = tuple(part.lower() for part in name.removeprefix("GRID_").split("__"))
                self.set(path, environment[name], f"env {name}")

    def set(self, path: Path, text: str, origin: str) -> None:
        """Set one setting from text, replacing the present value."""
        target = ROOT.canonical(path)
        one = SETTINGS.get(target)
        if one is None:
            hint = did_you_mean(_dotted(path), [_dotted(name) for name in SETTINGS])
            self.problems.append(Problem(origin, f"there is no setting {_dotted(path)}", hint))
            return
        try:
            value = one.kind.read([text] if one.kind.shape == "scalar" else text.split(","))
        except BadValue as error:
            self.problems.append(Problem(origin, f"{_dotted(target)}: {text!r} is not {one.kind.name}", error.hint))
        else:
            self.values[target] = Found(value, origin)


def _empty(node: Any) -> bool:
    """A key without a value (or with `null`) counts as not set."""
    return bool(node.id == "scalar" and node.tag == "tag:yaml.org,2002:null")


def _dotted(path: Path) -> str:
    return ".".join(path)
