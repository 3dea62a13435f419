"""Attack 9: processes that fork anew with setsid every 200 µs, so that whoever looks for them finds only who has just
left. Five chains; each ends by itself after 12 s.

Succeeds if any of them outlives the job; only the harness can see that.
"""

import os
import sys
import time

from kit import detach, report

SECONDS = 12.0
CHAINS = 5

until = time.monotonic() + SECONDS
for _ in range(CHAINS):
    if detach():
        sys.stdout.close()
        os.closerange(0, 3)
        while time.monotonic() < until:
            try:
                if os.fork():
                    os._exit(0)
            except OSError:
                continue
            os.setsid()
            time.sleep(0.0002)
        os._exit(0)
time.sleep(0.5)
report()
