"""Leave things outside of the job's own directory, for ever: files and set-user-id programs in /tmp, /var/tmp and
/dev/shm, System V shared memory, semaphores and queues, POSIX queues. They take memory that no limit of the next job
counts, and lie in wait for whoever is given the same user id later.

Succeeds if any of it is there after the job has ended; only the harness can see that.
"""

import contextlib
import ctypes
import os
import shutil

from kit import libc, report, scene

SIZE = 8 << 20
IPC_CREAT = 0o1000
name = f"left-{scene['token']}"
key = int(scene["token"]) + 7
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    with contextlib.suppress(OSError):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(bytes(SIZE if folder == "/dev/shm" else 1 << 16))
        os.chmod(f"{folder}/{name}", 0o666)
    with contextlib.suppress(OSError):
        os.makedirs(f"{folder}/{name}-closed/{'d/' * 200}")
        shutil.copy("/bin/sleep", f"{folder}/{name}-closed/sleep")
        os.chmod(f"{folder}/{name}-closed/sleep", 0o6755)
        os.chmod(f"{folder}/{name}-closed", 0)
    with contextlib.suppress(OSError):
        os.mkfifo(f"{folder}/{name}-fifo")
    with contextlib.suppress(OSError):
        os.symlink("/etc/passwd", f"{folder}/{name}-link")
libc.shmget(ctypes.c_int(key), ctypes.c_size_t(SIZE), IPC_CREAT | 0o666)
libc.semget(ctypes.c_int(key), 4, IPC_CREAT | 0o666)
libc.msgget(ctypes.c_int(key), IPC_CREAT | 0o666)
with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL("librt.so.1", use_errno=True).mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
report(key=key)
