"""A host by ssh, and the program that runs there. Only this module imports asyncssh, and only when it connects to a
host (the extra `[ssh]`)."""

import asyncio
import contextlib
import io
import json
import os
import shlex
import tarfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed_grid import pip
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.push.plan import PYTHON, Target

if TYPE_CHECKING:
    import asyncssh

CONNECT_SECONDS = 15.0
ALIVE_SECONDS = 10.0
END_SECONDS = 5.0
GLOBAL = Path("/etc/ssh/ssh_known_hosts")


class SshOptions(NamedTuple):
    """Options beside the user's ssh configuration: a file with a private key, and whether the key of an unknown host is
    accepted and stored."""

    identity: str = ""
    accept_new: bool = False


class Ran(NamedTuple):
    """The result of a command."""

    status: int
    out: bytes
    err: bytes


def library() -> Any:
    """asyncssh. Raises GridError where it is not installed."""
    try:
        import asyncssh
    except ImportError:
        raise GridError(
            "this needs asyncssh, which is not installed",
            why="it comes with the extra [ssh]",
            hint=pip.install(*pip.EXTRAS["ssh"]),
        ) from None
    return asyncssh


class Host:
    """A host to run commands on: `async with Host(target, given) as host`. It connects when it has to, and
    again after a connection that broke, so that what was begun can be undone."""

    def __init__(self, target: Target, given: SshOptions) -> None:
        self.target = target
        self._given = given
        self._connection: asyncssh.SSHClientConnection | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> "Host":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> "asyncssh.SSHClientConnection":
        """The connection. Raises GridError."""
        async with self._opening:
            if self._connection is None or self._connection.is_closed():
                self._connection = await _connect(self.target, self._given)
            return self._connection

    async def close(self) -> None:
        """Leave."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None

    async def run(self, command: str, stdin: bytes = b"", hold: bool = False) -> Ran:
        """Run a command of the host's shell, which reads `told`. With `hold` it sees no end of that as long as we wait
        for it: one that does is to end. Raises GridError where the connection breaks."""
        ssh = library()
        connection = await self.open()
        try:
            process = await _created(connection, command)
            try:
                process.stdin.write(stdin)
                if not hold:
                    process.stdin.write_eof()
                out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
                await process.wait_closed()
            except asyncio.CancelledError:
                await _end(process)
                raise
        except (ssh.Error, OSError) as error:
            raise GridError(f"the connection to {self.target} broke", why=str(error), hint="try again") from None
        if process.exit_status is None:
            why = "what was asked did not come to its end"
            raise GridError(f"the connection to {self.target} broke", why=why, hint="try again")
        return Ran(process.exit_status, out, err)


async def _created(connection: "asyncssh.SSHClientConnection", command: str) -> "asyncssh.SSHClientProcess[bytes]":
    """Start a command on the host. It may run already while its answer is awaited: an interruption meanwhile ends it
    like one that is known to run."""
    creating = asyncio.ensure_future(connection.create_process(command, encoding=None))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(END_SECONDS):
                process = await creating
            await _end(process)
        raise


async def _end(process: "asyncssh.SSHClientProcess[bytes]") -> None:
    """End a command on the host, with the processes that it has started, and wait for that. (Servers do not pass
    signals on to root.)"""
    with contextlib.suppress(OSError, TimeoutError):
        process.stdin.write_eof()
        async with asyncio.timeout(END_SECONDS):
            await process.wait_closed()
    process.close()


async def _connect(target: Target, given: SshOptions) -> "asyncssh.SSHClientConnection":
    ssh = library()
    options: dict[str, Any] = {
        "agent_forwarding": False,
        "password_auth": False,
        "kbdint_auth": False,
        "connect_timeout": CONNECT_SECONDS,
        "login_timeout": CONNECT_SECONDS,
        "keepalive_interval": ALIVE_SECONDS,
    }
    if target.user:
        options["username"] = target.user
    if target.port:
        options["port"] = target.port
    if given.identity:
        options["client_keys"] = [_readable(given.identity)]
    files: list[str] = []
    keys = _keys(ssh, target, given.accept_new, files)
    try:
        read = await ssh.SSHClientConnectionOptions.construct(config=(), host=target.host, **options)
        files += _known_hosts(target, read.known_hosts)
        connection: asyncssh.SSHClientConnection = await ssh.connect(
            target.host, client_factory=keys, known_hosts=_there(files) or b"", **options
        )
        return connection
    except ssh.HostKeyNotVerifiable:
        raise keys.refusal or GridError(
            f"the host key of {target} is not one to be trusted",
            why="known_hosts has taken it back",
        ) from None
    except ssh.PermissionDenied as error:
        raise GridError(
            f"{target} does not let us in",
            why=f"it accepts none of our keys ({error.reason})",
            hint=f"see that `ssh -o BatchMode=yes {target.user + '@' if target.user else ''}{target.host} true` works;"
            " name a key with --identity, or add it to your ssh agent",
        ) from None
    except (ssh.KeyImportError, ssh.KeyEncryptionError) as error:
        what = f"the key {given.identity} cannot be used" if given.identity else "a key of yours cannot be used"
        raise GridError(what, why=str(error), hint="a key with a passphrase has to be in your ssh agent") from None
    except ssh.ConfigParseError as error:
        raise GridError("your ssh configuration cannot be read", why=str(error)) from None
    except (ssh.Error, OSError, ValueError) as error:
        why = "no answer in time" if isinstance(error, TimeoutError | ssh.TimeoutError) else _words(error)
        hint = f"see that `ssh {target.user + '@' if target.user else ''}{target.host} true` works"
        raise GridError(f"cannot reach {target} by ssh", why=why, hint=hint) from None


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and not error.strerror.startswith("Connect call"):
        return error.strerror.lower()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _readable(identity: str) -> str:
    path = Path(identity).expanduser()
    if not os.access(path, os.R_OK) or not path.is_file():
        raise BadValue(f"the key {identity} cannot be read", hint="give a file with a private key")
    return str(path)


def _known_hosts(target: Target, configured: Any) -> list[str]:
    """The files that say which host has which key; the first is where new ones are written."""
    if configured is None:
        raise GridError(
            f"the key of {target} would not be looked at",
            why="your ssh configuration says UserKnownHostsFile none, and whoever answers could be anybody",
            hint="set it to a file for this host",
        )
    return [str(one) for one in configured] or [str(Path("~/.ssh/known_hosts").expanduser()), str(GLOBAL)]


def _there(files: list[str]) -> list[str]:
    return [file for file in files if os.path.isfile(file)]


def _keys(ssh: Any, target: Target, accept_new: bool, files: list[str]) -> Any:
    """Judges the key of a host that is not among those known for it; a class, as asyncssh wants it."""

    class Keys(ssh.SSHClient):  # type: ignore[misc]
        refusal: GridError | None = None

        def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
            there = _there(files)
            standard = port == ssh.connection.DEFAULT_PORT
            known = ssh.match_known_hosts(there, host, addr, None if standard else port) if there else ((),) * 3
            shown = f"it shows {key.get_fingerprint()}"
            name = host if standard else f"[{host}]:{port}"
            if any(known[:2]):
                Keys.refusal = GridError(
                    f"the host key of {target} is not the one that is known",
                    why=f"{shown}; the connection may be intercepted, or the host was reinstalled",
                    hint=f"if you know that it was: ssh-keygen -R '{name}', then ssh there once",
                )
                return False
            if not accept_new:
                Keys.refusal = GridError(
                    f"the host key of {target} is not known",
                    why=shown,
                    hint="ssh there once and compare it, or take it unseen with --accept-new",
                )
                return False
            path = Path(files[0])
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(f"{name} ".encode() + key.export_public_key().split(b"\n")[0] + b"\n")
            return True

    return Keys


NAMES = ("python3", *(f"python3.{minor}" for minor in range(16, PYTHON[1] - 1, -1)))
FIND = """
for name in "$@"; do
    found=$(command -v "$name") || continue
    "$found" -c 'import sys; sys.exit(sys.version_info < ({wanted}))' && echo "$found" && exit 0
    seen="$seen $("$found" -V 2>&1)"
