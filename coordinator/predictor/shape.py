"""The shape of a command: what its runs have in common, that is program and script by name, and the words of its
arguments without numbers, hashes and paths. The numbers are kept separately, as features. Values of the environment are
never read."""

import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from distributed_grid.protocol.messages.needs import MOST_WORDS, excerpt

LONGEST = 128
"""Maximum number of characters of an argument that are examined."""
TEXT = 200
"""Maximum length of the text of a shape."""
FEATURES = 4
"""Numbers of a command that are kept: the size of what is shipped, those given by name, then those of its arguments."""
SIZE = "size"

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?([kKmMgGtT]i?[bB]?|[smhd]|%)?")
_HASH = re.compile(r"(0x)?[0-9a-fA-F]{8,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z][A-Za-z_.+-]{0,31}")
_GLUED = re.compile(r"-(?:[pP]|(?![a-z][a-z_-]*$)[A-Za-z]).{3,}")
"""An option of one letter with what may be its value: all but lower-case words (`-num_threads`). Passwords follow `-p`
(mysql, sshpass, 7z), so nothing behind that is kept."""
_OPTION = re.compile(r"--?[A-Za-z][A-Za-z0-9_.-]{0,40}")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}$")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VERSION = re.compile(r"(?<=[a-z])-?\d+(\.\d+)*$")
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_INTERPRETERS = {
    "python", "pypy", "bash", "sh", "dash", "zsh", "ksh", "perl", "ruby", "node", "Rscript", "R", "julia", "php", "lua",
}  # fmt: skip
_SHELLS = {"bash", "sh", "dash", "zsh", "ksh"}
_WRAPPERS = {"env", "nohup", "time", "exec", "nice", "ionice", "stdbuf", "setsid"}
_SECRET = re.compile(r"pass|secret|token|key|credential|auth", re.IGNORECASE)


class Shape(NamedTuple):
    """`key`, `program_key` and `user_key`: by which the grid remembers it, from the whole shape to its user. `text`
    and `program`: for people. `features`: numbers by name, at most FEATURES of them; `xs`: the same, as logarithms."""

    key: int
    program_key: int
    user_key: int
    text: str
    program: str
    features: tuple[tuple[str, float], ...]
    xs: tuple[float, ...]


def shape(
    argv: Sequence[str], user: str = "", size: int = 0, array: bool = False, given: Mapping[str, float] | None = None
) -> Shape:
    """The shape of this command. `size`: bytes of what is shipped with it; `array`: it is a member of an array;
    `given`: features by name, as their submitter says them, of which the first count."""
    program, rest = _program(list(excerpt(argv)))
    words, numbers = _words(rest)
    features = [(SIZE, float(size))]
    features += sorted((name[:LONGEST], value) for name, value in islice((given or {}).items(), FEATURES - 1))
    features += [one for one in numbers if one[0] not in dict(features)]
    kept = tuple((name, value) for name, value in features if math.isfinite(value))[:FEATURES]
    text = " ".join([program, *words])
    names = ",".join(name for name, _ in kept)
    key = _key("shape", user, text, names, "array" if array else "")
    xs = tuple(math.log1p(abs(value)) for _, value in kept)
    return Shape(key, _key("program", user, program), _key("user", user), text[:TEXT], program, kept, xs)


def from_features(
    key: int, program_key: int, user_key: int, text: str, program: str, features: Sequence[tuple[str, float]]
) -> Shape:
    """A shape as it was kept: by its keys and features."""
    kept = tuple(one for one in features if math.isfinite(one[1]))[:FEATURES]
    return Shape(key, program_key, user_key, text, program, kept, tuple(math.log1p(abs(value)) for _, value in kept))


