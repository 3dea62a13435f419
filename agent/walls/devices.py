"""The groups that open a node's GPUs: where their device nodes are for a group alone (`root:render 0660`, as udev makes
those of AMD), a user that has no group of the machine could not open the GPU that it was granted. What drives displays
(`/dev/dri/card*`) is not among them: its group, `video`, opens the owner's camera as well. Stdlib only.
"""

import os
import stat
from pathlib import Path

FOLDER = "/dev"
_NODES = ("nvidia*", "nvidia-caps/*", "kfd", "dri/renderD*")


def groups() -> tuple[int, ...]:
    """Those that may read and write a GPU's device node which is not open to everyone; never root's."""
    found = set()
    for path in (path for pattern in _NODES for path in Path(FOLDER).glob(pattern)):
        try:
            seen = os.lstat(path)
        except OSError:
            continue
        mode = stat.S_IMODE(seen.st_mode)
        if stat.S_ISCHR(seen.st_mode) and mode & 0o060 == 0o060 and mode & 0o006 != 0o006:
            found.add(seen.st_gid)
    return tuple(sorted(found - {0}))
