"""`make abuse`: first a grid besieged by peers (tests/e2e/security/siege.py), then every attack of a job, under
every level of walls that this machine has, on a grid of plain processes and inside a machine with systemd. Prints a
table; exits with 1 where an attack did harm that is expected to be refused.

    make abuse ARGS="--levels user,namespace --attacks look,trace --no-siege --no-unit"
"""

import argparse
import json
import subprocess
import sys

from tests.abuse import enclosure
from tests.abuse.attacks import ATTACKS, HELD, LEVELS, UNTOLD, expected, named

UNIT_LEVELS = ("user", "landlock", "none")
"""What the service can be set to: its unit forbids to make namespaces (RestrictNamespaces)."""
Verdicts = dict[tuple[str, str, str], dict[str, object]]
"""By place, level and attack."""


def attack(place: str, level: str, names: list[str], arguments: list[str]) -> Verdicts:
    """Make the attacks in an enclosure, and read the verdicts."""
    inside = [sys.executable, "-m", "tests.abuse.campaign", "--inside", level, *arguments, *names]
    found: Verdicts = {}
    with subprocess.Popen(inside, cwd=enclosure.ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if one := _parsed(line.rstrip()):
                found[place, level, str(one["attack"])] = one
                progress(place, level, one)
    if process.returncode != 0:
        found[place, level, "(the campaign)"] = {"harms": [f"it ended with exit code {process.returncode}"]}
    return found


def progress(place: str, level: str, verdict: dict[str, object]) -> None:
    """A line as soon as an attack was judged, with what was told of it."""
    harms, told = verdict["harms"], verdict.get("told") or []
    assert isinstance(harms, list) and isinstance(told, list)
    outcome = "; ".join(map(str, harms[:3])) or "held"
    seconds = verdict.get("seconds")
    took = f" {seconds:.0f} s" if isinstance(seconds, float) else ""
    print(
        f"{place} {level} {verdict['attack']}: {outcome[:300]}{took}{''.join(f'{chr(10)}    {one}' for one in told)}",
        flush=True,
    )


def _parsed(line: str) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads(line)
    except ValueError:
        found = {}
    if "attack" not in found:
        print(line)
        return {}
    return found


def promised(verdict: dict[str, object], level: str, name: str) -> bool:
    """Whether this attack was to be refused."""
    known = next((one for one in ATTACKS if one.name == name), None)
    return known is None or expected(known, level, bool(verdict.get("groups", True))) == HELD


def failures(verdicts: Verdicts) -> list[str]:
    """What is not as expected, a line each."""
    lines = []
    for (place, level, name), verdict in verdicts.items():
        harms = verdict["harms"]
        assert isinstance(harms, list)
        if not promised(verdict, level, name):  # but it is always told where that is said
            harms = [harm for harm in harms if harm.startswith(UNTOLD)]
        if harms:
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
    return subprocess.run([sys.executable, "-m", "tests.e2e.security.siege", *words], cwd=enclosure.ROOT).returncode


def in_unit(level: str, names: list[str]) -> Verdicts:
    """Make the attacks inside a machine with systemd, on an agent that `grid agent install` installed, and that is
    configured for these walls."""
    from tests.abuse.unit import attacks

    found: Verdicts = {}
    for one in attacks(level, names):
        found["systemd", level, str(one["attack"])] = one
        progress("systemd", level, one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make abuse")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the siege")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--attacks", default="", help="names, with commas (all)")
    parser.add_argument("--no-siege", action="store_true")
    parser.add_argument("--no-processes", action="store_true", help="inside a machine with systemd only")
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
    wanted = asked.levels.split(",")
    for level in wanted if not asked.no_processes else ():
        verdicts |= attack("processes", level, names, [])
    if not asked.no_unit:
        from tests.systemd import booted

        if why := booted.lacking():
            print(f"attacks inside a machine with systemd are not made: this machine {why}")
        else:
            for level in (one for one in UNIT_LEVELS if one in wanted):
                verdicts |= in_unit(level, names)
    print(table(verdicts))
    wrong = failures(verdicts)
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong or code else 0


if __name__ == "__main__":
    sys.exit(main())
