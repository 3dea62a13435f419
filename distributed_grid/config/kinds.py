"""Kinds of settings: how the text of a value is parsed, its bounds, its name in errors, and its type in JSON schema.

All values come in as text, from a YAML scalar, an environment variable or a flag, so that each is read in one place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from distributed_grid.config.section import section
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import parse_ports
from distributed_grid.protocol.jobs import Priority, parse_priority
from distributed_grid.protocol.messages.rights import UNLIMITED, parse_limit
from distributed_grid.protocol.resources import GIB, MILLI, parse_memory
from distributed_grid.protocol.text import counted, parse_duration

LEAST_OUTPUT, MOST_OUTPUT = 4 << 20, 1 << 40


class Problem(NamedTuple):
    """A problem of a configuration: where (`file:line`, a variable or a flag), what, and a hint."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class ConfigError(BadValue):
    """A configuration that cannot be used, with all its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        also = f"and {counted(more, 'more error')} in the configuration" if more else ""
        super().__init__(f"{first.where}: {first.what}", why=also, hint=first.hint)
        self.__notes__ = []  # a traceback shows all of it by its text

    def __str__(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)

    def lines(self) -> list[str]:
        """Every problem, as the command line prints it."""
        out = []
        for problem in self.problems:
            out.append(f"error: {problem.where}: {problem.what}")
            if problem.hint:
                out.append(f"  try: {problem.hint}")
        return out


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the list of known words if it is short; else empty."""
    from difflib import get_close_matches

    names = list(known)
    if close := get_close_matches(word.lower(), names, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(sorted(names))}" if 0 < len(names) <= 24 else ""


@section(frozen=True)
class Kind:
    """How a setting is read. `parse` gets the parts of a list or map (`k=v`), or the one text of a scalar."""

    name: str
    parse: Callable[[list[str]], Any]
    schema: dict[str, Any] = field(default_factory=dict)
    shape: str = "scalar"

    def read(self, parts: list[str]) -> Any:
        """The value of these parts. Raises BadValue."""
        try:
            return self.parse(parts)
        except BadValue:
            raise
        except ValueError:
            raise BadValue(f"{', '.join(parts)!r} is not {self.name}") from None


def _flag(parts: list[str]) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if (word := parts[0].strip().lower()) not in words:
        raise ValueError
    return words[word]


def number(least: float, most: float, name: str) -> Kind:
    """A finite number within bounds."""

    def parse(parts: list[str]) -> float:
        value = float(parts[0])
        if not least <= value <= most:  # nan fails both
            raise ValueError
        return value

    return Kind(name, parse, {"type": "number", "minimum": least, "maximum": most})


def count(least: int, most: int, name: str) -> Kind:
    """A whole number within bounds."""

    def parse(parts: list[str]) -> int:
        value = int(parts[0])
        if not least <= value <= most:
            raise ValueError
        return value

    return Kind(name, parse, {"type": "integer", "minimum": least, "maximum": most})


def choice(words: type[StrEnum]) -> Kind:
    """Return the kind of a setting that holds one of the words of an enumeration."""
    by_name = {word.value.replace("-", "_"): word for word in words}

    def parse(parts: list[str]) -> StrEnum:
        try:
            return by_name[parts[0].strip().lower().replace("-", "_")]
        except KeyError:
            names = [word.value for word in words]
            hint = did_you_mean(parts[0], names)
            raise BadValue(f"{parts[0]!r} is not one of {', '.join(names)}", hint=hint) from None

    return Kind("one of " + ", ".join(words), parse, {"enum": [word.value for word in words]})


def _seconds(parts: list[str]) -> float:
    return parse_duration(parts[0])


def _seconds_or_none(parts: list[str]) -> float:
    return 0.0 if parts[0].strip() in ("0", "0.0", "0s") else parse_duration(parts[0])


def _size(parts: list[str]) -> int:
    return 0 if parts[0].strip() == "0" else parse_memory(parts[0])


def _output_size(parts: list[str]) -> int:
    size = parse_memory(parts[0])
    if not LEAST_OUTPUT <= size <= MOST_OUTPUT:
        raise ValueError
    return size


def _cores(parts: list[str]) -> tuple[int, ...]:
    cores: set[int] = set()
    for part in parts:
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < 65536:
            raise ValueError
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def _ports(parts: list[str]) -> str:
    parse_ports(parts[0])
    return parts[0].strip()


def _cgroup(parts: list[str]) -> str:
    text = parts[0].strip()
    if text not in ("auto", "none") and (not text.startswith("/") or len(text) < 2 or ".." in text.split("/")):
        raise ValueError
    return text.rstrip("/")


def _words(parts: list[str]) -> tuple[str, ...]:
    return tuple(word for part in parts if (word := part.strip()))


def _pairs(parts: list[str]) -> dict[str, str]:
    pairs = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError
        pairs[key.strip()] = value.strip()
    return pairs


