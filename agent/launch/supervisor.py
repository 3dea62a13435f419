"""Starts a supervisor for a state directory that has none, and changes the node's facts while the supervisor's journal
is damaged or processes of a killed job are alive."""

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from distributed_grid import __version__
from distributed_grid.agent.supervisor import main
from distributed_grid.agent.walls import forkserver
from distributed_grid.agent.walls.enclosure import USER
from distributed_grid.protocol.nodes import NodeFacts, loss_suffix
from distributed_grid.protocol.placement import Walls


def lives(state_dir: Path) -> bool:
    """Whether a supervisor is alive. Raises OSError."""
    lock = os.open(state_dir / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def may_start(walls: str) -> bool:
    """Whether a supervisor that we start can build these walls. A non-root agent drops the capabilities for that once
    its first supervisor is up."""
    return walls != USER or os.geteuid() == 0 or forkserver.privileged()


def start(
    state_dir: Path, output_limit: int, cgroup: str, walls: str, faults: bool = True
) -> subprocess.Popen[bytes] | None:
    """Start a supervisor in a session of its own with a minimal environment; None if one is alive. `faults`: pass our
    fault points on. For walls `user` it also gets our capabilities, for its fork server. Raises OSError."""
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
            preexec_fn=_before(walls),
        )
    finally:
        os.close(log)


def _before(walls: str) -> Callable[[], None] | None:
    """Return the function that runs in the new process before it is the supervisor. None for root, which has nothing to
    pass on or to give up: without a function the memory map is not copied for that process."""
    if os.geteuid() == 0:
        return None
    return forkserver.pass_on_privileges if walls == USER else forkserver.give_up_privileges


def last_words(state_dir: Path) -> str:
    """The last line of the supervisor's log."""
    with contextlib.suppress(OSError):
        lines = (state_dir / "supervisor.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""
    return ""


class Loss(msgspec.Struct, frozen=True):
    """A loss that the supervisor reported: since when (wall clock), why, and whether something of it may be alive."""

    id: str
    since: float
    why: str
    open: bool

    @property
    def words(self) -> str:
        """Why no job is taken; empty: nothing of it is alive."""
        if not self.open:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"unknown what ran before {since}: {self.why} (if none of it lives: grid agent accept-loss, or a reboot)"


def facts_after(facts: NodeFacts, loss: Loss | None) -> NodeFacts:
    """The node's facts, given this loss."""
    if loss is None:
        return facts
    return msgspec.structs.replace(facts, instance=loss_suffix(facts.instance, loss.id), unknown=loss.words)


def facts_while(facts: NodeFacts, unended: Mapping[str, str]) -> NodeFacts:
    """The node's facts while these allocations cannot be ended (with why)."""
    if not unended:
        return facts
    key, why = next(iter(unended.items()))
    more = f", and {len(unended) - 1} more" if len(unended) > 1 else ""
    why = f"{key} cannot be ended: {why}{more}"
    return msgspec.structs.replace(facts, walls=Walls.NONE.value, walls_why=why)
