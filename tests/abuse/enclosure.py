"""Where attacks can harm nothing but themselves: pid, mount and IPC namespaces of their own, in control groups with a
limit on processes and memory. What is in there ends with its first process.

    python -m tests.abuse.enclosure MODULE [ARGUMENTS]     runs that module inside
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PIDS, MEMORY = 3000, 4 << 30
ACCOUNTS = {"lender": 60901, "ann": 60902, "mallory": 60903}
"""Users that exist in there only: the owner of a node, and two submitters."""


def lacking() -> str:
    """What this machine lacks for an enclosure; empty: nothing."""
    if os.geteuid() != 0:
        return "needs to be root"
    if not Path("/usr/bin/python3").exists():
        return "needs a Python that every user can run (Debian: python3-minimal)"
    tried = subprocess.run([*_space(), "true"], capture_output=True)
    return "needs namespaces, which this kernel or container refuses" if tried.returncode else ""


def _space() -> list[str]:
    return [
        "unshare",
        "--pid",
        "--mount",
        "--ipc",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    ]


@contextlib.contextmanager
def limits() -> Iterator[list[Path]]:
    """Control groups with our limits, in each hierarchy that has such; removed afterwards."""
    made = []
    for name, file, value in (
        ("pids", "pids.max", PIDS),
        ("memory", "memory.limit_in_bytes", MEMORY),
        ("", "pids.max", PIDS),
    ):
        mount = Path("/sys/fs/cgroup", name)
        group = mount / f"grid-abuse-{os.getpid()}"
        with contextlib.suppress(OSError):
            if name == "" and not (mount / "cgroup.controllers").exists():
                continue
            group.mkdir()
            made.append(group)
            (group / file).write_text(str(value))
    try:
        yield made
    finally:
        for group in made:
            for path, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def run(module: str, arguments: Sequence[str], timeout: float | None = None) -> int:
    """Run a module of ours inside, with our own streams, to its end; its exit code."""
    with limits() as groups:
        enter = 'for group in $GROUPS_OF_ABUSE; do echo $$ > "$group/cgroup.procs"; done; exec "$@"'
        ends_with_us = ["setpriv", "--pdeathsig", "KILL"]
        inner = [sys.executable, "-m", "tests.abuse.enclosure", module, *arguments]
        process = subprocess.Popen(
            ["sh", "-c", enter, "sh", *ends_with_us, *_space(), *inner],
            cwd=ROOT,
            env={**os.environ, "GROUPS_OF_ABUSE": " ".join(map(str, groups))},
            stdin=subprocess.DEVNULL,
        )
        try:
            return process.wait(timeout)
        finally:
            if process.poll() is None:
                process.kill()  # with it all that is inside
                process.wait()


def furnish() -> None:
    """Make this mount namespace fit for several users: folders of ours that they may pass, users that are known, and
    /tmp and /dev/shm of its own."""
    for place in ("/tmp", "/dev/shm"):
        if not ROOT.is_relative_to(place):
            _mount("-t", "tmpfs", "-o", "mode=1777", "abuse", place)
    work = Path("/run/abuse-mounts")
    work.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "abuse", str(work))
    for needed in (Path(sys.base_prefix), ROOT):
        for above in [*reversed(needed.parents), needed]:
            if not above.stat().st_mode & 0o001:
                _passable(above, work / above.name)
    for name in ("passwd", "group"):
        fresh = work / name
        lines = [
            f"{user}:x:{number}:{number}::/nonexistent:/bin/sh" if name == "passwd" else f"{user}:x:{number}:"
            for user, number in ACCOUNTS.items()
        ]
        fresh.write_text(Path("/etc", name).read_text() + "\n".join(lines) + "\n")
        _mount("--bind", str(fresh), f"/etc/{name}")


def _passable(folder: Path, work: Path) -> None:
    """Lay an overlay over a folder, in which others may pass through it. The machine's own stays as it is."""
    for part in ("upper", "work"):
        (work / part).mkdir(parents=True)
    layers = f"lowerdir={folder},upperdir={work / 'upper'},workdir={work / 'work'}"
    _mount("-t", "overlay", "overlay", "-o", layers, str(folder))
    folder.chmod(0o711)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def main() -> int:
    """Inside: furnish, run the module as a child, and reap what is left to us as the first process."""
    furnish()
    child = os.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])  # noqa: S606
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    # Outside it would mount over the machine's /tmp, /dev/shm and accounts.
    sys.exit(main() if os.getpid() == 1 else run(sys.argv[1], sys.argv[2:]))