def _weights(parts: list[str]) -> dict[str, float]:
    weights = {name: float(value) for name, value in _pairs(parts).items()}
    if not all(0.001 <= value <= 1000.0 for value in weights.values()):
        raise ValueError
    return weights


def _priority(parts: list[str]) -> str:
    return parse_priority(parts[0]).word


def _limit(name: str, scale: int) -> Callable[[list[str]], float]:
    def parse(parts: list[str]) -> float:
        value = parse_limit(name, parts[0])
        return float(UNLIMITED) if value == UNLIMITED else value / scale

    return parse


def _most_jobs(parts: list[str]) -> int:
    return parse_limit("jobs_waiting", parts[0])


_LIMIT = {"anyOf": [{"type": "number", "minimum": -1}, {"type": "string"}]}
_DURATION = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
_DURATION_OR_NONE = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}

TEXT = Kind("a text", lambda parts: parts[0], {"type": "string"})
CGROUP = Kind("auto, none, or a path such as /grid", _cgroup, {"type": "string"})
FLAG = Kind("true or false", _flag, {"type": "boolean"})
SECONDS = Kind("a duration", _seconds, _DURATION)
SECONDS_OR_NONE = Kind("a duration or 0", _seconds_or_none, _DURATION_OR_NONE)
SIZE = Kind("a size such as 4G", _size, {"type": ["string", "integer"]})
PRIORITY = Kind(
    "one of low, medium, high, urgent", _priority,
    {"enum": [name.lower() for name in Priority.__members__]},
)  # fmt: skip
LIMIT = Kind("a number from 0 up, or unlimited", _limit("cores", MILLI), _LIMIT)
LIMIT_GB = Kind("a number of GB from 0 up, or unlimited", _limit("memory", GIB), _LIMIT)
LIMIT_JOBS = Kind("a whole number from 0 up, or unlimited", _most_jobs, _LIMIT)
OUTPUT_SIZE = Kind("a size from 4M to 1T", _output_size, {"type": ["string", "integer"]})
PERCENT = number(0, 100, "a percentage from 0 to 100")
FRACTION = number(0, 1, "a fraction from 0 to 1")
AMOUNT = number(0, 1e9, "a number from 0 up")
PORT = count(0, 65535, "a port from 0 to 65535")
PORTS = Kind("ports such as 29500-29999", _ports, {"type": ["string", "integer"]})
CORES = Kind("a list of cores such as 0-3,6", _cores, {"type": ["array", "string", "integer"]}, "list")
WORDS = Kind("a list", _words, {"type": ["array", "string"], "items": {"type": ["string", "integer"]}}, "list")
_WEIGHT = {"type": "number", "minimum": 0.001, "maximum": 1000}
WEIGHTS = Kind(
    "names with a number from 0.001 to 1000 each", _weights, {"type": "object", "additionalProperties": _WEIGHT}, "map"
)
PAIRS = Kind("pairs of name and value", _pairs, {"type": "object", "additionalProperties": {"type": "string"}}, "map")


# --- settings of a section -------------------------------------------------------------------------------------------

T = TypeVar("T")
Path = tuple[str, ...]
"""Where a setting is: the names of its sections, and its own."""


def setting(default: T, kind: Kind, doc: str) -> T:
    """A field of a section: its default, what it may hold, and a line about it."""
    if isinstance(default, dict):
        made: T = field(default_factory=lambda: dict(default), metadata={"kind": kind, "doc": doc})  # type: ignore
        return made
    value: T = field(default=default, metadata={"kind": kind, "doc": doc})
    return value


class Setting(NamedTuple):
    """One setting of a section: its name, what it may hold, its default, and its line of documentation."""

    name: str
    kind: Kind
    default: Any
    doc: str


_settings: dict[type[Any], tuple[Setting, ...]] = {}
_sections: dict[type[Any], Mapping[str, type[Any]]] = {}
"""What was told of sections already: a configuration is read for each command, and has twenty."""


def settings_of(section: type[Any]) -> tuple[Setting, ...]:
    """The settings of a section, without its subsections."""
    if section not in _settings:
        blank = section()
        _settings[section] = tuple(
            Setting(f.name, f.metadata["kind"], getattr(blank, f.name), f.metadata["doc"])
            for f in fields(section)
            if "kind" in f.metadata
        )
    return _settings[section]


def sections_of(section: type[Any]) -> Mapping[str, type[Any]]:
    """Return the subsections of a section by name; the list of nodes, and the name of a section, are none."""
    if section not in _sections:
        blank = section()
        found = {
            f.name: type(value)
            for f in fields(section)
            if "kind" not in f.metadata and not isinstance(value := getattr(blank, f.name), tuple | str)
        }
        _sections[section] = MappingProxyType(found)
    return _sections[section]


def walk(section: type[Any], at: Path = ()) -> Iterator[tuple[Path, Setting]]:
    """Every setting below a section, with its path."""
    for one in settings_of(section):
        yield (*at, one.name), one
    for name, below in sections_of(section).items():
        yield from walk(below, (*at, name))