def _key(*parts: str) -> int:
    """A number of 63 bits, as SQLite holds it."""
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def _program(argv: list[str]) -> tuple[str, list[str]]:
    """The name of the program, with that of its script, and the other arguments."""
    rest = argv
    while rest and (_ASSIGNMENT.match(rest[0]) or (_name(rest[0]) in _WRAPPERS and len(rest) > 1)):
        rest = rest[1:]
        while rest and rest[0].startswith("-") and len(rest) > 1:  # of the wrapper
            rest = rest[1:]
            if rest and _NUMBER.fullmatch(rest[0]) and len(rest) > 1:
                rest = rest[1:]
    if not rest:
        return "?", []
    name, rest = _name(rest[0]), rest[1:]
    if name in _SHELLS and len(rest) >= 2 and rest[0].startswith("-") and rest[0].endswith("c"):
        return _script(name, rest[1])
    if name not in _INTERPRETERS:
        return name, rest
    for at, word in enumerate(rest):
        if word in ("-m", "-c") and name == "python" and at + 1 < len(rest):
            return f"{name} {_text(rest[at + 1]) if word == '-m' else _code(rest[at + 1])}", rest[at + 2 :]
        if not word.startswith("-"):
            return f"{name} {_text(word.rsplit('/', 1)[-1])}", rest[:at] + rest[at + 1 :]
    return name, rest


def _code(text: str) -> str:
    """The stand-in for a program given as an argument: a digest of it without numbers."""
    plain = _DIGITS.sub("#", text).encode("utf-8", "surrogatepass")
    return f"-c:{hashlib.blake2b(plain, digest_size=4).hexdigest()}"


def _script(shell: str, text: str) -> tuple[str, list[str]]:
    """Return the program of the first command of `sh -c TEXT`, and its arguments."""
    try:
        words = shlex.split(text, comments=True)[:MOST_WORDS]
    except ValueError:
        words = text.split()[:MOST_WORDS]
    if not words or _name(words[0]) in _SHELLS:
        return shell, words
    return _program(words)


def _name(word: str) -> str:
    """The name of a program, without its directory and version."""
    return _text(_VERSION.sub("", word[-LONGEST:].rstrip("/").rsplit("/", 1)[-1]) or word)


def _text(word: str) -> str:
    return _DIGITS.sub("#", _HASH.sub("~", word[:LONGEST])) or "?"


def _words(rest: Iterable[str]) -> tuple[list[str], list[tuple[str, float]]]:
    """The arguments as words of a shape, and the numbers among them, by the option before them or by their place."""
    words: list[str] = []
    numbers: list[tuple[str, float]] = []
    option, place = "", 0
    for whole in rest:
        word = whole[:LONGEST]
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name):
            option = name.lstrip("-")
            if _GLUED.fullmatch(name):
                option, name = option if _SECRET.search(option) else option[0], f"{name[:2]}*"
            if not equals:
                words.append(_text(name))
                continue
        else:
            name, value = "", word
        place += 1
        found, number = _value(value, secret=bool(_SECRET.search(option)))
        if equals and len(name) == 2 and found not in ("#", "~"):  # -pSECRET, as -p=SECRET
            found = "*"
        words.append(f"{_text(name)}={found}" if name else found)
        if number is not None:
            numbers.append((_text(option) if option else f"argument-{place}", number))
        option = ""
    return words, numbers


def _value(value: str, secret: bool) -> tuple[str, float | None]:
    """Return the replacement of a value in a shape, and its number, if it is one."""
    if secret:
        return "*", None
    if match := _NUMBER.fullmatch(value):
        scale = _SCALES.get((match[4] or " ")[0].lower(), 1.0) if (match[4] or "s") not in ("s", "m", "h", "d") else 1.0
        return "#", float(value[: len(value) - len(match[4] or "")]) * scale
    if _HASH.fullmatch(value):
        return "~", None
    if "/" in value or "\\" in value or _SUFFIX.search(value):
        suffix = _SUFFIX.search(value)
        return f"*{_text(suffix[0]) if suffix else '/'}", None
    stem = _DIGITS.sub("#", value)
    return (stem, None) if _WORD.fullmatch(stem.replace("#", "n")) else ("*", None)
