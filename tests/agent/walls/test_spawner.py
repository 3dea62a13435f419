"""What a job can reach of its node behind each kind of walls, and what it cannot do to others.

The supervisor runs as a user of its own, in a directory where that user can make nothing above it, as a service does;
for `user` with the capabilities of the unit, or as root. It is spoken to as its agent does.
"""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.sockets import FILES_SOCKET
from distributed_grid.agent.walls import accounts, available, enclosure, files_socket, forkserver
from distributed_grid.runtime.unix import read
from tests.grid_fixture import until
from tests.processes import allocation_of

AGENT = 60_777
"""A user that no machine has."""
VIDEO, EVERYONE = 60_778, 60_779
"""Groups that no machine has: of a GPU's device node that is closed to others, and of one that is not."""
PATH = "/usr/bin:/bin"
ADD_KEY, KEYCTL = {"x86_64": (248, 250)}.get(os.uname().machine, (217, 219))
SESSION_KEYRING = -3
pytestmark = pytest.mark.root


SUPERVISOR = f"""
import ctypes, os, resource, sys
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.supervisor import loop, main, procs, spawners
from distributed_grid.agent.walls import accounts, available, enclosure, files_socket, forkserver, syscalls
state, walls, uid, accounts.FOLDER, *accounts.FILES = *sys.argv[1:3], int(sys.argv[3]), *sys.argv[4:]
syscalls.leave_session_keyring()
ctypes.CDLL(None).syscall({ADD_KEY}, b"user", b"agents", b"SECRET", 6, {SESSION_KEYRING})
os.closerange(3, 1024)  # as who starts it does
os.umask(0o077)
os.setgroups([])
os.setresgid(uid, uid, uid)
ctypes.CDLL(None).prctl(8, int(walls == "user"), 0, 0, 0)  # keep capabilities, as in the service's unit
os.setresuid(uid, uid, uid)
if walls == "user" and uid:
    syscalls.set_capabilities(*3 * [forkserver.PRIVILEGES])
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a fresh process of this user lets itself be looked into
os.environ["GRID_SECRET"] = "SECRET"
sys.exit(main.main(["", state, str(1 << 28), "none", "", walls]))
"""
"""The interpreter of this machine may be where that user may not look: all of it is loaded before, also `resource`,
which os.wait4 loads. No fork of ours: it forks itself, each time with all the memory that pytest has."""


