"""Keeps a job that runs as our own user out of our state directory: the node's key, the journal, other jobs' files. By
Landlock, where the kernel has it (Linux 5.19). Stdlib only.

Landlock knows only what is allowed. So all that lies beside the way to the state directory is, entry by entry, and in
it the job's own folder. What is made later in a directory on that way is not; so this is used only where our user
cannot make anything there, as on a machine where the agent is a service with a user of its own: there a job misses
nothing but to mount, and to become somebody else by a set-user-id program.
"""

import ctypes
import os
import struct
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_DUMPABLE = 4

_LEAST = 2  # an older one forbids to rename from one directory to another
_WRITE_FILE, _READ_FILE = 1 << 1, 1 << 2
_REMOVE_AND_MAKE = 0x1FF0  # all of them
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPE_SIGNAL = 1 << 1


def forbid_dumps() -> None:
    """Nobody of our own user may look into this process's memory, files or environment, nor stop it as a debugger
    does; and it leaves no core."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def why_not(state_dir: str) -> str:
    """Why jobs that run as our user are not kept out of this directory; empty if they can be."""
    if _version() < _LEAST:
        return "this kernel has no Landlock (Linux 5.19)"
    for above in _way(os.path.realpath(state_dir)):
        if os.access(above, os.W_OK, effective_ids=True):
            return f"the agent's user can write in {above}, above it"
    return ""


def rules(allocs: str, folder: str) -> int:
    """A descriptor of the rules by which a process can neither read nor change what lies in the state directory, in
    which `allocs` is, but for this folder in there; nor signal what was not started by it or its like. To be closed.
    Raises OSError."""
    version = _version()
    files = _WRITE_FILE | _READ_FILE | (_TRUNCATE if version >= 3 else 0)
    handled = files | _REMOVE_AND_MAKE | _REFER
    attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNAL)[: 24 if version >= 6 else 8]
    made = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    state_dir = os.path.realpath(os.path.dirname(allocs))
    recalls = os.path.join(state_dir, "recalls")  # the notices of all, to be read
    for path in [*_beside(state_dir), os.path.realpath(folder), recalls]:
        try:
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # gone meanwhile
            continue
        allowed = _READ_FILE if path == recalls else handled if os.path.isdir(path) else files
        _call(_ADD_RULE, made, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
        os.close(fd)
    return made


def obey(made: int) -> None:
    """From now on these rules hold for this process, and all that come of it. Raises OSError."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    _call(_RESTRICT_SELF, made, 0)


def _version() -> int:
    return int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION))


def _call(number: int, *arguments: object) -> int:
    answer = int(_libc.syscall(number, *(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _way(path: str) -> list[str]:
    """The directories above it, from the root on."""
    above = os.path.dirname(path)
    return [above] if above == path or above == "/" else [*_way(above), above]


def _beside(path: str) -> Iterator[str]:
    """All that lies in the directories above it, but what leads to it. A link is left out: where it leads counts."""
    for above in _way(path):
        with os.scandir(above) as entries:
            for entry in entries:
                if not entry.is_symlink() and not (path + "/").startswith(entry.path + "/"):
                    yield entry.path
