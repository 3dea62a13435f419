"""Get round walls made of mounts and namespaces: unmount what hides, mount over what is there, enter the namespaces of
others, make namespaces of one's own and try again from within, open files by their handles, leave by chroot.

A namespace of one's own is nobody's harm. Succeeds if the node's key can be read after any of these, if a namespace of
another process can be entered, or if something was mounted where others see it.
"""

import ctypes
import os

from kit import attempt, call, got, libc, read, report, scene, state, targets

NEWNS, NEWUSER = 0x20000, 0x10000000
MNT_DETACH, MS_BIND = 2, 4096
KEY = f"{state}/identity/own.key"
libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]


def again(how: str) -> None:
    """Try once more to read the key."""
    for path in (KEY, f"/proc/1/root{KEY}", f"/proc/{scene['agent']}/root{KEY}"):
        attempt(f"read {path} after {how}", read, path)


def in_child(how: str, do: object, *args: object) -> None:
    """Do it where it changes nothing for this process; whatever the child got counts."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            got.clear()
            do(*args)  # type: ignore[operator]
            again(how)
        except OSError:
            pass
        finally:
            os.write(theirs, "\n".join(got).encode()[:4000])
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as file:
        text = file.read()
    os.waitpid(child, 0)
    got.extend(line for line in text.splitlines() if line)


def unmount_all() -> None:
    """Unmount all that can be, the newest first."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    for point in reversed(points):
        if point.startswith(("/proc", "/sys/fs")) or point == "/":
            continue
        libc.umount2(point.encode(), MNT_DETACH)


def own_namespace() -> None:
    call("unshare", NEWUSER | NEWNS)


def unmount_in_own() -> None:
    own_namespace()
    unmount_all()


def bind_in_own() -> None:
    own_namespace()
    os.mkdir("bound")
    call("mount", b"/", os.path.abspath("bound").encode(), b"", MS_BIND, None)  # not recursive: without what is over it
    attempt("read the key below a bind mount of /", read, f"bound{KEY}")
    above = os.path.dirname(state)
    call("mount", above.encode(), os.path.abspath("bound").encode(), b"", MS_BIND, None)
    attempt("read the key below a bind mount", read, f"bound/{os.path.relpath(KEY, above)}")


def chroot_out() -> None:
    own_namespace()
    os.mkdir("inner")
    os.chroot("inner")
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")


def over_the_state() -> None:
    call("mount", b"none", state.encode(), b"tmpfs", 0, None)


def handle() -> None:
    """Open by handle, which goes round every path."""
    buffer = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(buffer).value = 128
    mount = ctypes.c_int()
    call("name_to_handle_at", -100, KEY.encode(), buffer, ctypes.byref(mount), 0)
    top = os.open("/", os.O_RDONLY)
    os.close(call("open_by_handle_at", top, buffer, os.O_RDONLY))
    got.append("open the key by its handle")


def enter(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        call("setns", fd, 0)
    finally:
        os.close(fd)


again("nothing")
for name, pid in [*targets(), ("the first process", 1)]:
    for kind in ("mnt", "user", "pid", "ipc", "net"):
        path = f"/proc/{pid}/ns/{kind}"
        try:
            same = os.readlink(path) == os.readlink(f"/proc/self/ns/{kind}")
        except OSError:
            continue
        if not same:
            in_child(f"entering {kind} of {name}", lambda path: attempt(f"enter {path}", enter, path), path)
in_child("making namespaces", own_namespace)
in_child("unmounting in a namespace of its own", unmount_in_own)
in_child("binding", bind_in_own)
in_child("leaving by chroot", chroot_out)
in_child("a handle", handle)
in_child("mknod", lambda: os.mknod("disk", 0o60600, os.stat("/").st_dev))
in_child("mounting over the state", over_the_state)
in_child("unmounting", unmount_all)
report()
