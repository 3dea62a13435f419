"""Says whether an attack did harm: what the program got, whether a secret came out, and how node, neighbour, files and
memory are afterwards."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_grid.agent.supervisor.journal import parse
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Hello, Welcome
from tests.abuse.arena import PYTHON, SECRET, Arena, awaited, end, started, state_of
from tests.abuse.attacks import AT_ONCE, GRANTED, UNTOLD, Attack

GROWTH = 64 << 20
"""Bytes that agent or supervisor may take more during an attack."""
LEFT = 2.0
"""Seconds after a job's end within which nothing of it is there."""
BEHIND = 5.0
"""Seconds after a job's end within which nothing that it left lies outside of its directory."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108 - looked at only
ATTACK_SECONDS = 75.0
AFTERWARDS = 20.0
"""Seconds in which a job of either user has to run after an attack."""


@dataclass
class Verdict:
    """What came of an attack. `harms` is empty: nobody was harmed. `told`: what the logs warn of meanwhile. `broken`:
    the arena cannot be used again."""

    attack: str
    level: str
    harms: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    broken: bool = False
    seconds: float = 0.0
    note: str = ""
    groups: bool = True
    """Jobs have control groups of their own that keep their limits."""

    @property
    def held(self) -> bool:
        return not self.harms


@dataclass
class Before:
    """How all was before the attack."""

    agent: int
    supervisor: int
    coordinator: int
    files: dict[str, tuple[int, int, float, str]]
    memory: dict[str, int]
    told: set[str]
    beats: int


def attack(arena: Arena, what: Attack) -> Verdict:
    """Make one attack and judge it."""
    began = time.monotonic()
    verdict = Verdict(what.name, arena.level, groups=arena.grouped())
    before = _before(arena)
    token = f"{time.monotonic_ns() % 10**9:09}"
    _emptied(arena.folder("mallory"))
    said = _made(arena, what, token, verdict)
    _reply(arena, what, said, verdict)
    _left(arena, token, verdict)
    _behind(arena, token, said[1], verdict)
    _node(arena, what, before, verdict)
    _neighbour(arena, before, verdict)
    _files(arena, before, verdict)
    told = [line for line in arena.warnings() if line not in before.told]
    words, levels = what.tells
    if arena.level in levels and not any(words in line for line in told):
        verdict.harms.append(f"{UNTOLD} ({words})")
    verdict.told = [line[:300] for line in told[:8]]
    verdict.seconds = time.monotonic() - began
    return verdict


def _made(arena: Arena, what: Attack, token: str, verdict: Verdict) -> tuple[int, str, str]:
    """Run it: the exit code, the output and the errors."""
    options = [word.format(state=arena.state) for word in what.options]
    words = ["run-shared", "--cpus", "1", "--mem", f"{GRANTED >> 20}M", "-e", f"ABUSE={token}", "-n", "lab1"]
    if "--workdir" not in options:
        words.append("--no-ship")
    if "--time" not in options:
        words += ["--time", "60"]
    command = ["/bin/true"]
    if what.words:
        program, *rest = what.words
        command = [PYTHON, "-B", str(arena.programs / f"{program}.py"), _scene(arena, token), *rest]
    words = [*words, *options, "--", *command]
    if what.meanwhile:
        return _with_another(arena, words, token, verdict)
    if not what.restarts:
        done = arena.run("mallory", *words, timeout=ATTACK_SECONDS)
        if "-d" in options and done.returncode == 0:
            return _detached(arena, done.stdout.split()[-1])
        return done.returncode, done.stdout, done.stderr
    process = arena.begin("mallory", *words)
    try:
        awaited(lambda: len(arena.with_word(f"12.{token}")) > 2, "its processes are there", 15)
        old = arena.supervisor
        end([old])
        awaited(lambda: arena.supervisor not in (0, old), "another supervisor is there", 20)
        arena.restart_agent()
    except TimeoutError as error:
        verdict.harms.append(str(error))
    try:
        out, err = process.communicate(timeout=ATTACK_SECONDS)
    except Exception:
        process.kill()
        out, err = process.communicate()
    return process.returncode, out.decode("latin-1"), err.decode("latin-1")


def _with_another(arena: Arena, words: list[str], token: str, verdict: Verdict) -> tuple[int, str, str]:
    """The same, and once it holds what it can, a job of another user, in a slot that is made for it."""
    process = arena.begin("mallory", *words)
    try:
        awaited(lambda: arena.with_word(f"9.{token}") or process.poll() is not None, "", ATTACK_SECONDS)
        other = ("run-shared", "--cpus", "1", "--no-ship", "-n", "lab1", "--pids-limit", "70", "/bin/echo", "well")
        done = arena.run("ann", *other, timeout=AFTERWARDS)
        if (done.returncode, done.stdout) != (0, "well\n"):
            why = done.stderr.strip()[-200:]
            verdict.harms.append(f"a job of ann does not run meanwhile: {done.returncode} {why}")
        out, err = process.communicate(timeout=ATTACK_SECONDS)
    except (TimeoutError, subprocess.TimeoutExpired):
        process.kill()
        out, err = process.communicate()
    return process.returncode, out.decode("latin-1"), err.decode("latin-1")


def _detached(arena: Arena, job: str) -> tuple[int, str, str]:
    """The same of a job whose output nobody follows: what it wrote is read where it lies."""
    waited = arena.run("mallory", "job", "wait", job, timeout=ATTACK_SECONDS)
    (shown,) = json.loads(arena.run("mallory", "-o", "json", "job", "show", job).stdout)["jobs"]
    with (arena.state / "allocs" / shown["allocation"] / "stdout").open() as out:
        return waited.returncode, out.read(1 << 20), waited.stderr


def _scene(arena: Arena, token: str) -> str:
    """All that an attacker may know."""
    assert arena.neighbour is not None
    neighbour = arena.neighbour
    return json.dumps(
        {
            "state": str(arena.state),
            "coordinator_state": str(arena.coordinator_state),
            "agent": arena.agent,
            "supervisor": arena.supervisor,
            "coordinator": arena.coordinator,
            "neighbour": neighbour.pid,
            "allocation": neighbour.allocation,
            "folder": os.readlink(f"/proc/{neighbour.pid}/cwd"),
            "shared": f"/dev/shm/abuse-{neighbour.token}",
            "token": token,
            "granted": GRANTED,
            "walled": arena.level == "user",
            "grouped": arena.grouped(),
            "hello": _hello().hex(),
            "all": AT_ONCE,
        }
    )


def _hello() -> bytes:
    """The first frame of a client, masked with zeros as a client's has to be."""
    link = Link.dial(Hello(protocol=PROTOCOL, software="abuse", role="client", name="mallory"), 0.0)
    (frame,) = link.data_to_send()
    assert len(frame) < 126
    return bytes([0x82, 0x80 | len(frame), 0, 0, 0, 0]) + frame


