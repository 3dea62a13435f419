"""A boost on its node: the command that starts a raylet with exactly the borrowed resources, its ports, its folder
(with a short name) and the cluster's token. Flags, known problems and figures were measured with Ray 2.60. SIGTERM to
`ray start --block` alone drains and ends the node. This module ends only processes that it has started."""

import contextlib
import errno
import json
import math
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from distributed_grid import pip
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch.isolation import PASSABLE, Account
from distributed_grid.agent.walls.files import FILE, Entry
from distributed_grid.protocol.boosts import (
    JOIN_WITHIN,
    LABEL,
    OBJECT_STORE,
    OVERHEAD,
    SOURCE,
    TARGET,
    Boost,
    RayAuth,
    custom_resource,
    label_value,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import MILLI
from distributed_grid.runtime import xdg
from distributed_grid.runtime.service import find_ray_token

_NONE_SUCH = errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL


def port_is_free(port: int) -> bool:
    """Whether a job could listen on this port now, on all addresses; connections in TIME_WAIT do not count."""
    trouble = _try_to_bind(socket.AF_INET6, "::", port)  # both families in one go: a raylet asks for some forty ports
    if trouble in _NONE_SUCH:
        trouble = _try_to_bind(socket.AF_INET, "0.0.0.0", port)  # noqa: S104
    return trouble == 0


def _try_to_bind(family: socket.AddressFamily, address: str, port: int) -> int:
    """Bind for a moment; the errno, or 0."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


TEMPORARY = Path("/tmp")  # noqa: S108 - made there by its user, under a name that nobody else has there
WALLED_TOKEN = "ray-token"  # noqa: S105 - the name of a file


class WalledFolder:
    """Folders of raylets in one slot. `private`: its /tmp is a directory of the slot."""

    def __init__(self, files: JobFiles, state_dir: Path, slot: str, private: bool) -> None:
        self._files = files
        self.slot = slot
        base = state_dir / "jobs" / slot / ".tmp" if private else TEMPORARY
        self._base = os.fsencode(base)

    def make(self, allocation: str, token: Path | None) -> tuple[Path, str]:
        """Make the folder with a copy of the cluster's token. Returns its path and the token's, as the raylet sees
        them. Raises GridError."""
        name = _folder_name(allocation)
        entries: list[Entry] = []
        if token is not None:
            entries.append((FILE, WALLED_TOKEN.encode(), 0o600, b"", token.stat().st_size, 0))
        try:
            self._files.make(self.slot, self._base, name, entries, lambda _: _open_token(token))
        except OSError as error:
            why = error.strerror or str(error)
            raise GridError(f"{TEMPORARY / os.fsdecode(name)} cannot be made", why=why) from None
        path = TEMPORARY / os.fsdecode(name)
        return path, str(path / WALLED_TOKEN) if token is not None else ""

    def remove(self, allocation: str) -> None:
        """Remove the folder of an ended raylet. Raises GridError and OSError."""
        self._files.remove_at(self.slot, self._base, _folder_name(allocation))


def has_walled_folder(allocation: str) -> bool:
    """Whether there is such a folder in the machine's /tmp."""
    return (TEMPORARY / os.fsdecode(_folder_name(allocation))).exists()


def _folder_name(allocation: str) -> bytes:
    return f"grid-r-{allocation}".encode()


def _open_token(token: Path | None) -> int:
    assert token is not None  # noqa: S101
    return os.open(token, os.O_RDONLY | os.O_CLOEXEC)


PROBE_SECONDS = 20.0
PROBE = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
REFUSED_BY_RAY = "InvalidAuthToken"
COPY_NAME = "token"

_taken_tokens: set[tuple[str, str, int, int]] = set()
"""Accepted tokens: cluster address and the file's identity. A check costs an import of ray."""


def check_token(token: Path, address: str, python: str, said: Mapping[str, str]) -> None:
    """Check that the cluster accepts the token: one second, where `ray start` takes 21. `said` is the raylet's
    environment. Raises GridError if the cluster refuses it; any other error is left to `ray start`."""
    seen = token.stat()
    key = (address, str(token), seen.st_mtime_ns, seen.st_ino)
    if key in _taken_tokens:
        return
    environment = {**said, "PATH": os.defpath, "RAY_AUTH_TOKEN_PATH": str(token)}
    try:
        tried = subprocess.run(
            [python, "-I", "-c", PROBE, address], env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if REFUSED_BY_RAY in tried.stderr:
        raise GridError(
            f"the Ray cluster at {address} does not take this node's token",
            why=f"it is another than that in {token}",
            hint="put the cluster's token there, or name its file with agent.ray_token",
        )
    if tried.returncode == 0:
        _taken_tokens.add(key)


def copy_token(token: Path, folder: Path, account: Account | None) -> Path:
    """Copy the token into the raylet's own folder, for the user it runs as (None: ours), who may have no access to our
    file. Raises OSError."""
    path = folder / COPY_NAME
    path.unlink(missing_ok=True)  # of an attempt that never reached the supervisor
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, token.read_bytes())
        if account is not None:
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)
    return path


