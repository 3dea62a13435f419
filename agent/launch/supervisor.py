"""Starts a supervisor for a state directory that has none; and what the node's facts say while the supervisor's
journal is damaged, or while something of a killed job lives.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.supervisor import main
from distributed_grid.agent.walls import forkserver
from distributed_grid.agent.walls.enclosure import USER
from distributed_grid.protocol.nodes import NodeFacts, loss_suffix
from distributed_grid.protocol.placement import Walls


def lives(state_dir: Path) -> bool:
    """Whether there is a supervisor. Raises OSError."""
    lock = os.open(state_dir / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def may_start(walls: str) -> bool:
    """Whether a supervisor that we start can build these walls. An agent that is not root gives up the capabilities for
    that once its first one is there."""
    return walls != USER or os.geteuid() == 0 or forkserver.privileged()


def start(
    state_dir: Path, output_limit: int, cgroup: str, walls: str, faults: bool = True
) -> subprocess.Popen[bytes] | None:
    """A new supervisor, in a session of its own and with next to nothing of our environment; None if one lives.
    `faults`: it gets the fault points that we were given. For walls `user` it has our capabilities as well, for its
    fork server. Raises OSError."""
    if lives(state_dir):
        return None
    env = {"PATH": os.environ.get("PATH", os.defpath), "TZ": os.environ.get("TZ", "")}
    if faults and "GRID_FAULTS" in os.environ:
        env["GRID_FAULTS"] = os.environ["GRID_FAULTS"]
    said = str(state_dir), str(output_limit), cgroup, __version__, walls
    log = os.open(state_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", main.__file__, *said],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=env,
            start_new_session=True,
            preexec_fn=forkserver.hand_on_privileges if walls == USER else forkserver.give_up_privileges,
        )
    finally:
        os.close(log)


def last_words(state_dir: Path) -> str:
    """The last line of its log."""
    with contextlib.suppress(OSError):
        lines = (state_dir / "supervisor.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""
    return ""


class Loss(msgspec.Struct, frozen=True):
    """As the supervisor tells it: since when (wall clock), why, and whether something of it may live still."""

    id: str
    since: float
    why: str
    open: bool

    @property
    def words(self) -> str:
        """Why nothing is taken; empty: it is proven that nothing lives."""
        if not self.open:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"unknown what ran before {since}: {self.why} (if none of it lives: grid agent accept-loss, or a reboot)"


def facts_after(facts: NodeFacts, loss: Loss | None) -> NodeFacts:
    """The facts of a node that has suffered this loss, or none."""
    if loss is None:
        return facts
    return msgspec.structs.replace(facts, instance=loss_suffix(facts.instance, loss.id), unknown=loss.words)


def facts_while(facts: NodeFacts, unended: Mapping[str, str]) -> NodeFacts:
    """The facts of a node as long as these allocations, with why, cannot be ended."""
    if not unended:
        return facts
    key, why = next(iter(unended.items()))
    more = f", and {len(unended) - 1} more" if len(unended) > 1 else ""
    why = f"{key} cannot be ended: {why}{more}"
    return msgspec.structs.replace(facts, walls=Walls.NONE.value, walls_why=why)
