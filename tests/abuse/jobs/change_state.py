"""Attack 7: change files of the agent's and the coordinator's state without reading them: mode, times, owner, extended
attributes, name, links to them, and sockets or new files in their folders. Landlock knows nothing of some of these.

Succeeds if any of it is allowed.
"""

import os

from kit import attempt, report, scene, state, state_files


def writable(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))


def there_and_back(path: str) -> None:
    os.rename(path, f"{path}.moved")
    os.rename(f"{path}.moved", path)


def link(path: str) -> None:
    os.link(path, "linked")
    os.unlink("linked")


def make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    os.unlink(path)


for path in state_files()[:200]:
    attempt(f"chmod {path}", os.chmod, path, 0o777)
    attempt(f"utime {path}", os.utime, path, (0, 0))
    attempt(f"chown {path}", os.chown, path, os.getuid(), os.getgid())
    attempt(f"setxattr {path}", os.setxattr, path, "user.abuse", b"1")
    attempt(f"write {path}", writable, path)
    attempt(f"rename {path}", there_and_back, path)
    attempt(f"link {path}", link, path)
folders = [state, scene["coordinator_state"]]
for folder in [*folders, f"{state}/identity", f"{state}/allocs", f"{state}/recalls"]:
    attempt(f"chmod {folder}", os.chmod, folder, 0o777)
    attempt(f"make a file in {folder}", make, f"{folder}/of-mine")
report()
