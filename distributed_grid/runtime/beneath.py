"""Opens files below a directory that a job can write to, or could have written to. Nothing here follows a symbolic link
or a magic link of /proc, leaves the directory, crosses a mount point, waits for another process, or reads more than the
caller allows. Stdlib only: the supervisor and its spawners use it.

On Linux 5.6 and later the kernel resolves the path (openat2). Elsewhere, and where a seccomp filter refuses that
call (a container's; systemd's RestrictSUIDSGID, as in our unit), each part of the path is opened on its own.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys

_OPENAT2 = 437  # the same on all machines
_EMPTY_PATH, _MOUNT_ID = 0x1000, 0x1000  # of statx: the open file itself, and by which field
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_HOW = struct.Struct("=QQQ")
_CREATES = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # all that goes with O_PATH
PATH_BYTES = 1 << 20
"""The longest path that is opened."""
_STEP_BYTES = 4000  # of a path, in one call: PATH_MAX less a margin
_TRIES = 16  # for a directory that is renamed while the kernel resolves a path through it
_PIECE = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_has_openat2: bool | None = None

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}


class Refused(OSError):
    """An existing file is not opened because of its kind. `strerror` says why."""


def open_beneath(root: int, path: bytes | str, flags: int, mode: int = 0, *, xdev: bool = False) -> int:
    """Open `path` below the directory that `root` is a descriptor of; returns the descriptor. No part of the path may
    be a link, nor a mount point unless `xdev` is true; `..` and absolute paths are refused. The descriptor is closed by
    an exec, and opening it never waits. Raises OSError."""
    steps = _steps(path)
    here = root
    try:
        for step in steps[:-1]:
            below = _open(here, step, os.O_PATH | os.O_DIRECTORY, 0, xdev)
            if here != root:
                os.close(here)
            here = below
        return _open(here, steps[-1], flags, mode, xdev)
    finally:
        if here != root:
            os.close(here)


def open_regular(
    root: int,
    path: bytes | str,
    flags: int = os.O_RDONLY,
    mode: int = 0,
    *,
    most: int | None = None,
    xdev: bool = False,
) -> int:
    """The same for a regular file of at most `most` bytes; anything else is refused. Raises OSError."""
    try:
        fd = open_beneath(root, path, flags & ~os.O_TRUNC, mode, xdev=xdev)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.EAGAIN, errno.ELOOP, errno.ENODEV):
            raise Refused(error.errno, _why_not(root, path, error, xdev), path) from None
        raise
    try:
        check_regular(fd, path, most)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_regular(fd: int, name: bytes | str = "", most: int | None = None) -> os.stat_result:
    """Hold that a descriptor, whoever opened it, is one of a regular file of at most `most` bytes. Raises Refused."""
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        raise Refused(errno.EINVAL, f"it is {kind(seen.st_mode)}, not a regular file", name)
    if most is not None and seen.st_size > most:
        raise Refused(errno.EFBIG, f"it has {seen.st_size} bytes, and {most} are the most", name)
    return seen


def open_directory(root: int, path: bytes | str, *, xdev: bool = False) -> int:
    """A descriptor of a directory below `root`, by which it can be listed. Raises OSError."""
    return open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY, xdev=xdev)


def open_root(path: bytes | str | os.PathLike[str]) -> int:
    """Open a directory of the grid's own, as the `root` of the others; returns the descriptor. Its path is trusted,
    except its last name, which may not be a link. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_whole(root: int, path: bytes | str, most: int) -> bytes:
    """Return the contents of a regular file, which may be at most `most` bytes, even if it grows meanwhile. Raises
    OSError."""
    fd = open_regular(root, path, most=most)
    try:
        return read_all(fd, most, path)
    finally:
        os.close(fd)


def read_all(fd: int, most: int, name: bytes | str = "") -> bytes:
    """Return the contents of the open file from its beginning, at most `most` bytes. Raises OSError."""
    data = bytearray()
    while piece := os.pread(fd, min(_PIECE, most + 1 - len(data)), len(data)):
        data += piece
        if len(data) > most:
            raise Refused(errno.EFBIG, f"it has more than {most} bytes", name)
    return bytes(data)


def replace_whole(root: int, name: bytes | str, data: bytes, mode: int = 0o600) -> None:
    """Put a file with this content in the place of whatever has this name in the directory, which is not opened: it is
    written aside first, so that a reader sees the old file or the whole new one. Raises OSError."""
    name = _name(name)
    aside = write_aside(root, data, mode)
    try:
        try:
            os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)
        except (IsADirectoryError, FileExistsError):  # what has the name is a directory: it goes aside
            os.rename(name, b"%s.was" % aside, src_dir_fd=root, dst_dir_fd=root)
            os.rename(aside, name, src_dir_fd=root, dst_dir_fd=root)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=root)
        raise


def create_whole(root: int, name: bytes | str, data: bytes, mode: int = 0o600) -> bool:
    """The same only where nothing has this name yet; whether that was so. Raises OSError."""
    name = _name(name)
    aside = write_aside(root, data, mode)
    try:
        os.link(aside, name, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        os.unlink(aside, dir_fd=root)
    return True


def write_aside(root: int, data: bytes, mode: int) -> bytes:
    """Write a file of a random name into the directory, and return that name. Raises OSError."""
    aside = b".new-" + os.urandom(8).hex().encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(aside, flags, 0o600, dir_fd=root)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fchmod(fd, mode)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=root)
        raise
    finally:
        os.close(fd)
    return aside


