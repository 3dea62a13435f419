"""`make abuse`: first a grid besieged by peers (tests/e2e/siege.py), then every attack of a job, under every level of
walls that this machine has, on a grid of plain processes and inside a machine with systemd. Prints a table; exits with
1 where an attack did harm that is expected to be refused.

    make abuse ARGS="--levels user,namespace --attacks look,trace --no-siege --no-unit"
"""

import argparse
import json
import subprocess
import sys

from tests.abuse import enclosure
from tests.abuse.arena import has_walls, levels
from tests.abuse.attacks import ATTACKS, HELD, LEVELS, expected, named

Verdicts = dict[tuple[str, str, str], dict[str, object]]
"""By place, level and attack."""


def attack(place: str, level: str, names: list[str], arguments: list[str]) -> Verdicts:
    """Make the attacks in an enclosure, and read the verdicts."""
    inside = [sys.executable, "-m", "tests.abuse.campaign", "--inside", level, *arguments, *names]
    done = subprocess.run(inside, cwd=enclosure.ROOT, stdout=subprocess.PIPE, text=True)
    return {(place, level, one["attack"]): one for one in map(_parsed, done.stdout.splitlines()) if one}


def _parsed(line: str) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(line)
        return found
    except ValueError:
        print(line)
        return {}


def promised(verdict: dict[str, object], level: str, name: str) -> bool:
    """Whether this attack was to be refused."""
    known = next((one for one in ATTACKS if one.name == name), None)
    return known is None or expected(known, level, bool(verdict.get("groups", True))) == HELD


def failures(verdicts: Verdicts) -> list[str]:
    """What is not as expected, a line each."""
    lines = []
    for (place, level, name), verdict in verdicts.items():
        if verdict["harms"] and promised(verdict, level, name):
            harms = verdict["harms"]
            assert isinstance(harms, list)
            lines.append(f"{place} {level} {name}: {'; '.join(map(str, harms[:4]))}")
    return lines


def table(verdicts: Verdicts) -> str:
    """Attacks down, places and levels across: `held`, `harm`, or `(harm)` where nothing else is promised."""
    columns = list(dict.fromkeys((place, level) for place, level, _ in verdicts))
    names = list(dict.fromkeys(name for _, _, name in verdicts))
    rows = [["", *(f"{level}" for _, level in columns)], ["", *(place for place, _ in columns)]]
    for name in names:
        row = [name]
        for place, level in columns:
            verdict = verdicts.get((place, level, name))
            if verdict is None:
                row.append("-")
            else:
                row.append("held" if not verdict["harms"] else "HARM" if promised(verdict, level, name) else "(harm)")
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def siege(arguments: argparse.Namespace) -> int:
    """A crowd of peers that misbehave, against a coordinator at work."""
    words = ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
    return subprocess.run([sys.executable, "-m", "tests.e2e.siege", *words], cwd=enclosure.ROOT).returncode


def in_unit(names: list[str]) -> Verdicts:
    """Make the attacks inside a machine with systemd, on an agent that `grid agent install` installed, under the walls
    that a service has."""
    from tests.abuse.unit import attacks

    level = "user" if has_walls() else "landlock"
    return {("systemd", level, str(one["attack"])): one for one in attacks(level, names)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make abuse")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the siege")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levels", default=",".join(levels()))
    parser.add_argument("--attacks", default="", help="names, with commas (all)")
    parser.add_argument("--no-siege", action="store_true")
    parser.add_argument("--no-unit", action="store_true", help="not inside a machine with systemd")
    parser.add_argument("--inside", metavar="LEVEL", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        return enclosure.run("tests.abuse.inside", [asked.inside, *asked.names])
    names = [name for name in asked.attacks.split(",") if name]
    for name in names:
        named(name)
    unknown = [level for level in asked.levels.split(",") if level not in LEVELS]
    if unknown:
        parser.error(f"no level of walls is called {unknown[0]}; there are {', '.join(LEVELS)}")
    code = 0 if asked.no_siege else siege(asked)
    if why := enclosure.lacking():
        print(f"attacks of jobs are not made: this machine {why}")
        return code
    verdicts: Verdicts = {}
    for level in asked.levels.split(","):
        verdicts |= attack("processes", level, names, [])
    if not asked.no_unit:
        from tests.systemd import booted

        if why := booted.lacking():
            print(f"attacks inside a machine with systemd are not made: this machine {why}")
        else:
            verdicts |= in_unit(names)
    print(table(verdicts))
    wrong = failures(verdicts)
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong or code else 0


if __name__ == "__main__":
    sys.exit(main())
