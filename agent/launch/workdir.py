"""An allocation's files on the node: `allocs/ID` with `spec`, `stdout` and `stderr`, which only the agent can change;
its working directory `jobs/SLOT/ID`, which is the job's; its environment; and the notice before a preemption or recall.
`SlotIndex` keeps the slot of each allocation across restarts."""

import contextlib
import fnmatch
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from distributed_grid.protocol import groups
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Launch, Stop
from distributed_grid.runtime import beneath
from distributed_grid.runtime.faults import fault

SPEC = "spec"
SPEC_BYTES = 16 << 20
"""Maximum size of a spec file. A launch message is far smaller."""
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def folder(state_dir: Path, allocation: str) -> Path:
    """The folder of an allocation. Raises BadValue for an invalid id, since it becomes a path."""
    return Path(allocation_path(state_dir, allocation))


def allocation_path(state_dir: Path, allocation: str) -> str:
    """The same as a string, for what is done for every job: Path arithmetic is slow."""
    if not _ID.fullmatch(allocation):
        raise BadValue(f"{allocation!r} is not the id of an allocation")
    return f"{state_dir}/allocs/{allocation}"


def _make_folder(state_dir: Path, allocation: str) -> str:
    path = allocation_path(state_dir, allocation)
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:  # the first one of all
            os.makedirs(path, 0o700)
    return path


@fault("agent.spec")
def write_launch(state_dir: Path, launch: Launch) -> None:
    """Write the launch, so that an agent that restarts knows what its running jobs hold. An existing one stays: the job
    was started with it."""
    content = msgspec.json.encode(launch)
    with opened(_make_folder(state_dir, launch.allocation)) as folder:
        try:
            fd = beneath.open_regular(folder, SPEC, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if read_launch(state_dir, launch.allocation) is None:  # cut by a kill, or something else
                beneath.replace_whole(folder, SPEC, content, 0o600)
            return
        with os.fdopen(fd, "wb") as file:
            file.write(content)


def read_launch(state_dir: Path, allocation: str) -> Launch | None:
    """Read the launch; None if it is not on disk any more."""
    try:
        with opened(allocation_path(state_dir, allocation)) as folder:
            return msgspec.json.decode(beneath.read_whole(folder, SPEC, SPEC_BYTES), type=Launch)
    except (OSError, msgspec.DecodeError):
        return None


@contextlib.contextmanager
def opened(folder: str) -> Iterator[int]:
    """A descriptor of a directory of ours, to open files in it. Raises OSError."""
    fd = beneath.open_root(folder)
    try:
        yield fd
    finally:
        os.close(fd)


# --- what the job gets ------------------------------------------------------------------------------------------------

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def passed_on(base: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The variables of the agent's environment that a job inherits: those with these names, which may hold
    wildcards."""
    return {name: base[name] for name in base if any(fnmatch.fnmatchcase(name, one) for one in names)}


def build_env(launch: Launch, node: str, directory: Path | None, base: Mapping[str, str]) -> dict[str, str]:
    """The job's environment: `base` (inherited from the agent), the grid's variables, and the job's own. For a job with
    a directory of its own (None) the supervisor adds the variables that name it."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **base}
    grant = launch.grant
    env |= {
        "GRID_JOB_ID": launch.job,
        "GRID_NODE": node,
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in grant.gpus),
    }
    if directory is not None:
        env |= {"GRID_WORKDIR": str(directory), "PWD": str(directory)}
    env |= dict.fromkeys(_THREADS, str(max(1, len(grant.cores))))
    if launch.gang is not None:
        env |= groups.environment(launch.gang)
    env |= launch.spec.env
    env["GRID_ALLOCATION_ID"] = launch.allocation
    return env


_SPARE = 1000


class SlotIndex:
    """The file `slots` in the state directory, one line per allocation. Lines lost in a power cut are recent: without
    them the files of these jobs are not found, and are removed with their slot."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "slots"
        self._slots: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                allocation, _, slot = line.partition(" ")
                self._slots[allocation] = slot
        self._lines = len(self._slots)

    def note(self, allocation: str, slot: str) -> None:
        """Record the slot of an allocation. If the write fails, only the job's files are lost after a restart."""
        if self._slots.get(allocation) == slot:
            return
        self._slots[allocation] = slot
        with contextlib.suppress(OSError), open(self._path, "a", opener=_private) as file:
            file.write(f"{allocation} {slot}\n")
            self._lines += 1

    def slot(self, allocation: str) -> str:
        """The name of its slot; empty if unknown."""
        return self._slots.get(allocation, "")

    def in_use(self) -> set[str]:
        """The slots of all known allocations."""
        return {*self._slots.values()}

    def forget(self, allocation: str) -> None:
        """Forget an allocation. The file is rewritten when most of its lines are obsolete."""
        if self._slots.pop(allocation, "") and self._lines > 2 * len(self._slots) + _SPARE:
            fresh = self._path.with_suffix(".new")
            with contextlib.suppress(OSError):
                with open(fresh, "w", opener=_private) as file:
                    file.writelines(f"{one} {slot}\n" for one, slot in self._slots.items())
                os.replace(fresh, self._path)
                self._lines = len(self._slots)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


RECALL_VARIABLE = "GRID_RECALL_FILE"
RECALLS = "recalls"
RECALL_CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.RELEASED})


def recall_path(state_dir: Path, allocation: str) -> str:
    """The path of an allocation's notice: in a directory that jobs can read but not change."""
    allocation_path(state_dir, allocation)  # checks the id
    return f"{state_dir}/{RECALLS}/{allocation}"


def recall_grace(state_dir: Path, stop: Stop) -> float:
    """The job's grace after this stop: its own, if the stop has none."""
    if stop.grace >= 0:
        return stop.grace
    launch = read_launch(state_dir, stop.allocation)
    return launch.spec.grace if launch is not None else 0.0


def write_recall(state_dir: Path, stop: Stop) -> None:
    """Write the notice of this stop if it takes the job's place back; an existing one stays. Raises OSError."""
    if stop.cause not in RECALL_CAUSES or not os.path.isdir(allocation_path(state_dir, stop.allocation)):
        return
    left = recall_grace(state_dir, stop)
    said = {"cause": stop.cause, "reason": stop.text, "seconds": left, "deadline": round(time.time() + left, 3)}
    content = msgspec.json.encode(said) + b"\n"
    with opened(make_recalls(state_dir)) as recalls:
        beneath.create_whole(recalls, stop.allocation, content, 0o644)  # the job may be another user's


def make_recalls(state_dir: Path) -> str:
    """Make the directory of all notices, which others can enter but not list. Raises OSError."""
    path = f"{state_dir}/{RECALLS}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    os.chmod(path, 0o711)  # noqa: S103 (in, but no list)
    return path


def remove_recall(state_dir: Path, allocation: str) -> None:
    """Remove the notice of an allocation that is over. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(recall_path(state_dir, allocation))
