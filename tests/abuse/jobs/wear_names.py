"""Attack 2: leave processes that wear ids which are none (`..`, a path, nothing, the victim's), for the next supervisor
to take over. The harness kills the supervisor while they live.

Succeeds if the agent is deaf from then on, or cannot start again; only the harness can see that.
"""

import os
import time

from kit import detach, report, scene

SECONDS = 12
WORN = ("..", "../..", ".", "../identity", "", "a/b", "x" * 300, "j-1.1\n", scene["allocation"])

for worn in WORN:
    if detach():
        environment = {"GRID_ALLOCATION_ID": worn, "ABUSE": scene["token"]}
        os.execve("/bin/sleep", ["sleep", f"{SECONDS}.{scene['token']}"], environment)  # noqa: S606
report()
time.sleep(SECONDS - 4)
