"""The folder of an allocation on the node: `spec`, `stdout`, `stderr`, and `workdir`, where the job runs."""

import contextlib
import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from distributed_grid.agent.walls import beneath
from distributed_grid.faults import fault
from distributed_grid.protocol import gangs
from distributed_grid.protocol.bundle import (
    MODE_BITS,
    MOST_ENTRIES,
    Entry,
    Kind,
    Manifest,
    check_path,
    check_target,
    is_blob_hash,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.filenames import check_relative, to_wire
from distributed_grid.protocol.globs import Globs, Match
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
    for _, folders, files, fd in os.fwalk(directory, topdown=False):
        for name in (*folders, *files):
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
        with open(fd, "wb") as file:
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
    root = -1
    try:
        root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        for entry in manifest.entries:
            check_path(entry.path)
            above, _, name = entry.path.rpartition("/")
            parent = _open_below(root, above.split("/") if above else [], make=True)
            try:
                _make(entry, name, parent, blobs)
            finally:
                os.close(parent)
    except OSError as error:
        raise GridError("the shipped files could not be unpacked", why=str(error)) from None
    finally:
        if root >= 0:
            os.close(root)


def _open_below(root: int, parts: list[str], make: bool = False) -> int:
    """The directory at the end of these parts, none of which may be a link."""
    here = os.dup(root)
    for part in parts:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=here)
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _make(entry: Entry, name: str, parent: int, blobs: Path) -> None:
    match entry.kind:
        case Kind.DIRECTORY:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, entry.mode | 0o700, dir_fd=parent)
        case Kind.LINK:
            check_target(entry.path, entry.target)
            os.symlink(entry.target, name, dir_fd=parent)
        case Kind.FILE:
            if not is_blob_hash(entry.blob):
                raise BadValue(f"the content of {entry.path} has no hash")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            copy = os.open(name, flags, 0o600, dir_fd=parent)
            try:
                with open(blobs / entry.blob, "rb") as blob:
                    size = os.fstat(blob.fileno()).st_size
                    if size != entry.size:
                        raise BadValue(f"the content of {entry.path} has {size} bytes instead of {entry.size}")
                    while os.sendfile(copy, blob.fileno(), None, 1 << 24):
                        pass
                os.fchmod(copy, entry.mode & MODE_BITS)
            finally:
                os.close(copy)


# --- what comes back --------------------------------------------------------------------------------------------------


def find_files(directory: Path, globs: Sequence[str]) -> list[FileEntry]:
    """The regular files below `directory` that match any glob, ordered by path, hidden files in a directory that
    matches too: the client leaves them out and says so. Links count as what they lead to, as long as that is a file
    inside. Raises BadValue for a glob that leads out, or matches too much."""
    asked = Globs(globs)
    root = _root(directory)
    found: dict[str, FileEntry] = {}
    for here, below, names in os.walk(root):
        below.sort()
        for name in names:
            path = os.path.relpath(os.path.join(here, name), root)
            if asked.match(path) is Match.NO:
                continue
            seen = _stat_inside(root, path)
            if seen is not None:
                text, raw = to_wire(path)
                found[path] = FileEntry(text, seen.st_size, stat.S_IMODE(seen.st_mode) & MODE_BITS, raw)
            if len(found) > MOST_ENTRIES:
                raise BadValue(f"more than {MOST_ENTRIES} files match", hint="ask for fewer, or pack them in the job")
    return [found[path] for path in sorted(found)]


def read_file(directory: Path, path: str, offset: int, size: int) -> tuple[bytes, bool]:
    """Up to `size` bytes of a file below `directory`, and whether they are its last. Raises GridError for what is not
    a regular file inside, wherever links lead."""
    check_relative(path)
    root = _root(directory)
    try:
        fd = _open_inside(root, path)
    except OSError as error:
        raise GridError(f"{path} cannot be read", why=error.strerror or "") from None
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise GridError(f"{path} cannot be read", why="it is not a regular file")
        data = os.pread(fd, size, offset)
        return data, offset + len(data) >= seen.st_size
    finally:
        os.close(fd)


def _root(directory: Path) -> str:
    """The directory's real name, but for its own: if that is a link, it is the job's doing, and leads nowhere."""
    return os.path.join(os.path.realpath(directory.parent), directory.name)


def _open_inside(root: str, path: str) -> int:
    """Open what a path leads to. Links are resolved first and checked; then the way is gone again without any link, so
    that a job which exchanges one meanwhile wins nothing."""
    real = os.path.realpath(os.path.join(root, path))
    if not real.startswith(root + "/"):
        raise PermissionError(errno.EPERM, "it leads out of the working directory")
    *above, name = os.path.relpath(real, root).split("/")
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        parent = _open_below(top, above)
    finally:
        os.close(top)
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)


def _stat_inside(root: str, path: str) -> os.stat_result | None:
    real = os.path.realpath(os.path.join(root, path))
    with contextlib.suppress(OSError):
        seen = os.lstat(real)
        if real.startswith(root + "/") and stat.S_ISREG(seen.st_mode):
            return seen
    return None
