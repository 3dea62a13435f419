"""Machines as jobs of a Slurm cluster, each with an agent, by `sbatch`, `squeue` and `scancel`.

A machine's name is the name of its job, and what the grid has to know of it is the job's comment. A repeated creation
finds the job by them. While an `sbatch` of this grid may still submit a job, no other one is started, also not by the
provider that follows one that was killed. A job that waits in Slurm is reported as queued. The script on stdin of
`sbatch` contains the invitation: anybody who may read scripts of this user's jobs may use it, once, as long as the
machine has not joined.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec, machine_json
from distributed_grid.protocol.resources import MILLI

SECONDS = 35.0
"""Time-out of a program of Slurm (s): less than what the coordinator waits for."""
LATEST = 2.0
"""Seconds after that time-out in which the program is over: `timeout` of coreutils ends it, also where its caller was
killed."""
AGAIN = 20.0
"""Seconds after a machine's birth from which on its creation is one that was asked for again, and Slurm may have
forgotten its job but in the accounting."""
KILLED = (137, -9)
"""How `timeout` ends where the program did not end in time."""
MIB = 1 << 20
NOTICE = 120.0
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "SLURM_CLUSTERS", "LD_LIBRARY_PATH")
"""Variables that Slurm's programs get, and by them the job: none of the coordinator's secrets."""
SEPARATOR = "\x1f"
FORMAT = SEPARATOR.join(("%i", "%j", "%T", "%r", "%S", "%e", "%k"))
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING"})
HERE = WAITING | {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
FAILED = frozenset({"FAILED", "BOOT_FAIL", "OUT_OF_MEMORY", "COMPLETED"})
"""Ends by what ran in the job, or on its node. One that has never joined has failed, even if its script says it has
not; what was preempted, cancelled, or lost with its node has not."""
NEVER = re.compile(
    r"^(BadConstraints|Partition(Config|NodeLimit|TimeLimit)|(Account|QOS)NotAllowed|Invalid(Account|QOS)"
    r"|DependencyNeverSatisfied|(QOS|Assoc)Max\w+PerJob\w*)$"
)
"""Reasons of a job that waits for what never comes as long as nobody changes the cluster."""
SAYS: tuple[tuple[Answer, str], ...] = (
    (
        Answer.LOST,
        r"unable to contact|timed? ?out|connection refused|temporarily|not responding|communication|zero bytes",
    ),
    (Answer.CREDENTIALS, r"authentication|munge|access/permission denied|user id is missing|invalid user"),
    (
        Answer.BAD_TYPE,
        r"invalid|not permitted to use this partition|configuration is not available|more processors",
    ),
    (Answer.QUOTA, r"limit|policy"),
)
"""Kinds of refusals by what sbatch says, in this order."""

SCRIPT = """\
#!/bin/sh
# An agent of a grid, for as long as this job lives.
umask 077
base={base}
if [ -z "$base" ]; then base=/tmp/grid-agents-$(id -u); mkdir -m 700 "$base" 2>/dev/null; fi
[ -d "$base" ] && [ -O "$base" ] && [ ! -L "$base" ] || {{ echo "$base is no directory of this user" >&2; exit 1; }}
folder=$base/{folder}-$SLURM_JOB_ID
mkdir "$folder" || exit 1
cat >"$folder/invitation.new" <<'INVITATION'
{invitation}
INVITATION
[ ! -s "$folder/invitation.new" ] || mv "$folder/invitation.new" "$folder/invitation"
ends_by=$(( $(date +%s) + {life} ))
sed "s/@ENDS_BY@/$ends_by/" >"$folder/machine.json" <<'MACHINE'
{machine}
MACHINE
GRID_MACHINE=$SLURM_JOB_ID
export GRID_MACHINE
exec {python} -m distributed_grid.agent.machine "$folder"
"""


class Comment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comment of a job, as JSON."""

    grid: str
    machine: str
    pool: str = ""
    type: str = ""
    born: float = 0.0
    life: float = 0.0


class Job(NamedTuple):
    """A job of this grid. Times are seconds since the epoch; 0: not known."""

    id: str
    state: str
    reason: str
    began: float
    ends: float
    comment: Comment