def kind(mode: int) -> str:
    """The kind of file that this mode means, as text."""
    return _KINDS.get(stat.S_IFMT(mode), "a regular file")


def openat2_works(again: bool = False) -> bool:
    """Whether the kernel resolves paths for us. Asked once; `again`: a seccomp filter may have come since."""
    global _has_openat2
    if _has_openat2 is None or (again and _has_openat2):
        try:
            os.close(_by_openat2(-100, b"/", os.O_PATH | os.O_CLOEXEC, 0, True, 0))
            _has_openat2 = True
        except OSError:
            _has_openat2 = False
    return _has_openat2


# --- the ways to open -------------------------------------------------------------------------------------------------


def _open(root: int, parts: list[bytes], flags: int, mode: int, xdev: bool) -> int:
    if flags & os.O_PATH:
        flags = flags & _PATH_FLAGS | os.O_CLOEXEC
    else:
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    if not flags & _CREATES:
        mode = 0
    if openat2_works():
        try:
            return _by_openat2(root, b"/".join(parts), flags, mode, xdev)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM) or openat2_works(again=True):
                raise
    return _by_steps(root, parts, flags, mode, xdev)


def _by_openat2(root: int, path: bytes, flags: int, mode: int, xdev: bool, resolve: int = _RESOLVE) -> int:
    how = _HOW.pack(flags, mode, resolve if xdev else resolve | _NO_XDEV)
    for _ in range(_TRIES):
        fd = _libc.syscall(
            ctypes.c_long(_OPENAT2), ctypes.c_int(root), ctypes.c_char_p(path), how, ctypes.c_size_t(len(how))
        )
        if fd >= 0:
            return int(fd)
        error = ctypes.get_errno()
        if error not in (errno.EINTR, errno.EAGAIN):
            break
    raise OSError(error, os.strerror(error), path)


def _by_steps(root: int, parts: list[bytes], flags: int, mode: int, xdev: bool) -> int:
    here = root
    mount = -1 if xdev else _mount_of(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            if here != root:
                os.close(here)
            here = below
            _check_mount(here, mount, part)
        fd = os.open(parts[-1], flags | os.O_NOFOLLOW, mode, dir_fd=here)
    except NotADirectoryError as error:
        raise _as_loop(error, here) from None
    finally:
        if here != root:
            os.close(here)
    try:
        _check_mount(fd, mount, parts[-1])
        # With O_PATH a link at the end is opened as such, unless a directory is asked for.
        if flags & os.O_PATH and not flags & os.O_NOFOLLOW and stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), parts[-1])
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_mount(fd: int, mount: int, name: bytes) -> None:
    if mount >= 0 and _mount_of(fd) != mount:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)


def _mount_of(fd: int) -> int:
    """The mount that an open file is in; before Linux 5.8 its device, which in an overlay is another for files than for
    directories."""
    buffer = ctypes.create_string_buffer(256)  # struct statx
    arguments = ctypes.c_int(fd), b"", ctypes.c_int(_EMPTY_PATH), ctypes.c_uint(_MOUNT_ID), buffer
    if _libc.statx(*arguments) == 0 and int.from_bytes(buffer.raw[0:4], sys.byteorder) & _MOUNT_ID:
        return int.from_bytes(buffer.raw[144:152], sys.byteorder)
    return os.fstat(fd).st_dev


def _as_loop(error: OSError, here: int) -> OSError:
    """Convert the kernel's error for a link that should be a directory to ELOOP, as for a path with a link."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(error.filename, dir_fd=here, follow_symlinks=False).st_mode):
            return OSError(errno.ELOOP, os.strerror(errno.ELOOP), error.filename)
    return error


def _why_not(root: int, path: bytes | str, error: OSError, xdev: bool) -> str:
    """Why this could not be opened as a regular file."""
    with contextlib.suppress(OSError):
        fd = open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, xdev=xdev)
        try:
            mode = os.fstat(fd).st_mode
        finally:
            os.close(fd)
        if not stat.S_ISREG(mode):
            return f"it is {kind(mode)}, not a regular file"
        if error.errno == errno.EAGAIN:
            return "another process holds a lease on it"
    return "a part of its path is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)


# --- paths ------------------------------------------------------------------------------------------------------------


def _steps(path: bytes | str) -> list[list[bytes]]:
    """The parts of a path, as many together as go into one call."""
    raw = os.fsencode(path)
    if not raw or raw.startswith(b"/"):
        raise Refused(errno.EINVAL, "the path is not relative", path)
    if b"\0" in raw:
        raise Refused(errno.EINVAL, "the path has a zero byte", path)
    if len(raw) > PATH_BYTES:
        raise Refused(errno.ENAMETOOLONG, f"the path has {len(raw)} bytes, and {PATH_BYTES} are the most", raw[:255])
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")] or [b"."]
    if b".." in parts:
        raise Refused(errno.EINVAL, "the path leads upwards", path)
    if len(raw) <= _STEP_BYTES:
        return [parts]
    steps: list[list[bytes]] = [[]]
    room = _STEP_BYTES
    for part in parts:
        room -= len(part) + 1
        if room < 0 and steps[-1]:
            steps.append([])
            room = _STEP_BYTES - len(part) - 1
        steps[-1].append(part)
    return steps


def _name(name: bytes | str) -> bytes:
    raw = os.fsencode(name)
    if raw in (b"", b".", b"..") or b"/" in raw or b"\0" in raw:
        raise Refused(errno.EINVAL, "it is not a plain name", name)
    return raw
