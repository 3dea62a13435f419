"""What a job that has a user of its own is called, in its own eyes and in those of the programs that it runs, where the
agent is root (tests/systemd/test_boot.py has the same in the unit)."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.walls import accounts, available
from tests.agent.walls.test_spawner import Node
from tests.grid_fixture import until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
ANN, BOB = 1_879_100_001, 1_879_100_002
HOME = "/var/lib/grid/agent/jobs/0123456789abcdef"
root = pytest.mark.root


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ann", "_ann", "ann-2", "a" * 32])
def test_a_submitter_keeps_a_plain_name(name: str) -> None:
    assert accounts.login_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "root",
        "daemon",
        "nobody",
        "",
        "Ann",
        "a" * 33,
        "2ann",
        "-ann",
        "ann.b",
        "a b",
        "a:b",
        "ann:x:0:0::/:/bin/sh",
        "änn",
    ]
    + ["ann\n", "a\nroot:x:0:0::/:/bin/sh", "a\0b", "#ann", "+", "a/b", "a,b", "\u2028"],
)
def test_a_name_of_the_machines_own_or_one_that_is_none_is_not_kept(name: str) -> None:
    assert accounts.login_name(name) == "job"


@pytest.mark.parametrize("home", ["/a:b", "/a\nroot:x:0:0::/:/bin/sh"])
def test_a_home_that_would_make_another_entry_gets_none(home: str) -> None:
    mounts = os.readlink("/proc/self/ns/mnt")
    with pytest.raises(ValueError, match="cannot be in /etc/passwd"):
        accounts.mount_over("ann", ANN, ANN, home)
    assert os.readlink("/proc/self/ns/mnt") == mounts, "nothing was changed"


# --- the copies of a service ------------------------------------------------------------------------------------------


class Files:
    """Two files in the place of a service's copies."""

    def __init__(self, folder: Path, content: str) -> None:
        self.paths = [folder / "passwd", folder / "group"]
        for path in self.paths:
            path.write_text(content)
        self.copies = accounts.Copies(tuple(os.open(path, os.O_RDWR) for path in self.paths))

    def names(self, number: int = 0) -> dict[str, int]:
        """The entries as the C library reads them: comments and empty lines are none."""
        lines = [line.split(":") for line in self.paths[number].read_text().splitlines()]
        return {name: int(rest[1]) for name, *rest in lines if rest and not name.startswith("#")}


@pytest.mark.parametrize("length", [0, 1, 100, 510, 511, 512, 513, 5000])
@pytest.mark.parametrize("end", ["\n", ""])
def test_an_entry_comes_after_those_of_the_machine_whatever_their_length(tmp_path: Path, length: int, end: str) -> None:
    before = f"root:x:0:0::/:/bin/sh\n{'x' * length}:x:5:5::/:/bin/sh"
    files = Files(tmp_path, before + end)
    files.copies.enter("ann", ANN, ANN, HOME, set())
    files.copies.enter("bob", BOB, BOB, HOME, {ANN})
    for number in (0, 1):
        assert files.paths[number].read_text().startswith(before + "\n")
        assert files.names(number) == {"root": 0, "x" * length: 5, "ann": ANN, "bob": BOB}
    assert f":ann:{HOME}:/bin/sh\n" in files.paths[0].read_text().replace(" ", "")


def test_an_entry_is_used_again_when_nothing_of_its_user_lives(tmp_path: Path) -> None:
    files = Files(tmp_path, "root:x:0:0::/:/bin/sh\n")
    for turn in range(100):
        files.copies.enter(f"u{turn}", ANN + turn, ANN + turn, HOME, {ANN + turn - 1})
    assert [*files.names()] == ["root", "u98", "u99"]
    assert files.paths[0].stat().st_size == 3 * 512


def test_no_reader_ever_sees_half_of_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path, "root:x:0:0::/:/bin/sh\n")
    files.copies.enter("chroot", ANN, ANN, HOME, set())
    write, seen = os.pwrite, []

    def byte_by_byte(fd: int, data: bytes, at: int) -> None:
        for number in range(len(data)):
            write(fd, data[number : number + 1], at + number)
            seen.append(files.names())

    monkeypatch.setattr(os, "pwrite", byte_by_byte)
    files.copies.enter("mia", BOB, BOB, HOME, set())
    assert {tuple(names.items()) for names in seen} == {
        (("root", 0), ("chroot", ANN)),
        (("root", 0),),
        (("root", 0), ("mia", BOB)),
    } - {(("root", 0), ("chroot", ANN))}


