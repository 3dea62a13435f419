"""Landlock (Linux 5.19): keeps a job that runs as our own user out of our state directory, and processes of one slot
from signalling others (Linux 6.12). Stdlib only.

Landlock knows only what is allowed. So all that lies beside the way to the state directory is, entry by entry, and in
it the job's own folder. What is made later in a directory on that way is not; so this is used only where our user
cannot make anything there, as on a machine where the agent is a service with a user of its own: there a job misses
nothing but to mount, and to become somebody else by a set-user-id program.
"""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator

from distributed_grid.agent.walls.syscalls import forbid_new_privileges

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_VERSION = 1
_PATH_BENEATH = 1

_LEAST = 2  # an older one forbids to rename from one directory to another
_WRITE_FILE, _READ_FILE = 1 << 1, 1 << 2
_REMOVE_AND_MAKE = 0x1FF0  # all of them
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_SCOPES_FROM = 6  # the version that knows them


def why_not(state_dir: str) -> str:
    """Why jobs that run as our user are not kept out of this directory; empty if they can be."""
    if _version() < _LEAST:
        return "this kernel has no Landlock (Linux 5.19)"
    for above in _way(os.path.realpath(state_dir)):
        if os.access(above, os.W_OK, effective_ids=True):
            return f"the agent's user can write in {above}, above it"
        if os.path.exists(above) and not os.access(above, os.R_OK, effective_ids=True):
            return f"the agent's user cannot list {above}, above it, and so not allow what lies there"
    return ""


def rules(state_dir: str, allowed: Iterable[str], readable: Iterable[str] = ()) -> int:
    """A descriptor of the rules by which a process can neither read nor change what lies in the state directory, but
    for these paths in there; nor signal what was not started by it or its like. To be closed. Raises OSError."""
    version = _version()
    files = _WRITE_FILE | _READ_FILE | (_TRUNCATE if version >= 3 else 0)
    handled = files | _REMOVE_AND_MAKE | _REFER
    attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNAL)[: 24 if version >= _SCOPES_FROM else 8]
    made = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in [*_beside(os.path.realpath(state_dir)), *map(os.path.realpath, allowed)]:
            _allow(made, path, handled, files)
        for path in map(os.path.realpath, readable):
            _allow(made, path, _READ_FILE, _READ_FILE)
    except BaseException:
        os.close(made)
        raise
    return made


def _allow(made: int, path: str, in_directory: int, of_file: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # gone meanwhile
        return
    try:
        allowed = in_directory if os.path.isdir(path) else of_file
        _call(_ADD_RULE, made, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
    finally:
        os.close(fd)


def isolate() -> None:
    """This process and its children neither signal others nor connect to their abstract sockets, such as those of an
    X server or a session bus. Without effect on kernels that cannot do that. Raises OSError."""
    if _version() < _SCOPES_FROM:
        return
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_SIGNAL | _SCOPE_ABSTRACT_SOCKETS)
    made = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        obey(made)
    finally:
        os.close(made)


def obey(made: int) -> None:
    """From now on these rules hold for this process, and all that come of it. Raises OSError."""
    forbid_new_privileges()
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
