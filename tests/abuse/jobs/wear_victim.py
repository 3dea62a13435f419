"""Attack 5: an orphan that wears the victim's `GRID_ALLOCATION_ID` takes memory, so that the victim is charged for it
and ended, while this job escapes its own limit.

Succeeds if the orphan comes to hold three times what this job was granted; the harness sees what became of the victim.
"""

import os
import sys
import time

from kit import detach, got, report, scene

GRANTED = int(scene["granted"])
STEP = 16 << 20
SECONDS = 8.0


def take() -> None:
    """What the orphan does: take memory, say how much, and hold it for a while."""
    held: list[bytearray] = []
    with open("taken", "w") as said:
        while len(held) * STEP < 3 * GRANTED:
            held.append(bytearray(os.urandom(1 << 10) * (STEP >> 10)))
            said.seek(0)
            said.write(str(len(held) * STEP))
            said.flush()
            time.sleep(0.05)
    time.sleep(4.0)


if sys.argv[-1] == "take":
    take()
elif detach():
    marks = {"ABUSE": scene["token"]}
    if sys.argv[2] == "victim":
        marks["GRID_ALLOCATION_ID"] = scene["allocation"]
    os.execve(sys.executable, [sys.executable, sys.argv[0], *sys.argv[1:3], "take"], marks)  # noqa: S606
else:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            with open("taken") as file:
                taken = int(file.read() or 0)
        except FileNotFoundError:
            taken = 0
        if taken >= 3 * GRANTED:
            if sys.argv[2] != "victim":  # else it is the victim's fate that counts
                got.append(f"an orphan holds {taken >> 20} MiB of {GRANTED >> 20} granted")
            time.sleep(2.0)  # time to notice
            break
        time.sleep(0.05)
    report()