def _welcomed(answer: str) -> bool:
    """Whether the coordinator took the caller in."""
    data = bytes.fromhex(answer)
    if len(data) < 2:
        return False
    size, at = data[1], 2
    if size == 126:
        size, at = int.from_bytes(data[2:4], "big"), 4
    link = Link.dial(Hello(protocol=PROTOCOL, software="abuse", role="client", name="mallory"), 0.0)
    link.data_to_send()
    with contextlib.suppress(Exception):
        return any(isinstance(message, Welcome) for message in link.receive(data[at : at + size], 0.0))
    return False


# --- what came back ---------------------------------------------------------------------------------------------------


def _secrets(arena: Arena) -> list[str]:
    """What must not come out: the body of the node's key, and what is the neighbour's."""
    assert arena.neighbour is not None
    key = (arena.state / "identity" / "own.key").read_text().splitlines()
    return [*key[1:-1], SECRET, f"private to {arena.neighbour.token}", f"secret-{arena.neighbour.token}"]


def _reply(arena: Arena, what: Attack, said: tuple[int, str, str], verdict: Verdict) -> None:
    code, out, err = said
    if "HANGS" in err:
        verdict.harms.append("the client hangs")
        verdict.broken = True
    told: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(ValueError):
            told = json.loads(line)
    if what.words and not told:
        verdict.note = f"no report, exit {code}: {err.strip()[-200:]}"
    got = [str(one) for one in told.get("got", [])]
    verdict.harms += got
    if _welcomed(told.get("coordinator", "")):
        verdict.harms.append("the coordinator welcomed it at its socket")
    if parent := told.get("parent"):
        verdict.note = f"{verdict.note} parent: {parent}".strip()
    brought = {path: path.read_bytes() for path in arena.folder("mallory").rglob("*") if path.is_file()}
    texts = [out, err, *(content.decode("latin-1") for content in brought.values())]
    for secret in _secrets(arena):
        if any(secret in text for text in texts):
            verdict.harms.append(f"a secret came out: {secret[:8]}…")
            break
    for path in brought:
        if path.stat().st_mode & 0o6000:
            verdict.harms.append(f"{path.name} was brought back with a set-user-id bit")