done
echo "$seen" >&2
exit 3
"""
READ = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'remote', 'exec'))"
UNPACK = 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(sys.argv[1])'


class Remote:
    """A host, and the Python there that does what is asked. `python` empty: the first one that is new enough."""

    def __init__(self, host: Host, python: str = "") -> None:
        self._host = host
        self._named = python
        self._python = ""

    async def call(self, what: str, /, **given: Any) -> Any:
        """Make one of the remote program's `CALLS` on the host. Raises GridError."""
        program = (
            f"{files(__package__).joinpath('remote.py').read_text()}\nmain({what!r}, {json.dumps(given)!r})\n".encode()
        )
        command = "exec " + shlex.join((await self._find(), "-c", READ, str(len(program))))
        ran = await self._host.run(command, program, hold=True)
        try:
            answer: dict[str, Any] = json.loads(ran.out.splitlines()[-1])
        except (ValueError, IndexError):
            said = ran.err.decode(errors="replace").strip().splitlines() or [f"exit code {ran.status}"]
            raise GridError(f"{self._host.target} did not do what was asked ({what})", why=said[-1]) from None
        if "done" not in answer:
            raise GridError(f"{self._host.target}: {answer['what']}", answer["why"], answer["hint"])
        return answer["done"]

    async def copy(self, paths: Iterable[Path], folder: str) -> None:
        """Copy these files into a folder there."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in paths:
                archive.add(path, path.name, filter=_plain)
        command = "exec " + shlex.join((await self._find(), "-c", UNPACK, folder))
        ran = await self._host.run(command, packed.getvalue())
        if ran.status:
            said = ran.err.decode(errors="replace").strip().splitlines() or [f"exit code {ran.status}"]
            raise GridError(f"copying to {self._host.target} failed", why=said[-1])

    async def _find(self) -> str:
        """The Python to use there. Raises GridError where none is new enough."""
        if not self._python:
            wanted = ", ".join(map(str, PYTHON))
            names = [self._named] if self._named else NAMES
            command = shlex.join(("sh", "-s", "-", *names))
            ran = await self._host.run(command, FIND.replace("{wanted}", wanted).encode())
            if ran.status:
                seen = " ".join(ran.err.decode(errors="replace").split())
                raise GridError(
                    f"{self._host.target} has no Python that is new enough"
                    + (f" at {self._named}" if self._named else ""),
                    why=f"the grid needs {'.'.join(map(str, PYTHON))} or newer"
                    + (f"; there is {seen}" if ran.status == 3 and seen else ""),
                    hint="install one there, or name it with --python PATH",
                )
            self._python = ran.out.decode(errors="replace").strip().splitlines()[-1]
        return self._python


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a file as it is copied: without an owner, readable only for its new user."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member