class SlurmProvider(CloudProviderBase):
    """`settings` as `providers.slurm` of the configuration."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        name = f"grid-slurm-{os.getuid()}-{re.sub('[^A-Za-z0-9_.-]', '-', grid)}.lock"
        self._lock = os.path.join(tempfile.gettempdir(), name)
        self._json = True

    def create_worker(self, spec: WorkerSpec) -> str:
        """Submit its job, unless there is one of its name, or was; the job's id."""
        with self._alone() as lock:
            found = self._jobs(["--name", spec.name]) or self._accounted(spec)
            if found:
                job = found[-1]
                if job.state not in HERE:
                    raise ProviderRefused(Answer.REFUSED, f"job {job.id} has ended: {_ended(job)}")
                return job.id
            said = self._run("sbatch", self._words(spec), self._script(spec), lock)
            number = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
            if not number.isdigit():
                raise ProviderRefused(Answer.LOST, f"sbatch says what cannot be read: {said[:200]!r}")
            return number

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Hold the lock that lets one process of this machine submit jobs of this grid. An `sbatch` holds it, too: one
        that goes on after its provider was killed is over before the next one begins, which then finds its job by
        name."""
        try:
            lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ProviderRefused(Answer.CREDENTIALS, f"{self._lock} cannot be opened: {error.strerror}") from None
        try:
            deadline = time.monotonic() + SECONDS + LATEST
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ProviderRefused(Answer.LOST, "another sbatch of this grid is not over") from None
                    time.sleep(0.05)
            yield lock
        finally:
            os.close(lock)

    def _words(self, spec: WorkerSpec) -> list[str]:
        life = max(60.0, spec.ends_by - spec.born)
        comment = Comment(self.grid, spec.name, spec.pool, spec.type, round(spec.born, 3), round(life, 3))
        notice = int(min(self._notice, life / 4))
        words = ["--parsable", f"--job-name={spec.name}", f"--comment={msgspec.json.encode(comment).decode()}"]
        words += ["--nodes=1", "--ntasks=1", f"--cpus-per-task={max(1, -(-spec.resources.cpu // MILLI))}"]
        words += [f"--mem={-(-spec.resources.memory // MIB)}M", f"--time={-(-int(life) // 60)}", "--no-requeue"]
        words += [f"--signal=B:USR1@{notice}", "--output=/dev/null", "--chdir=/"]
        if gpus := spec.resources.gpu // MILLI:
            words.append(f"--gres=gpu:{gpus}")
        for name in ("partition", "account", "qos"):
            if value := str(spec.options.get(name) or self.settings.get(name) or ""):
                words.append(f"--{name}={value}")
        return [*words, *map(str, self.settings.get("options") or ())]

    @property
    def _notice(self) -> float:
        return float(self.settings.get("notice") or NOTICE)

    def _script(self, spec: WorkerSpec) -> str:
        life = int(max(60.0, spec.ends_by - spec.born))
        told = {**machine_json(spec), "scratch": True, "notice": min(self._notice, life / 4)}
        text = msgspec.json.encode({**told, "ends_by": "@ENDS_BY@"}).decode().replace('"@ENDS_BY@"', "@ENDS_BY@")
        return SCRIPT.format(
            base=shlex.quote(str(self.settings.get("directory") or "")),
            folder=shlex.quote(f"{self.grid}-{spec.name}"),
            invitation=spec.invitation,
            life=life,
            machine=text,
            python=shlex.quote(str(self.settings.get("python") or sys.executable)),
        )

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """Cancel its job, wherever it stands."""
        found = [job for job in self._jobs(["--name", name]) if job.state in HERE and handle in ("", job.id)]
        if found:
            self._run("scancel", [job.id for job in found])
        return bool(found)

    def list_workers(self) -> list[Listed]:
        """Return all jobs of this grid that Slurm knows, with those that have ended lately: one call."""
        return [_listed(job) for job in self._jobs([])]

    def get_available_resources(self) -> dict[str, Any]:
        """Idle and all cores of each partition."""
        found: dict[str, Any] = {}
        for line in self._run("sinfo", ["--noheader", "--format=%R %C"]).splitlines():
            name, _, cores = line.strip().rpartition(" ")
            with suppress(ValueError):
                _, idle, _, total = map(int, cores.split("/"))
                found[name] = {"idle_cpus": idle, "cpus": total}
        return {"partitions": found}

    # --- asking Slurm -------------------------------------------------------------------------------------------------

    def _jobs(self, words: Sequence[str]) -> list[Job]:
        """Jobs of this grid, in the order of their ids."""
        if self._json and not words:
            try:
                found = jobs_of_json(self._run("squeue", ["--json", "--states=all", *words]))
                return self._ours(found)
            except ProviderRefused as error:
                if error.answer is not Answer.REFUSED:
                    raise
            except msgspec.DecodeError:
                pass
            self._json = False  # the plugin is not there
        return self._ours(
            jobs_of_text(self._run("squeue", ["--noheader", "--states=all", *words, f"--format={FORMAT}"]))
        )

    def _accounted(self, spec: WorkerSpec) -> list[Job]:
        """Jobs of this machine that Slurm's accounting knows, where there is one: squeue forgets what has ended after
        MinJobAge (300 s). Only for a creation that was asked for before."""
        since = spec.age
        if since < AGAIN or shutil.which("sacct") is None:
            return []
        words = ["--noheader", "--allocations", "--parsable2", f"--delimiter={SEPARATOR}", f"--name={spec.name}"]
        words += [f"--starttime=now-{int(since + AGAIN)}seconds", "--format=JobIDRaw,State,Comment,SubmitLine"]
        try:
            said = self._run("sacct", words)
        except ProviderRefused as error:
            if error.answer is Answer.LOST:
                raise
            return []  # there is no accounting, or its sacct is older than Slurm 21.08
        comment = Comment(self.grid, spec.name, spec.pool)
        ours = msgspec.json.encode(comment).decode().rstrip("}")
        found = []
        for line in said.splitlines():
            parts = line.split(SEPARATOR, 2)
            if len(parts) == 3 and ours in parts[2]:
                state = parts[1].partition(" ")[0]
                found.append(Job(parts[0], state, "", 0.0, 0.0, comment))
        return found

    def _ours(self, found: Sequence[Job]) -> list[Job]:
        ours = [job for job in found if job.comment.grid == self.grid]
        return sorted(ours, key=lambda job: int(job.id) if job.id.isdigit() else 0)

    def _run(self, program: str, words: Sequence[str], stdin: str = "", lock: int | None = None) -> str:
        """Run a program of Slurm and return its output; it holds the `lock` as long as it runs. Raises
        ProviderRefused."""
        if shutil.which(program) is None:
            raise ProviderRefused(Answer.CREDENTIALS, f"{program} cannot be run: there is no such program here")
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        limited = ["timeout", "--signal=KILL", f"{SECONDS:g}", program, *words]
        late = ProviderRefused(Answer.LOST, f"{program} took more than {SECONDS:g} s")
        try:
            done = subprocess.run(
                limited,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECONDS + LATEST,
                env={**environment, "SLURM_TIME_FORMAT": "%s"},
                cwd="/",
                pass_fds=() if lock is None else (lock,),
            )
        except subprocess.TimeoutExpired:
            raise late from None
        except OSError as error:
            raise ProviderRefused(Answer.CREDENTIALS, f"{program} cannot be run: {error.strerror or error}") from None
        if done.returncode in KILLED:
            raise late
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            said = "; ".join(lines[-2:])[:500] or f"it says nothing, and ends with code {done.returncode}"
            raise ProviderRefused(kind_of(said), f"{program}: {said}")
        return done.stdout


def kind_of(said: str) -> Answer:
    """Classify the failure of a program of Slurm by its message."""
    return next((answer for answer, words in SAYS if re.search(words, said, re.IGNORECASE)), Answer.REFUSED)


def jobs_of_json(text: str) -> list[Job]:
    """Jobs of what `squeue --json` says, as Slurm 21 and later have it. Raises DecodeError; ProviderRefused where it
    names errors: without its controller it lists no jobs, and ends as if all were well."""
    said = msgspec.json.decode(text, type=dict[str, Any])
    told, errors = said.get("jobs"), said.get("errors")
    if errors:
        first = errors[0] if isinstance(errors, list) else errors
        why = first.get("description") or first.get("error") if isinstance(first, dict) else first
        raise ProviderRefused(Answer.LOST, f"squeue: {str(why)[:300]}")
    if not isinstance(told, list):
        raise msgspec.DecodeError("it names no jobs")
    found = []
    for one in told:
        if isinstance(one, dict) and (comment := _comment(one.get("comment"))) is not None:
            states = one.get("job_state")
            words = [str(word) for word in states] if isinstance(states, list) else [str(states)]
            state = next((word for word in words if word == "COMPLETING"), words[0] if words else "")
            began, ends = _number(one.get("start_time")), _number(one.get("end_time"))
            found.append(Job(str(one.get("job_id", "")), state, str(one.get("state_reason", "")), began, ends, comment))
    return found


def jobs_of_text(text: str) -> list[Job]:
    """Jobs of what `squeue --format` says."""
    found = []
    for line in text.splitlines():
        parts = line.split(SEPARATOR)
        if len(parts) == 7 and (comment := _comment(parts[6])) is not None:
            found.append(Job(parts[0], parts[2], parts[3], _number(parts[4]), _number(parts[5]), comment))
    return found


def _comment(said: Any) -> Comment | None:
    """A comment that the grid gave; Slurm 23.11 and later have several kinds of comments."""
    text = said.get("job", "") if isinstance(said, dict) else said
    try:
        return msgspec.json.decode(str(text), type=Comment)
    except msgspec.DecodeError:
        return None


def _number(said: Any) -> float:
    """Seconds since the epoch, as a number, as text, or as Slurm 23 and later say it; 0: not known."""
    if isinstance(said, dict):
        said = said.get("number") if said.get("set") else 0
    try:
        found = float(said)
    except (TypeError, ValueError):
        return 0.0
    return found if 0 < found < 1e11 else 0.0


def _listed(job: Job) -> Listed:
    what = job.comment
    waits, ended = job.state in WAITING, job.state not in HERE and job.state != "COMPLETING"
    return Listed(
        handle=job.id,
        name=what.machine,
        pool=what.pool,
        type=what.type,
        born=what.born,
        left=max(1.0, job.ends - time.time()) if job.state == "RUNNING" and job.ends else 0.0,
        ending=job.state == "COMPLETING",
        queued=waits,
        ended=ended,
        failed=bool(ended and job.state in FAILED or waits and NEVER.match(job.reason)),
        why=_ended(job) if ended else job.reason if waits and job.reason != "None" else "",
    )


def _ended(job: Job) -> str:
    reason = job.reason if job.reason not in ("", "None") else ""
    return f"Slurm says {job.state}{f' ({reason})' if reason else ''} of job {job.id}"
