"""Attack 4: put a FIFO or a link in the place of files that the agent or the supervisor opens by name: the output, the
record of its gaps and the notice that the job is to end.

The first argument is `fifo` (who opens one for reading waits for ever) or `link` (who writes through it destroys the
node's certificate). Succeeds if such a thing could be put there; the harness sees whether anybody fell for it.
"""

import contextlib
import os
import sys

from kit import attempt, mine, own, report, state

NAMES = ("stdout", "stderr", "stdout.gap", "stdout.gap.new", "recall", "recall.new", "spec.new")


def plant(path: str) -> None:
    if sys.argv[2] == "fifo":
        os.mkfifo(f"{path}.mine", 0o666)
    else:
        os.symlink(f"{state}/identity/own.crt", f"{path}.mine")
    os.rename(f"{path}.mine", path)


for above in ("..", f"{state}/allocs/{own}", f"{state}/recalls"):
    for name in NAMES:
        if mine(above):
            with contextlib.suppress(OSError):  # planted for whoever falls for it, and no success by itself
                plant(f"{above}/{name}")
        else:
            attempt(f"{sys.argv[2]} at {above}/{name}", plant, f"{above}/{name}")
attempt(f"{sys.argv[2]} at {state}/recalls/{own}", plant, f"{state}/recalls/{own}")
print("some output\n" * 1000, file=sys.stderr)
report()