def _emptied(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _left(arena: Arena, token: str, verdict: Verdict) -> None:
    """Nothing of the job lives after its end."""
    try:
        awaited(lambda: not arena.with_word(token), "", LEFT)
    except TimeoutError:
        left = arena.with_word(token)
        if left:
            verdict.harms.append(f"{len(left)} processes outlive the job by {LEFT:g} s")
    until = time.monotonic() + 20
    while (left := arena.with_word(token)) and time.monotonic() < until:
        end(left)
        time.sleep(0.002)


def _behind(arena: Arena, token: str, out: str, verdict: Verdict) -> None:
    """Nothing of the job lies outside of its directory a moment after its end."""

    def found() -> list[str]:
        lies = [f"{folder}/{name}" for folder in PLACES for name in _listed(folder) if token in name]
        for kind in ("shm", "sem", "msg"):
            for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]:
                if line.split()[0] == str(int(token) + 7):
                    lies.append(f"{kind} {line.split()[1]}")
        return lies

    with contextlib.suppress(TimeoutError):
        awaited(lambda: not found(), "", BEHIND)
    if left := found():
        verdict.harms.append(f"left behind: {', '.join(left[:4])}")
    for path in left:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif path.startswith("/"):
            Path(path).unlink(missing_ok=True)


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


# --- how all is afterwards --------------------------------------------------------------------------------------------


def _before(arena: Arena) -> Before:
    for pid in (arena.agent, arena.supervisor):
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is counted from now on
    memory = {name: _memory(pid, "VmRSS") for name, pid in (("agent", arena.agent), ("supervisor", arena.supervisor))}
    return Before(
        arena.agent, arena.supervisor, arena.coordinator, _seen(arena), memory, {*arena.warnings()}, arena.beats()[0]
    )


def _node(arena: Arena, what: Attack, before: Before, verdict: Verdict) -> None:
    """Agent, supervisor and coordinator are those they were, take no more memory, and jobs of others start."""
    wrong = []
    if arena.coordinator != before.coordinator:
        wrong.append("the coordinator is gone")
    if not arena.agent or (arena.agent != before.agent and not what.restarts):
        wrong.append("the agent is gone")
    if not arena.supervisor or (arena.supervisor != before.supervisor and not what.restarts):
        wrong.append("the supervisor is gone")
    if not what.restarts:
        for name, pid in (("agent", before.agent), ("supervisor", before.supervisor)):
            if (more := _memory(pid, "VmHWM") - before.memory[name]) > GROWTH:
                wrong.append(f"the {name} took {more >> 20} MiB more")
    for user in ("ann", "mallory"):
        words = ("run-shared", "--cpus", "1", "--no-ship", "-n", "lab1", "/bin/echo", "well")
        done = arena.run(user, *words, timeout=AFTERWARDS)
        if (done.returncode, done.stdout) != (0, "well\n"):
            wrong.append(f"a job of {user} does not run afterwards: {done.returncode} {done.stderr.strip()[-200:]}")
            break
    damaged = [line for line in (arena.state / "journal").read_bytes().rstrip(b"\0").splitlines() if not parse(line)]
    if damaged:
        wrong.append(f"the journal has {len(damaged)} damaged lines")
    verdict.broken |= bool(wrong)
    verdict.harms += wrong


def _memory(pid: int, name: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]) << 10
    except (OSError, IndexError):
        return 0


def _neighbour(arena: Arena, before: Before, verdict: Verdict) -> None:
    neighbour = arena.neighbour
    assert neighbour is not None
    if started(neighbour.pid) != neighbour.start:
        verdict.harms.append("the neighbour is gone")
        verdict.broken = True
        return
    if state_of(neighbour.pid) in "Tt":
        verdict.harms.append("the neighbour is stopped")
        verdict.broken = True
    now, wrong = arena.beats()
    if wrong:
        verdict.harms.append(f"the neighbour: {wrong}")
        verdict.broken = True
    with contextlib.suppress(TimeoutError):
        awaited(lambda: arena.beats()[0] > max(now, before.beats), "", 5)
        return
    verdict.harms.append("the neighbour does not go on")
    verdict.broken = True


def _seen(arena: Arena) -> dict[str, tuple[int, int, float, str]]:
    """Mode, owner, time and content of what an attack must not change."""
    assert arena.neighbour is not None
    found = {}
    record = arena.state / "allocs" / arena.neighbour.allocation / "stderr"
    identity = [path for path in (arena.state / "identity").rglob("*") if path.is_file()]
    for path in [arena.state, arena.state / "identity", arena.state / "instance", record, *identity]:
        with contextlib.suppress(OSError):
            seen = path.stat()
            content = "" if stat.S_ISDIR(seen.st_mode) else hashlib.sha256(path.read_bytes()).hexdigest()
            at = 0.0 if stat.S_ISDIR(seen.st_mode) else seen.st_mtime
            found[str(path)] = (seen.st_mode, seen.st_uid, at, content)
    return found


def _files(arena: Arena, before: Before, verdict: Verdict) -> None:
    after = _seen(arena)
    changed = [path for path, seen in before.files.items() if after.get(path) != seen]
    if changed:
        verdict.harms.append(f"changed: {', '.join(os.path.relpath(path, arena.state) for path in changed)}")
        verdict.broken = True
