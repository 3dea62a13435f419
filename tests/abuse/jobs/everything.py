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
read: list[str] = []
running = []
for words in scene["all"]:
    folder = f"of-{'-'.join(words)}"
    os.mkdir(folder)
    argv = [sys.executable, f"{HERE}/{words[0]}.py", sys.argv[1], *words[1:]]
    try:
        running.append((words, subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)))
    except OSError:
        continue
for words, process in running:
    try:
        out, _ = process.communicate(timeout=SECONDS)
        said = json.loads(out.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        process.kill()
        continue
    got += [f"{' '.join(words)}: {one}" for one in said["got"][:10]]
    read += [str(text) for text in said.get("read", [])]
report(read=read[:20])
