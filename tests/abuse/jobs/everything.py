"""All of the programs at once, as one job, each in a folder of its own; this one waits for their reports.

Succeeds if any of them does.
"""

import json
import os
import subprocess
import sys

from kit import got, report, scene

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 40
FATAL = ("wear_victim", "fork_bomb")
"""These end the whole job where its limits are kept, so they come when all others have reported."""

read: list[str] = []


def begin(words: list[str]) -> "subprocess.Popen[bytes] | None":
    folder = f"of-{'-'.join(words)}"
    os.mkdir(folder)
    argv = [sys.executable, f"{HERE}/{words[0]}.py", sys.argv[1], *words[1:]]
    try:
        return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def all_at_once(programs: list[list[str]]) -> None:
    running = [(words, process) for words in programs if (process := begin(words)) is not None]
    for words, process in running:
        try:
            out, _ = process.communicate(timeout=SECONDS)
            said = json.loads(out.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            process.kill()
            continue
        got.extend(f"{' '.join(words)}: {one}" for one in said["got"][:10])
        read.extend(str(text) for text in said.get("read", []))


all_at_once([words for words in scene["all"] if words[0] not in FATAL])
report(read=read[:20])
before = [*got]
all_at_once([words for words in scene["all"] if words[0] in FATAL])
if not scene["grouped"]:
    got[:] = before  # limits that are kept by looking now and then are not promised to hold at once
report(read=read[:20])
