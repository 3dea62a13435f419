"""What is written here is true everywhere: no file names a host, a person, or a path that only one machine has."""

import ipaddress
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE = {"build", "dist", "shared", "__pycache__"}  # not ours, or made from what is

PATHS = re.compile(r"(?<![\w.$}~*-])/(?:work|home|root|Users|opt|mnt|srv|data)/[\w.-]+|/tmp/(?:venv|ty)\b")
URL = re.compile(r"\b\w+://([\w.-]*\w)")
MAIL = re.compile(r"\b[\w.+-]+@([\w-]+(?:\.[\w-]+)+)")
ADDRESS = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]|-\w)")
SIGNATURE = re.compile(r"\b(?:TODO|FIXME|XXX)\(\w+\)|@author\b|(?i:\bauthor:)|(?i:\bwritten by \b)(?!`)[A-Z]")
KNOWN_HOSTS = {"www.apache.org", "json-schema.org", "www.w3.org"}  # a licence, a dialect and a namespace are called so
KNOWN_HOSTS |= {"compute.googleapis.com", "www.googleapis.com"}  # an API, and the name of a right to use it
KNOWN_DOMAINS = ("example", "example.com", "example.org", "test", "invalid", "localhost")
METADATA = "169.254.169.254/32"  # where an instance of any cloud asks about itself
KNOWN_NETWORKS = [
    ipaddress.ip_network(net)
    for net in ("0.0.0.0/32", "127.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", METADATA)
]


def strangers(text: str) -> Iterator[str]:
    """Everything in a text that points at one machine, one network or one person."""
    yield from (match.group() for match in PATHS.finditer(text))
    yield from (match.group() for match in SIGNATURE.finditer(text))
    for sign, pattern in (("://", URL), ("@", MAIL)):
        for match in pattern.finditer(text) if sign in text else ():
            host = match[1].lower()
            known = host in KNOWN_HOSTS or any(host == name or host.endswith("." + name) for name in KNOWN_DOMAINS)
            if "." in host and not known and not ADDRESS.fullmatch(host):
                yield match.group()
    for match in ADDRESS.finditer(text):
        try:
            address = ipaddress.ip_address(match.group())
        except ValueError:
            continue
        if not any(address in network for network in KNOWN_NETWORKS):
            yield match.group()


def files() -> Iterator[Path]:
    """What belongs to the repository: neither hidden nor made, but for the two hidden names that are ours."""
    for entry in ROOT.iterdir():
        if entry.name in MADE or entry.name.endswith(".egg-info"):
            continue
        if entry.name.startswith(".") and entry.name not in (".ci", ".gitignore"):
            continue
        yield from [entry] if entry.is_file() else (path for path in entry.rglob("*") if path.is_file())


def test_no_file_names_a_machine_or_a_person() -> None:
    found, seen = [], 0
    for path in files():
        if MADE & set(path.relative_to(ROOT).parts) or path == Path(__file__):
            continue
        seen += 1
        text = path.read_text(errors="replace")
        if next(strangers(text), None) is not None:  # line by line it takes five times as long
            for number, line in enumerate(text.splitlines(), 1):
                found += [f"{path.relative_to(ROOT)}:{number}: {what}" for what in strangers(line)]
    assert seen > 100
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cd /home/someone/grid",
        "config = '/opt/grid/config.yaml'",
        "PYTHONPATH=/tmp/ty",
        "index = https://mirror.company.com/simple",
        "mail someone@company.com",
        "connect to 10.1.2.3 first",
        "# TODO(someone): later",
    ],
)
def test_a_line_that_does_is_found(line: str) -> None:
    assert list(strangers(line))


@pytest.mark.parametrize(
    "line",
    [
        "ws://127.0.0.1:7433 or ws://HOST:7433, http://evil.example",
        "https://www.apache.org/licenses/LICENSE-2.0",
        "~/.config/grid and $HOME/grid and /etc/grid/grid.yaml and /var/lib/grid",
        "@pytest.fixture",
        "listens on 0.0.0.0, refuses 192.0.2.1",
        "# Written by `grid dev up`",
    ],
)
def test_a_line_that_does_not_is_let_pass(line: str) -> None:
    assert not list(strangers(line))


def test_the_umask_of_whoever_runs_the_tests_is_no_part_of_them() -> None:
    program = "import os; import tests.conftest; print(oct(os.umask(0)))"
    for mask in (0, 0o077):
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=ROOT, umask=mask, capture_output=True, text=True, timeout=100)
        assert done.stdout == "0o22\n", done.stderr
