"""Makes attacks under one level of walls, and prints one JSON line for each. Runs inside an enclosure.

python -m tests.abuse.inside LEVEL [ATTACK…]
"""

import argparse
import dataclasses
import json
import sys

from distributed_grid.agent.walls import syscalls
from tests.abuse.arena import Arena
from tests.abuse.attacks import ATTACKS, LEVELS, named
from tests.abuse.judge import Verdict, attack


def attempts(level: str, names: list[str], cgroup: str = "auto", kind: type[Arena] = Arena) -> int:
    """Make these attacks one after another, in a new arena where the last one was broken. How many were made."""
    wanted = [named(name) for name in names] or list(ATTACKS)
    syscalls.leave_session_keyring()  # for one that all below us have, as systemd or a login makes it
    environment = {"GRID_AGENT__CGROUP": cgroup}
    made = None
    try:
        for what in wanted:
            if made is None:
                made = kind(level, environment)
                made.start()
            try:
                verdict = attack(made, what)
            except Exception as error:  # the arena is in pieces, and that is a finding
                verdict = Verdict(what.name, level, [f"{type(error).__name__}: {error}"[:500]], broken=True)
            print(json.dumps(dataclasses.asdict(verdict)), flush=True)
            if verdict.broken:
                made.close()
                made = None
        if made is not None and (wrong := made.dismiss()):
            print(json.dumps(dataclasses.asdict(Verdict("(the neighbour's end)", level, [wrong]))), flush=True)
    finally:
        if made is not None:
            made.close()
    return len(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.abuse.inside")
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("attacks", nargs="*")
    parser.add_argument("--cgroup", default="auto")
    asked = parser.parse_args()
    attempts(asked.level, asked.attacks, asked.cgroup)
    return 0


if __name__ == "__main__":
    sys.exit(main())
