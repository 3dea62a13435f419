"""The node's checks for `grid doctor`, and those of an agent's state directory for `grid coordinator check
--agent-state-dir`. They change nothing."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from distributed_grid.agent.cgroups.hierarchies import described, survey
from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.launch.isolation import (
    AGENT,
    NOT_AS_ROOT,
    ROOT_JOBS,
    WallSettings,
    are_weak,
    choose_walls,
    default_owners,
    end_proof,
    promised,
    runs_all_as_root,
    shares_account,
    walls_remedy,
    why_hidden,
)
from distributed_grid.agent.supervisor import journal as supervisor_journal
from distributed_grid.agent.supervisor.journal import REMEMBERED
from distributed_grid.agent.supervisor.procs import boot_id
from distributed_grid.agent.walls import available
from distributed_grid.identity.credentials import IDENTITY, has_identity
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.placement import Trust, Walls
from distributed_grid.runtime.health import Finding, Level, certificate, disk, failed, running_service

__all__ = ["WallSettings", "is_node", "run_checks", "walls"]

PRESSURE = Path("/proc/pressure/cpu")
CGROUPS = Path("/sys/fs/cgroup")


def is_node(state_dir: Path) -> bool:
    """Whether an agent has run here, or joined."""
    return (state_dir / "instance").exists() or has_identity(state_dir / IDENTITY)


class Running(NamedTuple):
    """What the running agent of this machine reports: what enforces each limit, and what proves that nothing of a job
    is alive. The checks themselves run in another control group. Empty: no agent runs, or it does not report it."""

    limits: Mapping[str, str] = MappingProxyType({})
    ends: str = ""


UNKNOWN = Running()


def run_checks(asked: WallSettings, backend: str, cgroup: str, running: Running = UNKNOWN) -> Iterator[Finding]:
    """Run all checks, and yield the findings one by one, since some take a while."""
    state_dir = asked.state_dir
    here = is_node(state_dir)
    if here:
        yield from _agent(state_dir)
        yield walls(asked)
        yield from root_jobs(asked)
        yield from hidden_jobs(asked)
        if os.geteuid() == state_dir.stat().st_uid:
            yield _ends(asked, cgroup, running.ends)
        yield disk("agent's disk", state_dir)
    for one in (_gpus(backend), _cgroups(cgroup, running.limits), _pressure()):
        # On a machine that is no node, problems of a node are information only.
        yield one if here else one._replace(level=Level.OK)


def _agent(state_dir: Path) -> Iterator[Finding]:
    if (running := running_service(state_dir / "agent.pid")) is not None:
        yield Finding("agent", Level.OK, f"it runs as process {running['pid']}, with its state in {state_dir}")
    else:
        start = "systemctl start grid-agent, where it is installed; else: grid agent run"
        yield Finding("agent", Level.ERROR, "it does not run", f"nobody has {state_dir}; jobs there go on", start)
    if has_identity(state_dir / IDENTITY):
        renewal = "start the agent, which renews it; after too long: grid token create --node NAME, grid agent join"
        yield certificate("agent's identity", state_dir / IDENTITY, renewal)


def walls(asked: WallSettings) -> Finding:
    """The walls of jobs here, and whose jobs run."""
    owner = asked.state_dir.stat().st_uid
    if os.geteuid() != owner:
        return Finding(
            "walls", Level.OK, f"only user {owner}, whom the agent is, can see what can be had; see: grid nodes"
        )
    try:
        built, why = choose_walls(asked)
    except GridError as error:
        return failed("walls", error)
    found, why = promised(asked, built, why)
    if found is Walls.USER and asked.run_as == AGENT and (lacks := available.nameless()):
        why, _, remedy_of_names = lacks.partition("; ")
        what = "jobs run behind walls user and have no name, which ssh, whoami and others need"
        return Finding("walls", Level.WARNING, what, why, remedy_of_names)
    if not are_weak(found):
        return Finding("walls", Level.OK, f"jobs run behind walls {found}")
    owners = ", ".join(asked.owners or default_owners())
    shared = shares_account(asked.run_as)
    remedy = "agent.run_as: agent, or submitter" if shared else walls_remedy()
    if asked.trust == Trust.EVERYONE:
        whom = "each other" if shared else "each other and the agent"
        what = f"jobs of everyone run behind walls {found} (agent.trust), and can harm {whom}"
        return Finding("walls", Level.WARNING, what, why, remedy)
    what = f"jobs run behind walls {found}, so only those of {owners} do (agent.owners)"
    return Finding("walls", Level.WARNING, what, why, f"{remedy}; or agent.trust: everyone")


def root_jobs(asked: WallSettings) -> Iterator[Finding]:
    """Report if jobs of all users run as root here."""
    with contextlib.suppress(GridError):  # `walls` reports it
        if os.geteuid() == asked.state_dir.stat().st_uid and runs_all_as_root(asked, choose_walls(asked)[0]):
            yield Finding("root", Level.WARNING, ROOT_JOBS, "the agent is root, and so are they", NOT_AS_ROOT)


def hidden_jobs(asked: WallSettings) -> Iterator[Finding]:
    """Report if the agent cannot see the processes of its jobs."""
    with contextlib.suppress(GridError):  # `walls` reports it
        if os.geteuid() == asked.state_dir.stat().st_uid and (found := why_hidden(choose_walls(asked)[0])):
            why, _, remedy = found.partition("; ")
            yield Finding("processes", Level.ERROR, "the node lends nothing", why, remedy)


def _ends(asked: WallSettings, cgroup: str, said: str) -> Finding:
    """Report what proves to this node that nothing of a job is alive."""
    try:
        found, _ = choose_walls(asked)
    except GridError as error:
        return failed("ends", error)
    how = said or end_proof(found, asked.run_as, survey(cgroup).home is not None)
    what = f"that nothing of a job lives is known by its {how}"
    if how != "descent":
        return Finding("ends", Level.OK, what)
    why = "a job that forks faster than it is looked for is ended in rounds, which may take seconds"
    hint = "run the agent as a service (sudo grid agent install), or name a place in agent.cgroup"
    return Finding("ends", Level.WARNING, what, why, hint)


def _gpus(backend: str) -> Finding:
    try:
        found = open_backend(backend)
    except GridError as error:
        return failed("gpus", error)
    facts = found.facts()
    if found.error:
        hint = "nvidia-smi says more; after an update of the driver the machine has to be restarted"
        return Finding("gpus", Level.ERROR, f"GPUs cannot be read by {found.name}", found.error, hint)
    names = ", ".join(f"{gpu.model}{' (stand-in)' if gpu.stand_in else ''}" for gpu in facts)
    return Finding("gpus", Level.OK, f"{len(facts)} by {found.name}: {names}" if facts else "none", found.note)


def _cgroups(setting: str, said: Mapping[str, str]) -> Finding:
    two, one = (CGROUPS / "cgroup.controllers").exists(), (CGROUPS / "unified").exists()
    mode = "v2" if two else "v1 and v2" if one else "v1" if (CGROUPS / "memory").exists() else "none"
    found = survey(setting)
    kept = said or described(found)
    what = f"cgroups: {mode}; limits are kept: {', '.join(f'{name} by {how}' for name, how in kept.items())}"
    if not found.missing or setting == "none" or all(how.startswith("cgroup ") for how in said.values() or [""]):
        return Finding("cgroup", Level.OK, what)
    why = "; ".join(dict.fromkeys(found.missing.values()))
    hint = "run the agent as a service (sudo grid agent install), or name a place in agent.cgroup"
    return Finding("cgroup", Level.WARNING, what, why, hint)


def _pressure() -> Finding:
    try:
        PRESSURE.read_text()
    except OSError as error:
        why = f"{PRESSURE}: {error.strerror}; that an owner is back is seen by what he uses alone"
        return Finding("psi", Level.WARNING, "the kernel does not say who has to wait", why, "boot with psi=1")
    return Finding("psi", Level.OK, "the kernel says who has to wait")


JOURNAL_TRIES, JOURNAL_PAUSE = 5, 0.1
"""Number of reads and the pause between them (s) before a journal that may be being written counts as damaged."""
StateFinding = tuple[str, str, str]
"""Place, problem, and remedy."""
_KEPT = 9  # where an intent has what is kept of its launch


def check_state(state_dir: Path) -> list[StateFinding]:
    """Return all problems of an agent's state directory. Raises GridError if there is no state directory."""
    allocs, journal = state_dir / "allocs", state_dir / "journal"
    if not journal.is_file() and not allocs.is_dir():
        raise GridError(
            f"there is no state of an agent in {state_dir}",
            why="there is neither a journal nor a folder allocs",
            hint="give the directory of an agent",
        )
    try:
        # Read before the journal: a job started meanwhile is in the journal only.
        started = {name for name in _folders(allocs) if (allocs / name / "stdout").exists()}
        found, unclear, known = _journal(journal)
    except OSError as error:
        raise GridError(f"{error.filename or state_dir} cannot be read", why=error.strerror or str(error)) from None
    for name in sorted(unclear):
        hint = "nothing, if it ends soon"
        found.append((f"allocation {name}", "has not ended, and it is not known what it holds", hint))
    if len(known) < REMEMBERED:
        for name in sorted(started - known):
            hint = f"look at {allocs / name} and remove it"
            found.append((f"allocation {name}", "was started, and the journal does not know it", hint))
    for aside in sorted(state_dir.glob("journal.corrupt-*")):
        found.append((aside.name, "a journal was damaged and put aside", "look at that disk, then remove the file"))
    return found + _epoch(state_dir / "epoch")


