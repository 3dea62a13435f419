"""Attack 9: outlive the job. A process leaves session, process group, parent and working directory, drops its
environment and all open files, and sleeps.

Succeeds if it is there after the job has ended; only the harness can see that.
"""

import os

from kit import detach, report, scene

for how in range(3):
    if detach():
        os.closerange(0, 64)
        os.chdir("/")
        if how == 1:
            os.setpgid(0, 0) if os.getpgid(0) != os.getpid() else None
        if how == 2 and os.fork():
            os._exit(0)
        os.execve("/bin/sleep", ["sleep", f"60.{scene['token']}"], {})  # noqa: S606
report()