class Node:
    """A supervisor with these walls."""

    def __init__(self, state: Path, walls: str) -> None:
        self.state, self.as_root = state, walls == "user, as root"
        self.walls = walls.partition(",")[0]
        self._count = 0
        self.uid = 0 if self.as_root else AGENT
        state.chmod(0o711)
        for name in ("allocs", "identity"):
            (state / name).mkdir(mode=0o700)
        (state / "identity" / "own.key").write_text("SECRET")
        os.chmod(state / "identity" / "own.key", 0o600)
        for path in [state, *state.rglob("*")]:
            os.chown(path, self.uid, self.uid)
        self._begun: set[str] = set()
        self._over: dict[str, dict[str, Any]] = {}
        self.begin()

    def begin(self) -> None:
        """Start it, and be its agent."""
        argv = [sys.executable, "-c", SUPERVISOR, str(self.state), self.walls, str(self.uid), accounts.FOLDER]
        argv += accounts.FILES  # a test may have others than there are
        log = os.open(self.state / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchown(log, self.uid, self.uid)
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)
        os.close(log)
        self.pid = self.process.pid
        self.wire = until(self.dial, "the supervisor listens")
        hello = self.hear()
        assert hello["walls"] == self.walls
        self._over |= {one["id"]: one["outcome"] for one in hello["known"] if one["outcome"] is not None}

    def replace(self, between: Callable[[], object] = lambda: None) -> None:
        """The supervisor is killed, and after this another one takes over."""
        self.process.kill()
        self.process.wait()
        self.wire.close()
        between()
        self.begin()

    def dial(self) -> Any:
        wire = socket.socket(socket.AF_UNIX)
        wire.settimeout(60)
        try:
            wire.connect(str(self.state / "supervisor.sock"))
        except (FileNotFoundError, ConnectionRefusedError):  # it is bound a moment before it listens
            return None
        return wire.makefile("rwb")

    def hear(self) -> dict[str, Any]:
        said = self.wire.readline()
        assert said, self.log()
        heard: dict[str, Any] = json.loads(said)
        return heard

    def log(self) -> str:
        return (self.state / "supervisor.log").read_text()

    def tell(self, **message: Any) -> None:
        self.wire.write(json.dumps(message).encode() + b"\n")
        self.wire.flush()

    def launch(
        self,
        script: str,
        who: str = "ann",
        pids: int = 0,
        limit: float = 60.0,
        gpus: bool = False,
        stdin: bool = False,
    ) -> str:
        """Begin it in a shell as a job of this submitter."""
        self._count += 1
        key = f"j-{os.getpid()}-{self._count}.1"
        (self.state / "allocs" / key).mkdir(mode=0o700)
        os.chown(self.state / "allocs" / key, self.uid, self.uid)
        self.tell(
            op="launch", id=key, argv=["/bin/sh", "-c", script], cwd="", cores=[], limit=limit, grace=1.0, lease=0.0,
            env={"PATH": PATH, "GRID_ALLOCATION_ID": key}, lease_from=0.0, submitter=who, limits={"pids": pids},
            gpus=gpus, stdin=stdin,
        )  # fmt: skip
        return key

    def outcome(self, key: str) -> dict[str, Any]:
        while key not in self._over:
            self._take(self.hear())
        return self._over[key]

    def ended(self, key: str) -> tuple[int, str]:
        """Its exit code (-1: none), and what it wrote, or how it ended."""
        outcome = self.outcome(key)
        return outcome.get("code", -1), self.wrote(key) or outcome["text"]

    def is_known(self, key: str) -> None:
        """Wait until it is said to run: it is in the journal then."""
        while key not in self._begun:
            self._take(self.hear())

    def _take(self, said: dict[str, Any]) -> None:
        if said["op"] == "started":
            self._begun.add(said["id"])
        elif said["op"] == "exited":
            self._over[said["id"]] = said["outcome"]

    def wrote(self, key: str) -> str:
        streams = [self.state / "allocs" / key / name for name in ("stdout", "stderr")]
        return "".join(path.read_text() for path in streams if path.exists())

    def run(self, script: str, **how: Any) -> tuple[int, str]:
        return self.ended(self.launch(script, **how))

    def started(self, key: str) -> int:
        """The pid of its spawner, when it has written something."""
        until(lambda: self.wrote(key), "it runs")
        main = next(pid for pid in procs.all_pids() if allocation_of(pid) == key)
        seen = procs.stat(main)
        assert seen is not None
        while allocation_of(seen.parent) == key:
            main, seen = seen.parent, procs.stat(seen.parent) or seen
        return seen.parent

    def close(self) -> None:
        self.tell(op="leave")
        self.process.wait()
        self.wire.close()