def _folders(allocs: Path) -> list[str]:
    names = os.listdir(allocs) if allocs.is_dir() else []
    return [name for name in names if not name.startswith(".")]  # being removed


def _journal(path: Path) -> tuple[list[StateFinding], set[str], set[str]]:
    """Problems of the journal; its live allocations without what they hold; all its allocations."""
    marked = path.with_name("journal.mark").is_file()
    if not path.is_file() and not marked:
        return [("journal", "is not there", "nothing, if no job was ever run here")], set(), set()
    read = supervisor_journal.examine(path.read_bytes() if path.is_file() else None, None, False)
    hint = "the next supervisor says that it does not know what ran, and keeps the damaged file"
    found = [(f"journal, line {number}", "is damaged", hint) for number in read.bad]
    # The mark is read after the journal of a running agent: it may be ahead, never behind.
    mark = supervisor_journal.read_mark(str(path))
    if mark is None or mark.boot == boot_id():
        for _ in range(JOURNAL_TRIES):
            whole = path.read_bytes() if path.is_file() else None
            read = supervisor_journal.examine(whole, supervisor_journal.read_mark(str(path)), marked)
            if not read.doubt:
                break
            time.sleep(JOURNAL_PAUSE)  # it is just being written or replaced
        if read.doubt and not found:
            found.append(("journal", f"does not have all that was written: {read.doubt}", hint))
    unclear: dict[str, None] = {}
    known: set[str] = set()
    open_loss = ""
    for record in read.records:
        if record[0] in ("intent", "exit", "forget"):
            known.add(record[1])
            unclear.pop(record[1], None)
            if record[0] == "intent" and not (len(record) > _KEPT and record[_KEPT]):
                unclear[record[1]] = None
        elif record[0] == "loss":
            open_loss = record[3] if record[5] and record[4] == boot_id() else ""
        elif record[0] == "proven":
            open_loss = ""
    if open_loss:
        hint = "look whether something of the jobs that ran here lives, then: grid agent accept-loss; or reboot"
        found.append(("journal", f"was damaged, and it is not known what ran before: {open_loss}", hint))
    return found, set(unclear), known


def _epoch(path: Path) -> list[StateFinding]:
    if not path.exists():
        return []
    try:
        if isinstance(msgspec.json.decode(path.read_bytes()), list):
            return []
    except (OSError, msgspec.DecodeError):
        pass
    hint = "remove it: the agent then obeys the first coordinator that it reaches"
    return [("epoch", "cannot be read: which coordinator to obey is not known", hint)]
