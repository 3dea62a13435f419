"""The folder of an allocation on the node: `spec`, `stdout`, `stderr`, and `workdir`, where the job runs."""

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from distributed_grid.agent.walls import beneath, files
from distributed_grid.agent.walls.files_socket import batches
from distributed_grid.faults import fault
from distributed_grid.protocol import gangs
from distributed_grid.protocol.bundle import (
    MODE_BITS,
    MOST_ENTRIES,
    Kind,
    Manifest,
    check_path,
    check_target,
    is_blob_hash,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.filenames import check_relative, to_wire
from distributed_grid.protocol.globs import Globs
from distributed_grid.protocol.messages import FileEntry, Launch

SPEC = "spec"
SPEC_BYTES = 16 << 20
"""The largest record of what was asked for. A message that asks has far less."""
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def folder(state_dir: Path, allocation: str) -> Path:
    """Where all of an allocation lies. Raises BadValue for what cannot be the id of one, since it becomes a path."""
    return Path(place(state_dir, allocation))


def place(state_dir: Path, allocation: str) -> str:
    """The same as text, for what is done for every job: joining Paths costs more there than what is done with them."""
    if not _ID.fullmatch(allocation):
        raise BadValue(f"{allocation!r} is not the id of an allocation")
    return f"{state_dir}/allocs/{allocation}"


def create(state_dir: Path, allocation: str) -> Path:
    """A fresh working directory, which only this user can enter."""
    path = f"{_make_folder(state_dir, allocation)}/workdir"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    return Path(path)


def give(state_dir: Path, allocation: str, uid: int, gid: int) -> Path:
    """Make the working directory with all that is in it another user's, who can get to it from now on. Until then only
    we could, and nobody has changed a name in it."""
    directory = create(state_dir, allocation)
    for _, folders, names, fd in os.fwalk(directory, topdown=False):
        for name in (*folders, *names):
            os.chown(name, uid, gid, dir_fd=fd, follow_symlinks=False)
    os.chown(directory, uid, gid, follow_symlinks=False)
    directory.parent.chmod(0o711)
    return directory


def _make_folder(state_dir: Path, allocation: str) -> str:
    path = place(state_dir, allocation)
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:  # the first one of all
            os.makedirs(path, 0o700)
    return path


@fault("agent.spec")
def write_launch(state_dir: Path, launch: Launch) -> None:
    """Keep what was asked for, so that an agent that restarts knows what its running jobs hold. The first one stays:
    it is what a job that runs was started with."""
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
    """What was asked for; None if that is not known any more."""
    try:
        with opened(place(state_dir, allocation)) as folder:
            return msgspec.json.decode(beneath.read_whole(folder, SPEC, SPEC_BYTES), type=Launch)
    except (OSError, msgspec.DecodeError):
        return None


@contextlib.contextmanager
def opened(folder: str) -> Iterator[int]:
    """A descriptor of a directory of ours, to open what is in it. Raises OSError."""
    fd = beneath.open_root(folder)
    try:
        yield fd
    finally:
        os.close(fd)


# --- what the job gets ------------------------------------------------------------------------------------------------

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def passed_on(base: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """What a job gets of the agent's own environment: what has one of these names, which may hold wildcards."""
    return {name: base[name] for name in base if any(fnmatch.fnmatchcase(name, one) for one in names)}


def build_env(launch: Launch, node: str, directory: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The job's whole environment: `base` (what the agent passes on), the grid's own, and the job's on top."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **base}
    grant = launch.grant
    env |= {
        "GRID_JOB_ID": launch.job,
        "GRID_NODE": node,
        "GRID_WORKDIR": str(directory),
        "PWD": str(directory),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in grant.gpus),
    }
    env |= dict.fromkeys(_THREADS, str(max(1, len(grant.cores))))
    if launch.gang is not None:
        env |= gangs.environment(launch.gang)
    env |= launch.spec.env
    # Not to be overridden: by this the supervisor knows whose a process is that left its session.
    env["GRID_ALLOCATION_ID"] = launch.allocation
    return env


def unpack(manifest: Manifest, blobs: Path, target: Path) -> None:
    """Make what the caller shipped in `target`, with contents copied from the files in `blobs`, so that a job may
    change them. Nothing is written through a link, whatever is there. Raises GridError."""
    entries, hashes = shipped(manifest)
    try:
        with opened(str(target)) as root, opened(str(blobs)) as cache:
            for part, numbers in batches(entries):
                with contextlib.ExitStack() as stack:
                    fds = []
                    for number in numbers:
                        fds.append(beneath.open_regular(cache, hashes[number]))
                        stack.callback(os.close, fds[-1])
                    files.unpack(part, fds, root)
    except OSError as error:
        raise GridError("the shipped files could not be unpacked", why=str(error)) from None


def shipped(manifest: Manifest) -> tuple[list[files.Entry], list[str]]:
    """The same as walls/files.py unpacks it: the entries, and the hashes of the blobs that they number. Raises BadValue
    for an entry that could write elsewhere."""
    numbers: dict[str, int] = {}
    entries: list[files.Entry] = []
    for entry in manifest.entries:
        check_path(entry.path)
        number = -1
        if entry.kind is Kind.LINK:
            check_target(entry.path, entry.target)
        elif entry.kind is Kind.FILE:
            if not is_blob_hash(entry.blob):
                raise BadValue(f"the content of {entry.path} has no hash")
            number = numbers.setdefault(entry.blob, len(numbers))
        path, target = entry.path.encode(), entry.target.encode()
        entries.append((entry.kind.value, path, entry.mode & MODE_BITS, target, entry.size, number))
    return entries, list(numbers)


# --- what comes back --------------------------------------------------------------------------------------------------


def find_files(directory: Path, globs: Sequence[str]) -> list[FileEntry]:
    """The regular files below `directory` that match any glob, ordered by path, hidden files in a directory that
    matches too: the client leaves them out and says so. Links count as what they lead to, as long as that is a file
    inside. Raises BadValue for a glob that leads out, GridError for what matches too much."""
    Globs(globs)
    try:
        with opened(str(directory)) as root:
            found = files.find(root, globs, files.Limits(files=MOST_ENTRIES))
    except (FileNotFoundError, NotADirectoryError):  # nothing ran there; or the job put something in its place
        return []
    except OSError as error:
        why = error.strerror or str(error)
        raise GridError("the files cannot be listed", why=why, hint="ask for fewer, or pack them in the job") from None
    return [file_entry(one) for one in found]


def file_entry(found: files.Found) -> FileEntry:
    """The same for a message."""
    path, size, mode = found
    text, raw = to_wire(path.decode("utf-8", "surrogateescape"))
    return FileEntry(text, size, mode, raw)


def read_file(directory: Path, path: str, offset: int, size: int) -> tuple[bytes, bool]:
    """Up to `size` bytes of a file below `directory`, and whether they are its last. Raises GridError for what is not
    a regular file inside, wherever links lead."""
    check_relative(path)
    try:
        with opened(str(directory)) as root:
            return files.read(root, path.encode("utf-8", "surrogateescape"), offset, size)
    except OSError as error:
        raise GridError(f"{path} cannot be read", why=error.strerror or "") from None
