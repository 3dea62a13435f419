"""A host for tests: a real sshd of our own in a network namespace of its own, with keys of its own. Its user is root,
with a home below the test's folder; it has Python and ssh, no systemd and no network but the link to us.

The host shares its file system with us, so a test can look at what is there.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.grid_fixture import until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
MASTER = "192.0.2.1"
ADDRESS = "192.0.2.2"
CONFIG = """
agent:
  offer_after: 0
  reserve_memory_gb: 0
  gpu_backend: none
resource_sharing:
  monitoring_interval_seconds: 1
  thresholds: {cpu_percent_max: 100, memory_percent_max: 100, memory_min_gb: 0.1}
"""


def lacking() -> str:
    """Why there can be no such host on this machine; empty where there can."""
    missing = [name for name in ("ip", "ssh-keygen", "unshare", "nsenter") if shutil.which(name) is None]
    missing += [] if os.access(SSHD, os.X_OK) else ["sshd"]
    return f"needs {', '.join(missing)} (Debian: openssh-server, iproute2)" if missing else ""


CLONE_NEWNET = 0x40000000


@contextmanager
def own_network() -> Iterator[None]:
    """This thread, and what it starts, has a network of its own, with nothing in it but loopback. (Threads that were
    there before stay where they are.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        run("ip", "link", "set", "lo", "up")
        yield
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0
        os.close(before)


class Machine:
    """It. `home`: the home of its user there; `ours`: our own home; `keys`: where the keys of both are."""

    def __init__(self, place: Path, name: str) -> None:
        self.name = name
        self.home = place / "far-home"
        self.keys = place / "keys"
        self.ours = place / "our-home"
        self._sshd: subprocess.Popen[bytes] | None = None
        self._namespace = ""
        for folder in (self.home, self.keys, self.ours / ".ssh"):
            folder.mkdir(parents=True, mode=0o700)

    def begin(self) -> None:
        """Make the link and start sshd at its other end. Only in `own_network`."""
        for what in ("host", "user", "stranger"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", what, "-f", str(self.keys / what))
        (self.keys / "authorized").write_bytes((self.keys / "user.pub").read_bytes())
        public = " ".join((self.keys / "host.pub").read_text().split()[:2])
        (self.ours / ".ssh" / "known_hosts").write_text(f"{ADDRESS} {public}\n")
        (self.ours / ".ssh" / "config").write_text(f"Host {ADDRESS}\n  IdentityFile {self.keys / 'user'}\n")
        config = self.home / ".config" / "grid" / "config.yaml"
        config.parent.mkdir(parents=True)
        config.write_text(CONFIG)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it wants this to be there, and leaves nothing in it
        # Its Python is ours, as the wheels are that it gets.
        found_in = f"{sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        settings = {
            "ListenAddress": ADDRESS,
            "HostKey": self.keys / "host",
            "AuthorizedKeysFile": self.keys / "authorized",
            "PidFile": "none",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "SetEnv": f"HOME={self.home} XDG_STATE_HOME={self.home}/.local/state PATH={found_in}",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        # A host name of its own: that is what the node will be called. And it waits until the link is there.
        program = 'hostname "$0" && ip link set lo up && echo ready && read go && exec "$@"'
        command = ["unshare", "--net", "--uts", "sh", "-c", program, self.name]
        with (self.keys / "sshd.log").open("wb") as log:
            self._sshd = subprocess.Popen(
                [*command, SSHD, "-D", "-e", "-f", "none", *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._sshd.stdin and self._sshd.stdout and self._sshd.stdout.readline() == b"ready\n"
        pid = str(self._sshd.pid)
        self._namespace = os.readlink(f"/proc/{pid}/ns/net")
        run("ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", pid)
        run("ip", "addr", "add", f"{MASTER}/24", "dev", "near0")
        run("ip", "link", "set", "near0", "up")
        for words in (f"addr add {ADDRESS}/24 dev far0", "link set far0 up"):
            run("nsenter", "--target", pid, "--net", "ip", *words.split())
        self._sshd.stdin.write(b"go\n")
        self._sshd.stdin.close()
        until(lambda: "listening" in (self.keys / "sshd.log").read_text(), "sshd listens")

    def end(self) -> None:
        """End all that runs there; the namespace goes with the last of it."""

        def ended() -> bool:
            left = [*self.processes(), *self.processes(sshd=True)]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(ended, "all of it ends")
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()

    def processes(self, sshd: bool = False) -> dict[int, str]:
        """The command lines of what runs there, or of sshd there, by pid."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if not self._namespace or os.readlink(f"/proc/{name}/ns/net") != self._namespace:
                    continue
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
            if line and line.startswith(("sshd", SSHD)) == sshd:
                found[int(name)] = line
        return found

    def files(self) -> set[str]:
        """All that is in its home."""
        found = (Path(at, name) for at, folders, names in os.walk(self.home) for name in (*folders, *names))
        return {str(path.relative_to(self.home)) for path in found}


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextmanager
def machine(place: Path) -> Iterator[Machine]:
    """A host that is up, in `own_network`."""
    made = Machine(place, "lab1")
    try:
        made.begin()
        yield made
    finally:
        made.end()
