"""What a host has to run an agent: a service of its systemd, or a process of its own. A part of the far side, sent
there with `far_side.py`, and like that in need of nothing but Python.
"""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path.home() / ".local/share/grid"
BUILDS = ROOT / "builds"
UNIT = "grid-agent.service"


def kind() -> str:
    """Who can run it: `system` (root's own service), `user` (one's own), or `none`."""
    if not Path("/run/systemd/system").is_dir():
        return "none"
    if os.geteuid() == 0:
        return "system"
    return "user" if systemctl("user", "show-environment") else "none"


def whose(service: str) -> list[str]:
    """The options of `grid agent install` by which the agent, and its jobs, run as who we are."""
    return ["--user"] if service == "user" else ["--as", "root"]


def unit(service: str) -> Path:
    """The file that makes it a service."""
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"
    return (own if service == "user" else Path("/etc/systemd/system")) / UNIT


def foreign(service: str, name: str) -> str:
    """The unit of an agent that is not ours: of another environment, or of another node of this host."""
    with contextlib.suppress(OSError):
        text = unit(service).read_text() if service != "none" else ""
        if text and not (str(BUILDS) in text and f"--name {name} " in text):
            return str(unit(service))
    return ""


def systemctl(service: str, *words: str) -> bool:
    """`systemctl …`, and whether it did it."""
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")  # sessions of ssh need not have it
    command = ["systemctl", *(["--user"] if service == "user" else []), *words]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def detached(command: list[Any], state: Path) -> "subprocess.Popen[bytes]":
    """A process that outlives us, with its own log."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    with open(state / "agent.log", "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