@pytest.fixture(scope="module", params=["user", "user, as root", "namespace", "landlock"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if request.param == "landlock" and "Landlock" in (why := enclosure.why_no_landlock("/var/lib/grid")):
        pytest.skip(why)
    above = Path(tempfile.mkdtemp(dir="/var/lib", prefix="grid-test-"))
    above.chmod(0o755)
    (above / "state").mkdir()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(accounts, "FOLDER", str(above / "dev"))
            make_gpus(above / "dev")
            made = Node(above / "state", request.param)
            yield made
            made.close()
    finally:
        shutil.rmtree(above)


def make_gpus(folder: Path) -> None:
    """Device nodes as drivers make them, with /dev/null behind them."""
    (folder / "dri").mkdir(parents=True)
    for name, group, mode in (("dri/renderD128", VIDEO, 0o660), ("nvidia0", EVERYONE, 0o666), ("kfd", 0, 0o660)):
        os.mknod(folder / name, stat.S_IFCHR, os.makedev(1, 3))
        os.chown(folder / name, 0, group)
        os.chmod(folder / name, mode)
    (folder / "nvidia.log").touch()  # no device
    os.chown(folder / "nvidia.log", 0, EVERYONE)
    os.chmod(folder / "nvidia.log", 0o660)


def test_a_job_opens_the_device_nodes_of_gpus_if_it_was_granted_some_and_no_other_job_does(node: Node) -> None:
    if node.walls != "user":
        pytest.skip("elsewhere a job has the groups of the agent's user")
    names = "dri/renderD128 nvidia0 kfd"
    look = f"id -G; cd {node.state.parent}/dev; for one in {names}; do true <>$one && echo $one; done"
    code, out = node.run(f"exec 2>/dev/null; {look}", gpus=True)
    own, *more = out.splitlines()[0].split()
    assert (accounts.is_slot_uid(int(own)), more, out.split()[2:]) == (
        True,
        [str(VIDEO)],
        ["dri/renderD128", "nvidia0"],
    )
    code, out = node.run(f"exec 2>/dev/null; {look}")
    assert accounts.is_slot_uid(int(out.splitlines()[0])) and out.split()[1:] == ["nvidia0"]


def test_a_job_has_no_open_files_but_its_three_streams(node: Node) -> None:
    code, out = node.run("ls /proc/$$/fd; readlink /proc/$$/fd/0")
    assert (code, out.split()) == (0, ["0", "1", "2", "/dev/null"])


def test_a_job_reads_its_standard_input_behind_any_walls(node: Node) -> None:
    key = node.launch("ls /proc/$$/fd; read -r line; echo $line; exec cat /dev/stdin", stdin=True)
    until(lambda: node.wrote(key), "it runs")
    with open(node.state / "allocs" / key / "stdin", "wb", buffering=0) as pipe:
        pipe.write(b"one\ntwo\n")
        until(lambda: node.wrote(key).count("\n") == 5, "it has read what is there")
    node.tell(op="end-input", id=key)
    assert node.ended(key) == (0, "0\n1\n2\none\ntwo\n")


def test_a_job_reads_the_end_of_its_input_by_name_after_its_supervisor_was_killed(node: Node) -> None:
    key = node.launch("echo up; while [ ! -e go ]; do sleep 0.05; done; exec cat /dev/stdin", stdin=True)
    node.is_known(key)
    until(lambda: node.wrote(key), "it runs")
    path = node.state / "allocs" / key / "stdin"
    with open(path, "wb", buffering=0) as pipe:
        pipe.write(b"all\n")
    node.tell(op="end-input", id=key)
    until(lambda: not path.exists(), "its input has ended")
    node.replace()
    (folder,) = (node.state / "jobs").glob(f"*/{key}")
    (folder / "go").touch()
    assert node.ended(key) == (0, "up\nall\n")


def test_a_job_cannot_look_into_what_started_it(node: Node) -> None:
    for what in ("environ", "mem", "fd/", "cwd/", "maps"):
        code, out = node.run(f"ls /proc/$PPID/{what} && cat /proc/$PPID/{what}")
        assert code and "denied" in out and "SECRET" not in out, (what, out)


@pytest.mark.parametrize(
    "script",
    [
        "cat {state}/identity/own.key",
        "cat {state}/journal",
        "echo x >> {state}/journal",
        "rm {state}/identity/own.key",
        "mv {state}/identity/own.key .",
        "ln {state}/identity/own.key mine && cat mine",
        "echo x > {state}/new",
        "echo x > {state}/recalls/new",
        "ln -s {state}/identity/own.key way; cat way",
        "cat /proc/self/root{state}/identity/own.key",
        "cat {state}/allocs/*/stdout",
        "echo x >> {state}/slots",
        "kill -9 {pid}",
    ],
)
def test_a_job_reaches_nothing_of_the_agent(node: Node, script: str) -> None:
    key = node.launch("true")
    node.ended(key)
    code, out = node.run(script.format(state=node.state, pid=node.pid))
    refusals = ("denied", "not permitted", "cross-device", "No such", "Read-only", "no such", "Directory nonexistent")
    assert code and any(word in out for word in refusals), (code, out)
    assert (node.state / "identity" / "own.key").read_text() == "SECRET"
    assert node.run("echo still obeyed") == (0, "still obeyed\n")


def test_a_job_changes_neither_rights_nor_times_of_what_is_the_agents(node: Node) -> None:
    if node.walls == "landlock":
        pytest.skip("Landlock has no say on chmod: such a node runs its owner's jobs only")
    key = node.state / "identity" / "own.key"
    before = key.stat()
    for script in (f"chmod 777 {key}", f"touch -d 2001-01-01 {key}", f"chmod 777 {node.state} {node.state}/journal"):
        code, out = node.run(script)
        assert code or node.walls == "namespace", out  # there it has a directory of its own in that place
    after = key.stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)
    assert node.state.stat().st_mode & 0o777 == 0o711


def test_the_process_that_reads_the_files_of_jobs_is_taken_for_want_of_memory_as_jobs_are(node: Node) -> None:
    code, score = node.run("cat /proc/self/oom_score_adj")
    before = procs.descendants([node.pid]).keys()
    (slot, *_) = (node.state / "jobs").iterdir()
    wire = socket.socket(socket.AF_UNIX)
    wire.connect(str(node.state / FILES_SOCKET))
    wire.sendall(json.dumps({"slot": slot.name, "groups": []}).encode() + b"\n")
    caller = files_socket.Files(wire)
    try:
        caller.find(files_socket.Root(path=os.fsencode(slot)), ["*"])
        readers = procs.descendants([node.pid]).keys() - before
        assert {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in readers} == {score}
    finally:
        caller.close()


def test_a_job_works_as_it_would_without_walls(node: Node) -> None:
    works = "echo a > x && cat x && mkdir d && mv x d/y && cat d/y && echo b >> /dev/stderr && touch /dev/shm/$$"
    more = "rm /dev/shm/$$; cat /etc/passwd > /dev/null && f=$(mktemp) && echo c > $f && cat $f && rm $f; ulimit -c"
    code, out = node.run(f"{works} && {more}")
    assert (code, out.splitlines()[:3], out.splitlines()[-1]) == (0, ["a", "a", "c"], "b")


def test_nothing_of_a_job_outlives_it_however_it_hides(node: Node) -> None:
    nap = str(1000 + os.getpid())  # by which it is known here: nobody else on this machine sleeps for so long
    hides = f"(setsid sh -c 'exec env -i sleep {nap} >/dev/null 2>&1 </dev/null' &) ; sleep 0.2"
    code, _ = node.run(f"{hides}; exit 7")
    left = [pid for pid in procs.all_pids() if f"sleep\0{nap}".encode() in read(f"/proc/{pid}/cmdline")]
    assert (code, left) == (7, [])


def test_a_fork_bomb_is_bounded_and_ended(node: Node) -> None:
    if node.walls == "landlock":
        pytest.skip("only a control group could bound it there")
    ours = f"of {os.getpid()}"  # other runs on this machine may have bombs, too
    bomb = f"b() {{ b | b & }}; : {ours}; b; echo up; sleep 1000"
    code, _ = node.run(bomb, pids=40, limit=2.0)
    assert code in (-1, 2), "its time was up, or its shell could make no more"
    assert [pid for pid in procs.all_pids() if ours.encode() in read(f"/proc/{pid}/cmdline")] == []
    assert node.run("echo next", pids=40) == (0, "next\n"), node.log()


def test_what_is_still_to_end_of_one_job_does_not_end_the_next(node: Node) -> None:
    if node.walls != "user":
        pytest.skip("only there a job is ended by its user id")
    node.run("true")
    children = {pid: procs.stat(pid) for pid in procs.descendants([node.pid])}
    server = min((seen.start, pid) for pid, seen in children.items() if seen and seen.parent == node.pid)[1]
    os.kill(server, signal.SIGSTOP)  # as one that gets no processor: what it is told to end, it ends late
    large = "(head -c 200000000 /dev/zero; echo up >&2; sleep 1000) | tail -n 1"  # the kernel needs a while to free it
    assert node.run(large, limit=2.0)[0] == -1
    following = node.launch("echo up; sleep 1; exit 7")
    os.kill(server, signal.SIGCONT)
    assert node.ended(following) == (7, "up\n"), node.log()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_spawner_that_its_own_job_ends_or_stops_harms_nobody_else(node: Node, number: int) -> None:
    if node.walls == "namespace":
        pytest.skip("the spawner is the first process of its pid namespace: its jobs cannot signal it")
    neighbour = node.launch("echo up; sleep 3; exit 5", who="bob")
    spawner = node.started(neighbour)
    code, _ = node.run(f"sleep 0.2; kill -{int(number)} $PPID; sleep 0.2; exit 3")
    assert code == 3, "its own code is known all the same"
    seen = procs.stat(spawner)
    assert seen is not None and seen.state != "Z"
    assert node.ended(neighbour) == (5, "up\n")
    assert node.run("echo again") == (0, "again\n")


def test_a_job_that_kills_its_spawner_at_once_has_its_own_exit_code(node: Node) -> None:
    """Before the spawner can tell of it, or note how it ended: some of these end before anybody has seen them."""
    if node.walls == "namespace":
        pytest.skip("the spawner is the first process of its pid namespace: its jobs cannot signal it")
    begun = [node.launch(f"kill -9 $PPID; exit {code}", who=f"u{code}") for code in range(8)]
    assert [node.ended(key)[0] for key in begun] == [*range(8)]


def test_processes_of_the_agents_user_do_not_count_against_a_jobs_limit(node: Node) -> None:
    thirty = "for number in $(seq 30); do sleep 60 & done"
    # Made by one of them: Python forks for each child that is to be another user, with all the memory that pytest has.
    with subprocess.Popen(
        ["sh", "-c", f"{thirty}; echo up; wait"], user=node.uid, process_group=0, stdout=subprocess.PIPE
    ) as others:
        try:
            assert others.stdout is not None and others.stdout.readline() == b"up\n"
            assert node.run("(echo a); (echo b)", pids=20) == (0, "a\nb\n")
        finally:
            os.killpg(others.pid, signal.SIGKILL)


def test_a_job_cannot_end_its_pid_namespace_from_within(node: Node) -> None:
    if node.walls != "namespace":
        pytest.skip("there is none")
    assert node.run("kill -9 1; kill -STOP 1; echo on") == (0, "on\n")


def test_submitters_do_not_see_each_others_processes_or_files(node: Node) -> None:
    if node.walls == "landlock":
        pytest.skip("they are one user there: such a node runs its owner's jobs only")
    victim = node.launch("echo secret > mine; pwd; sleep 4; cat mine; exit 6", who="bob")
    until(lambda: node.wrote(victim), "it runs")
    folder = node.wrote(victim).split()[0]
    main = next(pid for pid in procs.all_pids() if allocation_of(pid) == victim)
    for script in (f"kill -9 {main}", f"cat {folder}/mine", f"echo x > {folder}/mine", f"cat /proc/{main}/environ"):
        code, out = node.run(f"export GRID_ALLOCATION_ID={victim}; {script}")
        assert code and "secret" not in out, (script, out)
    assert node.ended(victim)[0] == 6 and node.wrote(victim).endswith("secret\n")


def test_a_job_has_the_keys_neither_of_who_started_the_agent_nor_of_other_jobs(node: Node) -> None:
    if shutil.which("perl") is None:
        pytest.skip("needs perl")

    def script(strings: str, call: str) -> str:
        return f"perl -e 'my @s = qw({strings}); print syscall({call}) > 0 ? qq(yes\\n) : qq(no\\n)'"

    add = script("user bobs x", f"{ADD_KEY}, @s, 1, {SESSION_KEYRING}")
    find = [script(f"user {name}", f"{KEYCTL}, 10, {SESSION_KEYRING}, @s, 0") for name in ("bobs", "agents")]
    mine = node.launch(f"{add}; sleep 1000", who="bob", limit=5.0)
    until(lambda: node.wrote(mine), "it has a key")
    assert node.wrote(mine) == "yes\n"
    assert node.run("; ".join(find)) == (0, "no\nno\n")
    node.tell(op="stop", id=mine, cause="cancelled", text="", grace=0.0)
    node.ended(mine)


def test_a_stranger_in_namespaces_has_a_name_and_a_home_where_ssh_looks(node: Node) -> None:
    if node.walls != "namespace":
        pytest.skip("tests/agent/walls/test_accounts.py has those with a user of their own")
    code, out = node.run(
        "whoami; getent passwd $(id -u) | cut -d: -f6; echo $HOME; echo $USER; id -gn; touch ~/new && ls ~"
    )
    name, listed, home, user, group, *files = out.splitlines()
    assert (code, name, user, group, listed) == (0, "ann", "ann", "ann", home)
    assert "new" in files


def test_a_job_that_crashes_leaves_no_core(node: Node) -> None:
    script = (
        "ulimit -Sc; ulimit -Hc; ulimit -c unlimited 2>/dev/null || echo refused; (sh -c 'kill -6 $$') 2>/dev/null; ls"
    )
    assert node.run(f"{{ {script}; }} 2>/dev/null") == (0, "0\n0\nrefused\n")


def test_a_job_is_not_let_in_where_the_agent_gives_orders(node: Node) -> None:
    if shutil.which("perl") is None:
        pytest.skip("needs perl")
    for name in ("supervisor.sock", "files.sock"):
        dial = f'$s = IO::Socket::UNIX->new(Peer => "{node.state}/{name}") or exit 4; sysread($s, $b, 100);'
        code, out = node.run(f"perl -MIO::Socket::UNIX -e '{dial} print length($b), qq(\\n);'")
        assert (code, out.strip()) in ((4, "exited with code 4"), (0, "0")), (name, out)
    assert node.run("echo still obeyed") == (0, "still obeyed\n")


def test_the_next_supervisor_knows_the_exit_codes_of_what_ran_and_of_what_ended_meanwhile(node: Node) -> None:
    busy = "count=0; while [ $count -lt 200000 ]; do count=$((count+1)); done"  # some 0.2 s of CPU time
    waits = f"while [ ! -e go ]; do sleep 0.05; done; {busy}"
    ends, stays = node.launch(f"{waits}; exit 7"), node.launch(f"{waits}; exit 9", who="bob")
    for one in (ends, stays):
        node.is_known(one)
    (folder,) = (node.state / "jobs").glob(f"*/{ends}")

    def end() -> None:
        (folder / "go").touch()
        until(lambda: not [pid for pid in procs.all_pids() if allocation_of(pid) == ends], "it has ended")

    node.replace(end)
    assert node.ended(ends)[0] == 7
    (other,) = (node.state / "jobs").glob(f"*/{stays}")
    (other / "go").touch()
    assert node.ended(stays)[0] == 9
    for one in (ends, stays):
        assert node.outcome(one)["cpu_seconds"] > 0.1 and node.outcome(one)["peak_memory"] > 0
    assert node.run("echo next") == (0, "next\n")


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"uid": 0, "gid": 0, "groups": []}, "user 0 is none of a slot"),
        ({"uid": accounts.FIRST_UID, "gid": 0, "groups": []}, "groups [0] are not"),
        ({"uid": accounts.FIRST_UID, "gid": accounts.FIRST_UID, "groups": [42]}, "groups [42] are not"),
    ],
    ids=["root", "group of root", "group of shadow"],
)
def test_the_fork_server_of_a_service_makes_nobody_a_person_or_root(
    node: Node, user: dict[str, object], why: str
) -> None:
    if node.walls != "user" or node.as_root:
        pytest.skip("needs the capabilities of the unit")
    id = f"j-{abs(hash(why))}.1"
    node.tell(op="launch", id=id, argv=["/usr/bin/id"], cwd="/", cores=[], limit=9.0, grace=1.0, lease=0.0,
              env={}, lease_from=0.0, submitter="ann", user=user, limits={})  # fmt: skip
    code, said = node.ended(id)
    assert (code, why in said) == (-1, True), said


