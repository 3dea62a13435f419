"""Attacks 1 and 4: change the record of this very job, which is in the supervisor's journal.

Writes into, replaces and enlarges `journal` wherever it may lie. With the argument `huge` the record becomes 5 GB
(sparse), which an agent that reads all of it pays for in memory. Succeeds if a record of the agent could be changed.
"""

import os
import sys

from kit import attempt, mine, report, state

HUGE = 5 << 30


def write(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"\0\0\0\0")


def replace(path: str) -> None:
    with open(f"{path}.mine", "wb") as file:
        file.write(b"mine")
    os.rename(f"{path}.mine", path)


for above in ("..", "../..", "../../..", state):
    path = f"{above}/journal"
    if mine(path):
        continue
    if sys.argv[2:] == ["huge"]:
        attempt(f"enlarge {path}", os.truncate, path, HUGE)
    else:
        attempt(f"write {path}", write, path)
        attempt(f"replace {path}", replace, path)
report()
