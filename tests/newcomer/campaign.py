"""`make newcomer`: README.md and every page of docs/, typed as they stand by an ordinary user on bare Debians.

For each suite a machine boots over a bare root (roots.py), and the user `ann` types what README says about installing,
in a clone of this tree. Every page is then typed on a machine of its own over the result, in a login shell. Machines
have no network but their own loopback: what is installed lies in the root.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.grid_fixture import CONFIG
from tests.newcomer import roots
from tests.newcomer.pages import PAGES, ROOT, Block, blocks, commands
from tests.newcomer.shell import Shell, wrong
from tests.systemd import booted

HOME = Path("/home") / "ann"
CLONE = HOME / "distributed-grid"
INSTALL = ("README.md", "Install")
LOGIN = (
    *("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--uid=ann", "--property=PAMName=login"),
    *(f"--working-directory={HOME}", "/bin/bash", "--login"),
)
"""A session as from a login, with a runtime directory and a systemd of its own."""


def lacking() -> str:
    """Why nothing can be typed here; empty: it can."""
    return roots.lacking() or booted.lacking()


def clone(layer: Path, root: Path) -> None:
    """A layer of a machine's root with what a clone of this tree has, as ann's."""
    there = layer / CLONE.relative_to("/")
    there.mkdir(parents=True)
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True).stdout
    present = b"\0".join(name for name in names.split(b"\0") if name and (ROOT / name.decode()).exists())
    pack = subprocess.run(
        ["tar", "-C", str(ROOT), "--null", "-T", "-", "-c"], input=present, check=True, capture_output=True
    )
    subprocess.run(["tar", "-C", str(there), "-x"], input=pack.stdout, check=True)
    owner = (root / HOME.relative_to("/")).stat()
    home = layer / HOME.relative_to("/")
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(home)], check=True)
    home.chmod(owner.st_mode & 0o777)


def typed_pages(wanted: list[str]) -> Iterator[tuple[str, list[Block]]]:
    """The pages with something to type on a machine where the grid is installed."""
    for page in PAGES:
        found = [one for one in blocks(page) if one.is_typed and (one.page, one.section) != INSTALL]
        if found and (not wanted or page.name in wanted):
            yield page.name, found


def type_all(machine: booted.Machine, found: list[Block]) -> list[str]:
    """What was not as these blocks say, up to the first line that was not."""
    machine.told("systemctl", "start", "systemd-logind", "systemd-user-sessions")
    machine.put("/etc/grid/grid.yaml", CONFIG.encode())  # as if the machine below, which others use, were idle
    shell = Shell([*machine.enter, *LOGIN], booted.ENVIRON)
    try:
        shell.run(f"cd {CLONE}")
        for block in found:
            for typed in commands(block):
                if why := wrong(shell, typed):
                    return [f"{block.where}: $ {typed.command}", *why.splitlines()]
    except AssertionError as error:
        return str(error).splitlines()
    finally:
        shell.close()
    return []


class Tally:
    """What was typed, and with what result."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def take(self, name: str, found: list[Block], began: float, complaints: list[str]) -> None:
        count = sum(1 for block in found for _ in commands(block))
        word = "failed" if complaints else "passed"
        print(f"{name}: {word}, {count} commands, {time.monotonic() - began:.0f} s", flush=True)
        for line in complaints:
            print(f"    {line}", flush=True)
        self.passed += not complaints
        self.failed += bool(complaints)


def try_suite(root: Path, wanted: list[str], tally: Tally) -> None:
    """Install the grid on a machine over this root as README says, and type the pages."""
    suite = root.name
    with tempfile.TemporaryDirectory(prefix="grid-newcomer-") as scratch:
        tree, installed = Path(scratch, "tree"), Path(scratch, "installed")
        clone(tree, root)
        install = [one for one in blocks(ROOT / INSTALL[0]) if one.is_typed and one.section == INSTALL[1]]
        began = time.monotonic()
        with booted.booted_over(f"{tree}:{root}", changes=installed) as machine:
            complaints = type_all(machine, install)
        tally.take(f"{suite}: README.md, {INSTALL[1]}", install, began, complaints)
        if complaints:
            return
        for name, found in typed_pages(wanted):
            began = time.monotonic()
            with booted.booted_over(f"{installed}:{tree}:{root}") as machine:
                complaints = type_all(machine, found)
            tally.take(f"{suite}: {name}", found, began, complaints)


def main() -> int:
    """Type all pages on all suites; 0 only if each line did what its page says."""
    parser = argparse.ArgumentParser(prog="make newcomer", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", action="append", choices=roots.SUITES, help="only on this Debian; repeatable")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these, such as tour.md")
    given = parser.parse_args()
    if why := lacking():
        print(f"skipped: {why}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends the machine
    for page in PAGES:
        for block in blocks(page):
            if block.why:
                print(f"not run: {block.where}: {block.why}")
    tally = Tally()
    for suite in given.suite or roots.SUITES:
        began = time.monotonic()
        try:
            root = roots.made(suite)
        except subprocess.SubprocessError as error:
            print(f"skipped: {suite}: without a network no bare root can be made: {error}")
            continue
        print(f"{suite}: the bare root is there, {time.monotonic() - began:.0f} s", flush=True)
        try_suite(root, given.pages, tally)
    if tally.passed or tally.failed:
        print(f"{tally.passed} passed, {tally.failed} failed")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
