"""Commands as other users of this machine: also where the Python of these tests, or their tree, lies in a home that is
closed to others (root's). Such a command then has a view of the files of its own, in which both are where they are."""

import os
import shlex
import shutil
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lacking() -> str:
    """Why nothing can be run as another user here; empty: it can."""
    if os.geteuid() != 0:
        return "needs to be root, to come as another user"
    missing = [name for name in ("unshare", "setpriv", "mount") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}" if missing else ""


def as_user(uid: int, place: Path) -> list[str]:
    """What to put before a command that is to run as this user; `place` is a directory of the test's."""
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}
    closed = {folder for path in needed if (folder := _closed(path)) is not None}
    hidden = sorted(path for path in needed if any(folder in path.parents for folder in closed))
    asides = [place / f"aside-{number}" for number in range(len(hidden))]
    script = ["set -e"]
    for path, aside in zip(hidden, asides, strict=True):
        aside.mkdir(exist_ok=True)
        script.append(shlex.join(["mount", "--bind", str(path), str(aside)]))
    script += [shlex.join(["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(folder)]) for folder in sorted(closed)]
    for path, aside in zip(hidden, asides, strict=True):
        script.append(shlex.join(["mkdir", "-p", str(path)]))
        script.append(shlex.join(["mount", "--bind", str(aside), str(path)]))
        script.append(shlex.join(["umount", str(aside)]))
    script.append('exec "$@"')
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "; ".join(script), "sh", *become]


def _closed(path: Path) -> Path | None:
    """The first folder on the way to it that others may not pass through."""
    return next((one for one in reversed(path.parents) if not one.stat().st_mode & stat.S_IXOTH), None)
