"""Makes a process start cProfile at one SIGUSR2, and write what it has seen at the next one. Stdlib only, as the
supervisor runs it, too. Only the main thread is seen, which is where the services' loops run, and only its CPU time.
"""

import cProfile
import os
import signal
import time


def install(folder: str) -> None:
    """From now on, PID.on in this folder says that a profile is being made, and PID.pstats is one that was."""
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