SERVICES = (
    "--node-manager-port",
    "--object-manager-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
)
"""Listening services beside the workers. Their ports are given explicitly: raylets wait seconds for random ones."""
WORKERS = 4
"""Ports for worker processes per core; Ray keeps some idle, and starts some ahead."""
SPARE_WORKERS = 32
LISTEN_TIMEOUT = 60.0
"""Seconds after a raylet's time to join is over, after which it listens on its ports, or never will."""
HEAD_TIMEOUT = 30.0
"""Seconds that a raylet outlives its cluster's head; a restart of the head takes some ten."""
RAYS_WAIT = 30
"""Seconds that `ray start` waits for its raylet to be shown, if nothing else is set; whole ones only."""
TO_SAY_WHY = 10.0
"""Seconds of a boost's time to join that are left when `ray start` gives up: what it says is the reason told then."""
DRAIN = 5.0
"""Seconds of a boost's grace that are left for its processes when Ray's own grace is over."""
REACH_SECONDS = 3.0
ASK_SECONDS = 20.0
TEMP = "grid-ray"
SOCKET_PATH, RAYS_PART = 107, 64
"""Bytes that the path of a socket may have, and those that Ray needs below the folder it is given."""
OPEN = "r"
"""Directory in the raylet's own folder that is given to Ray, which makes it world-writable."""


def program(named: str) -> Path:
    """The ray program to use: the configured one, that of our own environment, or of the PATH. Raises GridError."""
    beside = Path(sys.executable).with_name("ray")
    found = named or (str(beside) if beside.exists() else shutil.which("ray"))
    if not found or not os.access(found, os.X_OK):
        raise GridError(
            "there is no ray program on this node",
            why=f"{found} cannot be run" if found else "neither beside the agent's Python nor in its PATH",
            hint=f"{pip.install(*pip.EXTRAS['ray'])}; or name one with agent.ray",
        )
    return Path(found)


OWN_PROGRAM = "name the `ray` beside the Python that Ray is installed for with agent.ray"

_known: dict[tuple[str, int, int], tuple[str, str]] = {}
"""Versions by program path, inode and modification time: an installation changes these."""


def versions(ray: Path) -> tuple[str, str]:
    """Versions of Ray and of its Python, without the half second of an import. Raises GridError."""
    seen = ray.stat()
    key = (str(ray), seen.st_ino, seen.st_mtime_ns)
    if key not in _known:
        _known.clear()
        _known[key] = _versions(ray)
    return _known[key]


def _versions(ray: Path) -> tuple[str, str]:
    python = _python_of(ray)
    if python == sys.executable and (ours := _version_among(sys.path)):
        return ours, platform.python_version()  # with our extra `ray`: else each start would start an interpreter
    code = "import importlib.metadata as m, platform; print(m.version('ray'), platform.python_version())"
    try:
        out = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=ASK_SECONDS, check=True
        ).stdout
        here, version = out.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (error.stderr or "").strip() if isinstance(error, subprocess.CalledProcessError) else ""
        why = f"{python}: {said.splitlines()[-1]}" if said else str(error)
        raise GridError(f"{ray} cannot be asked for its version", why=why, hint=OWN_PROGRAM) from None
    return here, version


def _version_among(folders: Sequence[str]) -> str:
    """The version of Ray in the first of these folders that has its metadata, by the name of those; else empty."""
    for folder in filter(None, folders):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith("ray-") and name.endswith(".dist-info"):
                    return name.removeprefix("ray-").removesuffix(".dist-info")
    return ""


def _python_of(ray: Path) -> str:
    """The interpreter in the program's first line; where that names none, the one beside it: for a path that is too
    long for such a line, or has spaces, installers write a script of the shell. Raises GridError."""
    with open(ray, "rb") as file:
        first = file.readline(1024).decode(errors="replace").strip()
    if not first.startswith("#!"):
        return sys.executable
    named = (first.removeprefix("#!").split() or [""])[0]
    if Path(named).name.startswith(("python", "pypy")):
        return named
    beside = ray.resolve().with_name("python")
    if not os.access(beside, os.X_OK):
        why = f"its first line names {named or 'nothing'}, and there is no Python beside it"
        raise GridError(f"{ray} is not Ray's own program", why=why, hint=OWN_PROGRAM)
    return str(beside)


