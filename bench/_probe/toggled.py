"""Has a process start cProfile at one SIGUSR2, and write the profile at the next one. Only the CPU time of the main
thread is measured, in which the services' loops run. Stdlib only, because the supervisor runs it, too.

`python -I -S toggled.py FOLDER MAIN ARGUMENTS…` starts a supervisor that can be profiled.
"""

import cProfile
import os
import runpy
import signal
import sys
import time


def install(folder: str) -> None:
    """Watch this folder from now on: PID.on says that a profile is being made, and PID.pstats is a finished one."""
    profile = cProfile.Profile(time.thread_time)
    path = os.path.join(folder, str(os.getpid()))
    owner = os.getpid()

    def toggle(*_: object) -> None:
        if os.getpid() != owner:  # a fork of ours
            return
        if not os.path.exists(f"{path}.on"):
            with open(f"{path}.on", "w"):
                pass
            profile.enable()
            return
        profile.disable()
        profile.dump_stats(f"{path}.part")
        os.replace(f"{path}.part", f"{path}.pstats")
        os.unlink(f"{path}.on")

    signal.signal(signal.SIGUSR2, toggle)


if __name__ == "__main__":
    _, folder, main, *rest = sys.argv
    install(folder)
    sys.argv = [main, *rest]
    runpy.run_path(main, run_name="__main__")