def test_the_machines_own_files_are_no_copies() -> None:
    assert accounts.Copies.open() is None
    assert accounts.why_no_copy("/etc/passwd") == "/etc/passwd is the machine's own, and no copy for this service"


# --- jobs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if why := available.nameless():
        pytest.skip(why)
    above = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    above.chmod(0o755)
    (above / "state").mkdir()
    try:
        made = Node(above / "state", "user, as root")
        yield made
        made.close()
    finally:
        shutil.rmtree(above)


@root
def test_a_job_has_its_submitters_name_wherever_it_is_looked_up(node: Node) -> None:
    code, out = node.run("whoami; id -un; id -gn; echo $USER $LOGNAME; getent passwd $(id -u); echo $HOME; id -u")
    *names, entry, home, uid = out.splitlines()
    assert (code, names) == (0, ["ann", "ann", "ann", "ann ann"])
    assert entry == f"ann:x:{uid}:{uid}:ann:{home}:/bin/sh" and home.startswith(f"{node.state}/jobs/")
    assert node.run("getent passwd ann | cut -d: -f3; getent passwd root | cut -d: -f3") == (0, f"{uid}\n0\n")


@root
def test_two_submitters_at_once_see_themselves(node: Node) -> None:
    script = "whoami; until [ -e /tmp/%s ]; do sleep 0.05; done; whoami; getent passwd %s || echo nobody"
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    try:
        keys = [
            node.launch(script % (f"{place.name}/go", other), who=who)
            for who, other in (("ann", "bob"), ("bob", "ann"))
        ]
        until(lambda: all(node.wrote(key) for key in keys), "both run")
        (place / "go").touch()
        assert [node.ended(key) for key in keys] == [(0, "ann\nann\nnobody\n"), (0, "bob\nbob\nnobody\n")]
    finally:
        shutil.rmtree(place)


@root
@pytest.mark.parametrize("who", ["root", "daemon", "ann:x:0:0::/:/bin/sh", "ann\nroot::0:0::/:/bin/sh", "Ann Lee"])
def test_a_submitter_with_a_hostile_or_a_system_name_is_called_job(node: Node, who: str) -> None:
    code, out = node.run("whoami; echo $USER; awk -F: '$3 == 0 || $1 == \"root\"' /etc/passwd", who=who)
    assert (code, out.splitlines()[:2]) == (0, ["job", "job"])
    assert out.splitlines()[2:] == [line for line in Path("/etc/passwd").read_text().splitlines() if ":0:0:" in line]


@root
def test_nobody_else_sees_the_entry_and_a_job_cannot_change_it(node: Node) -> None:
    before = Path("/etc/passwd").read_bytes(), Path("/proc/self/mountinfo").read_bytes()
    key = node.launch("id -u; sleep 1; echo x >>/etc/passwd; rm /etc/passwd; mount -o remount,rw /etc/passwd; whoami")
    uid = int(until(lambda: node.wrote(key), "it runs"))
    assert accounts.is_slot_uid(uid)
    with pytest.raises(KeyError):
        pwd.getpwuid(uid)
    code, out = node.ended(key)
    assert (code, out.splitlines()[1]) == (0, "ann") and out.count("denied") == 2
    assert (Path("/etc/passwd").read_bytes(), Path("/proc/self/mountinfo").read_bytes()) == before


@root
def test_a_job_sees_the_machine_as_it_is_but_for_the_two_files(node: Node) -> None:
    code, out = node.run("cat /proc/self/mountinfo")
    seen = [(fields[4], fields[3]) for fields in map(str.split, out.splitlines())]
    ours = [(fields[4], fields[3]) for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())]
    assert (code, sorted(seen)) == (0, sorted([*ours, ("/etc/passwd", "/passwd"), ("/etc/group", "/group")]))


@root
def test_what_is_mounted_later_is_seen_where_mounts_are_shared(tmp_path: Path) -> None:
    # In a mount namespace of our own, so that nothing is left of it; `/` is shared there, as under systemd.
    mount = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    program = (
        "import os, subprocess, sys\n"
        "from distributed_grid.agent.walls import accounts\n"
        "come, go = os.pipe(); told, tell = os.pipe()\n"
        "if os.fork() == 0:\n"
        f"    accounts.mount_over('ann', {ANN}, {ANN}, sys.argv[2])\n"
        "    os.write(tell, b'x'); os.read(come, 1)\n"
        "    print(os.listdir(sys.argv[1]), os.listdir(sys.argv[2])); os._exit(0)\n"
        "os.read(told, 1)\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'none', sys.argv[1]], check=True)\n"
        "open(sys.argv[1] + '/later', 'w').close()\n"
        "os.write(go, b'x'); os.wait()\n"
        f"print('ann:x:{ANN}:' in open('/etc/passwd').read(), os.listdir(sys.argv[2]))\n"
    )
    try:
        command = ["unshare", "--mount", "--propagation", "shared", sys.executable]
        done = subprocess.run([*command, "-c", program, mount, tmp_path], capture_output=True, text=True)
        assert done.stdout == "['later'] []\nFalse []\n", done.stderr
    finally:
        shutil.rmtree(mount)