def check_versions(boost: Boost, here: str, python: str, node: str) -> None:
    """Check that Ray's version is the same, and Python's to the minor number (with the match level that we set). Raises
    GridError that names both sides."""
    wrong = []
    if boost.ray and boost.ray != here:
        wrong.append(f"Ray {here} on {node}, {boost.ray} in the cluster")
    if boost.python and boost.python.split(".")[:2] != python.split(".")[:2]:
        wrong.append(f"Python {python} on {node}, {boost.python} in the cluster")
    if wrong:
        raise GridError(
            f"{node} cannot join the Ray cluster at {boost.address}",
            why="; ".join(wrong),
            hint=f"on {node}, with Python {'.'.join(boost.python.split('.')[:2])}: {pip.install(f'ray=={boost.ray}')}",
        )


def own_address(head: str) -> str:
    """The address of this machine that the cluster's head can reach. Raises GridError if the head is unreachable."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_SECONDS) as there:
            return str(there.getsockname()[0])
    except (OSError, ValueError) as error:
        why = str(error)
        if host == "localhost" or host.startswith("127."):
            why = f"{host} is the node itself, and ray.address on the coordinator is to be what nodes reach: {why}"
        raise GridError(
            f"the Ray cluster at {head} cannot be reached from this node", why=why, hint="ray status"
        ) from None


BLOCK = 16
"""Ports that are claimed together."""
_claimed: list[tuple[float, str, list[socket.socket]]] = []
"""Claims on port ranges of raylets that may not listen yet, each with the time when it ends and its allocation."""
_claim_lock = threading.Lock()


def ports(first: int, last: int, cores: int, join_within: float = JOIN_WITHIN, allocation: str = "") -> tuple[int, ...]:
    """A range of free ports, not given to another raylet that is about to listen, also by another agent of this
    machine: one for each service, then the first and the last of the workers'. They are kept for this allocation until
    its raylet listens, or has ended. Raises GridError."""
    workers = SPARE_WORKERS + WORKERS * cores
    row = len(SERVICES) + workers
    with _claim_lock:
        now = time.monotonic()
        _release_where(lambda ends, _: ends < now)
        for begin in range(first, last - row + 2, -(-row // BLOCK) * BLOCK):
            end = begin + row - 1
            if (sockets := _claim(begin, end)) is None:
                continue
            if not all(map(port_is_free, range(begin, end + 1))):
                _release(sockets)
                continue
            _claimed.append((now + join_within + LISTEN_TIMEOUT, allocation, sockets))
            services = range(begin, begin + len(SERVICES))
            return (*services, services.stop, end)
    raise GridError(
        f"no {row} ports in a row are free for a raylet", why=f"between {first} and {last}", hint="see agent.ray_ports"
    )


def _claim(begin: int, end: int) -> list[socket.socket] | None:
    """Claim these ports of this machine while the returned sockets are open; None: already claimed. Abstract socket
    names are unique in a network namespace for all users, as ports are, and vanish with their process."""
    claim: list[socket.socket] = []
    try:
        for block in range(begin // BLOCK, end // BLOCK + 1):
            claim.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            claim[-1].bind(f"\0{TEMP}/ports/{block * BLOCK}")
    except OSError:
        _release(claim)
        return None
    return claim


def _release_where(over: Callable[[float, str], bool]) -> None:
    """Release the claims for which this function of end and allocation is true."""
    for claim in [one for one in _claimed if over(*one[:2])]:
        _claimed.remove(claim)
        _release(claim[2])


def _release(claim: list[socket.socket]) -> None:
    for one in claim:
        one.close()


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How this node runs Ray: the program (empty: ours, or that of the PATH), the range of ports, the path of the file
    with the cluster's token (empty: Ray's default)."""

    program: str = ""
    first_port: int = 20000
    last_port: int = 24999
    token: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Command and environment of a raylet."""

    argv: tuple[str, ...]
    environment: dict[str, str]


def prepare(
    launch: Launch,
    boost: Boost,
    node: str,
    settings: RaySettings,
    account: Account | None,
    walled: WalledFolder | None = None,
) -> Lease:
    """Check that a raylet can join, and make what it needs for this user (None: the agent's), or in `walled`. Takes up
    to seconds. Raises GridError."""
    ray = program(settings.program)
    check_versions(boost, *versions(ray), node)
    address = own_address(boost.address)
    said = environment(boost, launch.spec.grace)
    token = find_ray_token(settings.token, "agent.ray_token") if boost.auth is RayAuth.TOKEN else None
    if token is not None:
        check_token(token, boost.address, _python_of(ray), said)
    cores = len(launch.grant.cores)
    row = ports(settings.first_port, settings.last_port, cores, boost.join_within, launch.allocation)
    if walled is not None:
        temp, given = walled.make(launch.allocation, token)
    else:
        temp = make_folder(launch.allocation, account)
        given = str(copy_token(token, temp, account)) if token is not None else ""
    if given:
        said["RAY_AUTH_TOKEN_PATH"] = given
    return Lease(tuple(command(launch, boost, node, ray, address, row, temp / OPEN)), said)


def as_job(launch: Launch, lease: Lease) -> Launch:
    """The launch with the raylet's command."""
    return replace(launch, spec=replace(launch.spec, argv=lease.argv))


def command(
    launch: Launch, boost: Boost, node: str, ray: Path, address: str, row: tuple[int, ...], temp: Path
) -> list[str]:
    """The raylet's command. `row` is the result of `ports`, `temp` its own folder with a short name (sockets are below
    it)."""
    grant = launch.grant
    gpus = sum(gpu.milli for gpu in grant.gpus) // MILLI
    *services, first, last = row
    labels = {LABEL: launch.job, TARGET: label_value(boost.target), SOURCE: label_value(node)}
    return [
        str(ray),
        "start",
        "--block",
        f"--address={boost.address}",
        f"--node-ip-address={address}",
        f"--node-name={launch.job}",
        f"--num-cpus={len(grant.cores)}",
        f"--num-gpus={gpus}",
        f"--memory={max(0, grant.memory - OVERHEAD)}",
        f"--object-store-memory={OBJECT_STORE}",
        f"--resources={json.dumps({custom_resource(boost.target): gpus or len(grant.cores)})}",
        f"--labels={','.join(f'{name}={value}' for name, value in labels.items())}",
        f"--temp-dir={temp}",
        f"--min-worker-port={first}",
        f"--max-worker-port={last}",
        *(f"{flag}={port}" for flag, port in zip(SERVICES, services, strict=True)),
        "--disable-usage-stats",
    ]


def environment(boost: Boost, grace: float) -> dict[str, str]:
    """The raylet's environment beside that of a job, without the path of its token."""
    return {
        "RAY_AUTH_MODE": boost.auth.value,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": f"{max(0.1, grace - DRAIN):g}",
        "RAY_gcs_rpc_server_reconnect_timeout_s": f"{HEAD_TIMEOUT:g}",
        "RAY_raylet_start_wait_time_s": str(max(RAYS_WAIT, math.ceil(boost.join_within - TO_SAY_WHY))),
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


NOT_FOR_RAY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that tell a job its cores; Ray sets these for each task."""


def for_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """A job's environment without these."""
    return {name: value for name, value in environment.items() if name not in NOT_FOR_RAY}


def folder(allocation: str) -> Path:
    """Return where Ray keeps its sockets and logs: in XDG_RUNTIME_DIR; or in /tmp if a socket's path would be too long,
    or if that directory is not this user's: systemd removes it with the user's last session, and `su` without `-` keeps
    the caller's."""
    in_runtime, in_temporary = _folders(allocation)
    return in_runtime if in_runtime and _is_ours(in_runtime.parents[1]) else in_temporary


def _folders(allocation: str) -> tuple[Path | None, Path]:
    """Return where its folder may be: in XDG_RUNTIME_DIR (None: not there), and in /tmp."""
    in_temporary = TEMPORARY / f"{TEMP}-{os.getuid()}" / allocation
    if own := xdg.named("XDG_RUNTIME_DIR"):
        path = Path(own, "grid-r", allocation)
        if len(os.fsencode(path / OPEN)) + RAYS_PART <= SOCKET_PATH:
            return path, in_temporary
    return None, in_temporary


def _is_ours(path: Path) -> bool:
    try:
        seen = path.lstat()
    except OSError:
        return False
    return seen.st_uid == os.getuid() and stat.S_ISDIR(seen.st_mode)


def make_folder(allocation: str, account: Account | None = None) -> Path:
    """Make the folder, private to this user (None: ours). Raises GridError."""
    path = folder(allocation)
    try:
        for one, mode in ((path.parent, PASSABLE), (path, 0o700)):
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode)
            seen = one.lstat()
            if seen.st_uid != os.getuid() or seen.st_mode & ~mode & 0o777 or not stat.S_ISDIR(seen.st_mode):
                raise GridError(f"{one} is somebody else's", why="Ray's sockets and logs are to be there")
        if account is not None:
            os.chown(path, account.uid, account.gid)
    except OSError as error:
        raise GridError(f"{path} cannot be made", why=error.strerror or str(error)) from None
    return path


def ended(allocation: str) -> None:
    """Release the ports of an ended allocation, and remove its folder, if it has any."""
    with _claim_lock:
        _release_where(lambda _, whose: whose == allocation)
    for path in filter(None, _folders(allocation)):
        if _is_ours(path.parent):
            shutil.rmtree(path, ignore_errors=True)
