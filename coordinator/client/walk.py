"""Finds the files of a directory that are shipped, without reading them. Ignore rules are git's: `.gitignore` and then
`.gridignore` of every directory, also of those above it in the same repository; `.git` is never shipped. Files that
commonly hold secrets are shipped only on request."""

import errno
import fnmatch
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pathspec import GitIgnoreSpec

from distributed_grid.protocol.bundle import (
    BLOB_BYTES,
    BUNDLE_BYTES,
    MOST_ENTRIES,
    Entry,
    Kind,
    check_path,
    check_target,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.resources import format_bytes

IGNORE_FILES = (".gitignore", ".gridignore")
IGNORE_BYTES = 1 << 20
_MEASURE_ON = 0.5  # seconds: how much longer a directory over the ceiling is measured, to name what fills it
REMEDY = (
    "leave things out with a .gridignore, or use --no-ship (nothing is shipped) or --workdir PATH (a shared directory)"
)
SECRETS = (".env", ".env.*", "*.pem", "*.key", "id_*", ".netrc", ".aws/credentials")
"""Names of files that commonly hold secrets. Of `id_*` those that begin as a private key does; not the examples."""
_SECRET = re.compile("|".join(map(fnmatch.translate, SECRETS)))
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist")
_KEY_HEAD = 100
_NAMED = 5
"""Maximum number of files that one message names."""


class Links(StrEnum):
    """How links that lead out of the directory are handled: refuse to ship them; ship their targets; ship them as they
    are; leave them out."""

    REFUSE = "refuse"
    FOLLOW = "follow"
    KEEP = "keep"
    SKIP = "skip"


@dataclass(frozen=True)
class ShippingRules:
    """Which files of a directory are shipped: at most `ceiling` bytes; `secrets`: also files that commonly hold
    secrets."""

    ceiling: int = BUNDLE_BYTES
    links: Links = Links.REFUSE
    secrets: bool = False


DEFAULT_RULES = ShippingRules()


def rules(ceiling: int, links: str, secrets: bool) -> ShippingRules:
    """The rules by the words that people use. Raises BadValue."""
    if links not in [*Links]:
        raise BadValue(f"links cannot be treated as {links!r}", hint=f"use one of {', '.join(Links)}")
    return ShippingRules(ceiling, Links(links), secrets)


class ShippingError(GridError):
    """A directory cannot be shipped as it is."""


@dataclass(frozen=True)
class Found:
    path: Path
    entry: Entry


class _Ignores:
    """The ignore rules that hold in one directory: its own, then those of the directories above it."""

    def __init__(self, spec: GitIgnoreSpec, depth: int, above: "_Ignores | None") -> None:
        self._spec = spec
        self._depth = depth  # how many parts of a path lie above this directory
        self._above = above

    @classmethod
    def of(cls, directory: Path, depth: int, above: "_Ignores | None") -> "_Ignores | None":
        lines: list[str] = []
        for name in IGNORE_FILES:
            lines += _lines(directory / name)
        if (directory / ".git").is_dir():
            lines = _lines(directory / ".git" / "info" / "exclude") + lines
        return cls(GitIgnoreSpec.from_lines(lines), depth, above) if lines else above

    def ignored(self, parts: tuple[str, ...], is_directory: bool) -> bool:
        """Whether a path, given from the topmost directory that has rules, is left out. The nearest rule decides."""
        path = "/".join(parts[self._depth :]) + ("/" if is_directory else "")
        verdict = self._spec.check_file(path).include
        if verdict is not None:
            return verdict
        return self._above.ignored(parts, is_directory) if self._above else False


def _lines(file: Path) -> list[str]:
    """Return the lines of an ignore file. As in git, links and files that are not regular are no ignore files."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return []
        raise
    with open(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        raw = opened.read(IGNORE_BYTES + 1)
    if len(raw) > IGNORE_BYTES:
        raise ShippingError(f"{file} cannot be read", why=f"{IGNORE_BYTES} bytes are the most of an ignore file")
    return raw.decode(errors="surrogateescape").splitlines()


def _repository(directory: Path) -> Path:
    """The top of the git repository this directory lies in, or the directory itself."""
    return next((above for above in (directory, *directory.parents) if (above / ".git").exists()), directory)


class Walk:
    """One walk over a directory: what is there, measured but not read."""

    def __init__(self, directory: Path, rules: ShippingRules) -> None:
        self.notes: list[str] = []
        self._links, self._secrets_too = rules.links, rules.secrets
        self._secret: list[str] = []
        self._skipped: list[str] = []
        self._followed: list[Path] = []
        """The real paths of the directories outside that we are in by following links."""
        self.root = Path(os.path.realpath(directory))
        self._shown = directory
        self._ceiling = rules.ceiling
        self._count = 0
        self._total = 0
        self._sizes: Counter[str] = Counter()
        self._outside: list[str] = []
        self._stop_at = 0.0

    def files(self) -> Iterator[Found]:
        """Yield everything to ship, directories before their contents. Raises OSError and ShippingError."""
        top = _repository(self.root)
        prefix = self.root.relative_to(top).parts
        ignores = None
        for depth in range(len(prefix)):
            ignores = _Ignores.of(top.joinpath(*prefix[:depth]), depth, ignores)
            if ignores is not None and ignores.ignored(prefix[: depth + 1], is_directory=True):
                ignores = None  # who ships a directory that is ignored further up means what is in it
        yield from self._directory("", prefix, ignores)
        if self._stop_at:
            self._refuse()
        if (file := _largest_file(self._sizes)) is not None:
            raise ShippingError(f"{self._shown} cannot be shipped", why=file, hint=REMEDY)

    def said(self) -> list[str]:
        """Describe what was left out."""
        found = list(self.notes)
        if self._secret:
            found.append(f"not shipped, since they may hold secrets: {_some(self._secret)} (--ship-secrets ships them)")
        if self._skipped:
            found.append(f"links that lead out of the directory are not shipped: {_some(self._skipped)}")
        return found

    def _directory(
        self, at: str, parts: tuple[str, ...], above: _Ignores | None, real: Path | None = None
    ) -> Iterator[Found]:
        path = real if real is not None else self.root / at
        ignores = _Ignores.of(path, len(parts), above)
        with os.scandir(path) as listing:
            items = sorted(listing, key=lambda item: item.name)
        for item in items:
            is_directory = item.is_dir(follow_symlinks=False)
            inner = (*parts, item.name)
            if item.name == ".git" or (ignores is not None and ignores.ignored(inner, is_directory)):
                continue
            if is_directory and os.path.exists(os.path.join(item.path, "pyvenv.cfg")):
                self.notes.append(f"{item.name}/ is a virtual environment, of no use elsewhere, and not shipped")
                continue
            name = f"{at}/{item.name}" if at else item.name
            if is_directory:
                yield from self._directory(name, inner, ignores, real and real / item.name)
            elif self._links is Links.FOLLOW and item.is_symlink() and (to := self._outside_of(Path(item.path))):
                yield from self._follow(name, inner, ignores, to)
            elif (found := self._item(name, item, real)) is not None:
                yield found
        if at and not items:
            yield self._counted(at, Entry(at, Kind.DIRECTORY, mode=stat.S_IMODE(path.stat().st_mode) & 0o777 | 0o700))

    def _item(self, name: str, item: "os.DirEntry[str]", above: Path | None) -> Found | None:
        try:
            check_path(name)
        except BadValue as error:
            raise ShippingError(f"{name!r} cannot be shipped", why=error.why, hint=REMEDY) from None
        if item.is_symlink():
            return self._link(name, Path(item.path))
        try:
            facts = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        return self._file(name, Path(item.path) if above is not None else self.root / name, facts)

    def _file(self, name: str, path: Path, facts: os.stat_result) -> Found | None:
        if not stat.S_ISREG(facts.st_mode):
            self.notes.append(f"{name} is neither a file nor a link and is not shipped")
            return None
        names = (name, path.as_posix()) if self._followed or not path.is_relative_to(self.root) else (name,)
        if not self._secrets_too and any(may_be_secret(one, path) for one in names):
            self._secret.append(name)
            return None
        return self._counted(name, Entry(name, mode=stat.S_IMODE(facts.st_mode) & 0o777, size=facts.st_size), path)

    def _link(self, name: str, path: Path) -> Found | None:
        target = os.readlink(path)
        if self._followed:  # from outside back into the directory
            return self._kept(name, target)
        try:
            check_target(name, target)
        except BadValue:
            # Written in a way that is not plainly inside (absolute, or with detours), it may still lead inside.
            if self._outside_of(path) is not None:
                return self._kept(name, target)
            target = os.path.relpath(os.path.realpath(path), os.path.realpath(path.parent))
        return self._counted(name, Entry(name, Kind.LINK, mode=0o777, target=target))

    def _kept(self, name: str, target: str) -> Found | None:
        """A link that leads outside and is not followed."""
        if self._links is Links.KEEP:
            return self._counted(name, Entry(name, Kind.LINK, mode=0o777, target=target, outside=True))
        (self._outside if self._links is Links.REFUSE else self._skipped).append(f"{name} -> {target}")
        return None

    def _outside_of(self, path: Path) -> Path | None:
        """Return the target of a link that leads out of the directory; None: it leads inside."""
        real = Path(os.path.realpath(path))
        return None if real.is_relative_to(self.root) else real

    def _follow(self, name: str, parts: tuple[str, ...], above: _Ignores | None, to: Path) -> Iterator[Found]:
        """Yield the target of a link that leads outside, in the place of the link."""
        try:
            facts = to.stat(follow_symlinks=False)
        except FileNotFoundError:
            self._skipped.append(f"{name} -> {to}, which is not there")
            return
        except OSError as error:
            raise unreadable(self.root / name, error) from None
        if not stat.S_ISDIR(facts.st_mode):
            if (found := self._file(name, to, facts)) is not None:
                yield found
            return
        if any(one == to or one.is_relative_to(to) for one in (*self._followed, self.root)):
            raise ShippingError(
                f"the link {name} cannot be followed",
                why=f"it leads to {to}, which holds this directory or the link itself",
                hint="leave it out with a .gridignore, or use --links skip or keep",
            )
        self._followed.append(to)
        yield from self._directory(name, parts, above, to)
        self._followed.pop()

    def _counted(self, name: str, entry: Entry, path: Path | None = None) -> Found:
        self._count += 1
        self._total += entry.size
        self._sizes[name] = entry.size
        if self._count > MOST_ENTRIES or self._total > self._ceiling:
            self._stop_at = self._stop_at or time.monotonic() + _MEASURE_ON
        if self._stop_at and time.monotonic() > self._stop_at:
            self._refuse()
        return Found(path or self.root / name, entry)

    def _refuse(self) -> None:
        if self._count > MOST_ENTRIES and self._total <= self._ceiling:
            crowded = _largest(_by_top(dict.fromkeys(self._sizes, 1)), str)
            raise ShippingError(
                f"{self._shown} has too many files to ship",
                why=f"{MOST_ENTRIES} are the most; most are in: {crowded}",
                hint=REMEDY,
            )
        raise too_large(self._shown, self._sizes, self._total, self._ceiling)

    def raise_for_outside_links(self) -> None:
        """Raise ShippingError for links that lead out of the directory: on the node they would lead nowhere."""
        if self._outside:
            some, count = _some(self._outside), len(self._outside)
            raise ShippingError(
                f"{count} link{'s' if count > 1 else ''} in {self._shown} lead{'' if count > 1 else 's'} out of it",
                why=f"the node would not have what they point to: {some}",
                hint="say what to do: --links follow (ships what they lead to), keep (as they are) or skip; or leave"
                " them out with a .gridignore",
            )


def may_be_secret(name: str, path: Path) -> bool:
    """Whether a file of this name commonly holds secrets; `path` is where it can be looked at."""
    *_, above, last = ("", *name.split("/"))
    if not (_SECRET.fullmatch(last) or _SECRET.fullmatch(f"{above}/{last}")) or last in _EXAMPLES:
        return False
    if not last.startswith("id_"):
        return True
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    with open(fd, "rb") as file:
        head = file.read(_KEY_HEAD)
    return head.startswith(b"-----BEGIN ") and b"PRIVATE KEY-----" in head


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _by_top(amounts: Mapping[str, int]) -> Counter[str]:
    """The amounts summed up by the first part of each path; directories end with a slash."""
    tops: Counter[str] = Counter()
    for name, amount in amounts.items():
        top, slash, _ = name.partition("/")
        tops[top + slash] += amount
    return tops


def _largest(tops: Counter[str], form: Callable[[int], str]) -> str:
    return ", ".join(f"{name} ({form(amount)})" for name, amount in tops.most_common(5))


def _largest_file(sizes: Mapping[str, int]) -> str | None:
    """Why one of these files cannot be shipped whatever the ceiling is; None where all can."""
    name = max(sizes, key=sizes.__getitem__, default="")
    if not name or sizes[name] <= BLOB_BYTES:
        return None
    return f"{name} has {format_bytes(sizes[name])}, and {format_bytes(BLOB_BYTES)} are the most of one file"


def too_large(directory: Path, sizes: Mapping[str, int], total: int, ceiling: int) -> ShippingError:
    what = f"{directory} is too large to ship: {format_bytes(total)} or more, and {format_bytes(ceiling)} is the most"
    if (file := _largest_file(sizes)) is not None:  # a higher ceiling would only lead to the next error
        return ShippingError(what, why=file, hint=REMEDY)
    enough = 1 << (total >> 30).bit_length()
    return ShippingError(
        what,
        why=f"largest: {_largest(_by_top(sizes), format_bytes)}",
        hint=f"{REMEDY}; or raise the setting shipping.ceiling (GRID_SHIPPING__CEILING={enough}G)",
    )


def unreadable(path: Path, error: OSError) -> ShippingError:
    return ShippingError(f"{path} cannot be shipped", why=f"it cannot be read: {error.strerror}", hint=REMEDY)