@root
def test_git_commits_under_the_submitters_name(node: Node) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    commits = "git init -q . && git commit -q --allow-empty -m x && git log --format='%an %ae'"
    code, out = node.run(f"export EMAIL=ann@example.org; {commits}")
    assert code == 0 and out.splitlines()[-1] == "ann ann@example.org", out


@root
def test_a_program_that_would_have_another_group_gives_a_job_no_right(node: Node) -> None:
    # As crontab and at have one, to leave something behind for later.
    folder = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    try:
        folder.chmod(0o755)
        program = Path(shutil.copy(shutil.which("id") or "id", folder))
        os.chown(program, 0, 60_001)
        program.chmod(0o6755)
        code, out = node.run(f"[ $({program} -u) = $(id -u) ] && [ $({program} -g) = $(id -g) ] && echo as before")
        assert (code, out) == (0, "as before\n")
    finally:
        shutil.rmtree(folder)


@root
def test_what_only_asks_who_it_is_and_what_compiles_works(node: Node) -> None:
    asks = "import getpass, os, pwd; print(getpass.getuser(), pwd.getpwuid(os.getuid())[0])"
    assert node.run(f"/usr/bin/python3 -c '{asks}'") == (0, "ann ann\n")
    assert node.run("echo x >/dev/shm/$$ && cat /dev/shm/$$ && rm /dev/shm/$$ && echo y >/dev/null") == (0, "x\n")
    if shutil.which("gcc") is not None:
        program = "echo 'int main(void) { return 7; }' >a.c && gcc a.c -o a && ./a"
        assert node.run(program)[0] == 7


class Sshd:
    """A real one on a free port of the loopback."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for what in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / what)], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        own = f"ListenAddress=127.0.0.1:{self.port}", f"HostKey={place}/host", f"AuthorizedKeysFile={place}/user.pub"
        settings = *own, "PidFile=none", "PermitRootLogin=prohibit-password", "UsePAM=no", "StrictModes=no"
        options = [word for setting in settings for word in ("-o", setting)]
        self.log = place / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", "none", *options], stderr=log)
        until(lambda: "listening" in self.log.read_text(), "sshd listens")

    def script(self, to: str, command: str) -> str:
        """What a job does to log in there with a key in its home."""
        key = (self.place / "user").read_text()
        known = f"[127.0.0.1]:{self.port} " + " ".join((self.place / "host.pub").read_text().split()[:2])
        return (
            f"umask 077; mkdir -p ~/.ssh && printf '%s' '{key}' >~/.ssh/id_ed25519"
            f" && echo '{known}' >~/.ssh/known_hosts && ssh -o BatchMode=yes -p {self.port} {to} {command}"
        )


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if not os.access(SSHD, os.X_OK) or shutil.which("ssh") is None:
        pytest.skip("needs ssh and sshd (Debian: openssh-server)")
    made = Sshd(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


@root
def test_a_job_logs_in_elsewhere_by_ssh(node: Node, sshd: Sshd) -> None:
    code, out = node.run(sshd.script("root@127.0.0.1", "'id -u; echo there'"))
    assert (code, out) == (0, "0\nthere\n"), sshd.log.read_text()


@root
def test_ssh_asks_for_the_submitters_account_where_none_is_named(node: Node, sshd: Sshd) -> None:
    code, _ = node.run(sshd.script("127.0.0.1", "true"))
    assert code == 255 and "Invalid user ann from" in sshd.log.read_text()


@root
def test_a_job_without_a_name_runs_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the kernel refuses mounts: /etc/group cannot be read by any path once its name is another one.
    monkeypatch.setattr(accounts, "FILES", ("/etc/passwd", "/etc/there-is-no-such-file"))
    above = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    above.chmod(0o755)
    (above / "state").mkdir()
    try:
        made = Node(above / "state", "user, as root")
        code, out = made.run("whoami; echo $USER; echo on")
        assert (code, out.splitlines()) == (0, ["ann", "on", f"whoami: cannot find name for user ID {out.split()[-1]}"])
        assert available.nameless().endswith("to be a service: sudo grid agent install")
        made.close()
    finally:
        shutil.rmtree(above)
