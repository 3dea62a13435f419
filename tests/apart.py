"""A scene in a process of its own, for what a test process cannot get rid of again."""

import os
import traceback
from collections.abc import Callable


def apart(scene: Callable[[], None]) -> None:
    """Run it in a child. For loops of uvloop: once there was one, libuv closes descriptors by number in each child that
    a process forks, among them those of a fork server (agent/walls), which supervisors fork without libuv."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            scene()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "its traceback is on stderr"
