"""No attack: the neighbour, a job of another user on the same node that wants to be left alone.

It has a secret in its environment, a private file, a file in shared memory and a key in its keyrings; counts aloud
every 100 ms, looks after what is its own, and exits with 7 when a file tells it to. Its output is one number a line,
without a gap, and any word in it is a complaint.
"""

import ctypes
import os
import platform
import sys
import time

token, ending = sys.argv[1:3]
shared = f"/dev/shm/abuse-{token}"
PRIVATE = f"private to {token}\n"
ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(platform.machine(), 248)
KEYRINGS = -3, -4  # of the session and the user

libc = ctypes.CDLL(None, use_errno=True)
for ring in KEYRINGS:
    libc.syscall(ADD_KEY, b"user", f"abuse-{token}".encode(), f"secret-{token}".encode(), len(token) + 7, ring)
os.umask(0o077)
for path in ("private", shared):
    with open(path, "w") as file:
        file.write(PRIVATE)
held = bytearray(os.urandom(1 << 10) * (16 << 10))
number = 0
while not os.path.exists(ending):
    number += 1
    print(number, flush=True)
    for path in ("private", shared):
        try:
            with open(path) as file:
                if file.read() != PRIVATE:
                    raise OSError("changed")
        except OSError as error:
            print(f"{path}: {error}", flush=True)
            with open(path, "w") as file:
                file.write(PRIVATE)
    time.sleep(0.1)
os.unlink(shared)
sys.exit(7)