def test_only_the_fork_server_of_a_service_has_capabilities(node: Node) -> None:
    if node.walls != "user" or node.as_root:
        pytest.skip("needs the capabilities of the unit")
    node.run("true")
    server = until(lambda: only_one_with_rights(node), "what the fork server makes has become a slot's user")
    assert rights(node.pid) == (0, 0, 0, 0)
    assert rights(server) == (0, forkserver.PRIVILEGES, forkserver.PRIVILEGES, 0)


def only_one_with_rights(node: Node) -> int:
    """The one process below the supervisor that has a capability; 0 if there are more."""
    found = [pid for pid in procs.descendants([node.pid]) if any(rights(pid))]
    return found[0] if len(found) == 1 else 0


def rights(pid: int) -> tuple[int, ...]:
    """Its inheritable, permitted, effective and ambient capabilities; none of one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    status = dict(line.split(":\t") for line in lines)
    return tuple(int(status[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Amb"))


def test_a_supervisor_that_can_have_no_other_fork_server_leaves_its_jobs_to_the_next_one(node: Node) -> None:
    if node.walls != "user" or node.as_root:
        pytest.skip("any other one starts another fork server")
    runs = node.launch("echo up; sleep 2; exit 9")
    until(lambda: node.wrote(runs), "it runs")
    server = until(lambda: only_one_with_rights(node), "the fork server is at rest")
    os.kill(server, signal.SIGKILL)
    assert node.process.wait() == 0
    assert "the fork server was killed" in node.log()
    node.wire.close()
    node.begin()
    assert node.ended(runs) == (9, "up\n")
    assert node.run("echo next") == (0, "next\n")


def test_each_slot_has_a_user_of_its_own(node: Node) -> None:
    if node.walls != "user":
        pytest.skip("needs walls user")
    one, other = (node.launch("id -u; sleep 1", who=who) for who in ("ann", "bob"))
    found = {int(node.ended(key)[1]) for key in (one, other)}
    assert len(found) == 2 and all(map(accounts.is_slot_uid, found))


def test_it_is_said_why_walls_cannot_be_built(tmp_path: Path) -> None:
    assert available.why_not("namespace", tmp_path).startswith("root owns all")
    tmp_path.chmod(0o700)
    (tmp_path / "state").mkdir()
    assert available.why_not("user", tmp_path / "state").endswith("and the directories of jobs are below it")
    assert (
        enclosure.why_no_landlock("/var/lib/grid") == "the agent's user can write in /, above it"
    )  # since we are root


def test_what_a_job_leaves_outside_of_its_directory_goes_after_it(node: Node) -> None:
    if node.walls == "landlock":
        pytest.skip("who left it cannot be told there: it is all one user's")
    name = f"left-{os.getpid()}"
    others = Path(f"/dev/shm/{name}-of-another")
    others.write_text("stays")
    leaves = f"""
        for folder in /tmp /var/tmp /dev/shm; do
            mkdir -p $folder/{name}/below; echo x > $folder/{name}/below/file; chmod 0 $folder/{name}
            ln -s /etc $folder/{name}-link
        done
        mkdir /tmp/grid-r-{name}; ipcmk -Q; ipcmk -M 4096; ipcmk -S 1"""
    listed = f"ls -d /tmp/*{name}* /var/tmp/*{name}* /dev/shm/{name} 2>&-; ipcs -a | grep -c $(id -u)"
    try:
        assert node.run(leaves)[0] == 0
        seen = [""]
        for _ in range(100):
            seen.append(node.run(f"sleep 0.1; {listed}; true")[1])
            if seen[-1] == f"/tmp/grid-r-{name}\n0\n":
                break
        assert seen[-1] == f"/tmp/grid-r-{name}\n0\n", seen[-1]
        assert others.read_text() == "stays"
    finally:
        shutil.rmtree(
            f"/tmp/grid-r-{name}", ignore_errors=True
        )  # spared as long as its slot lives, and here that is killed
        others.unlink()


@pytest.mark.parametrize("mode", ["000", "500"])
def test_a_job_that_closes_the_directory_of_its_slot_harms_no_later_one(node: Node, mode: str) -> None:
    assert node.run(f'chmod {mode} "$(dirname "$GRID_WORKDIR")" && echo closed') == (0, "closed\n")
    assert node.run("touch made && ls") == (0, "made\n")


def test_a_spawner_whose_limits_a_job_changed_gets_no_other_job(node: Node) -> None:
    assert node.run("ulimit -n; prlimit --pid $PPID --nofile=3:3 || exit 9")[0] == 0
    code, files = node.run("ulimit -n")
    assert code == 0 and int(files) > 3
    assert "its spawner is replaced (a process of its own user changed its limits" in node.log()


def test_a_job_that_takes_back_its_score_for_the_oom_killer_gets_it_again(node: Node) -> None:
    score = "/proc/$$/oom_score_adj"
    code, given = node.run(f"cat {score}")
    lowers = f"(echo 0 > {score}) 2>&-; until [ $(cat {score}) = {given.strip()} ]; do sleep 0.1; done"
    assert node.run(lowers, limit=10.0) == (0, "")


def test_what_the_kernel_counts_for_a_user_as_a_whole_is_shared_out(node: Node) -> None:
    if node.walls != "namespace":
        pytest.skip("slots have user ids of their own there, or no namespaces")
    assert node.run("cat /proc/sys/user/max_user_namespaces /proc/sys/user/max_pid_namespaces") == (0, "256\n256\n")
