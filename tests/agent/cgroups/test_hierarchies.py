"""Limits that the kernel keeps: real cgroups, of whichever version this machine lets us make, and of version 2 in a
kernel of our own (user-mode-linux), where also a whole machine may run out of memory."""

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.hierarchies import Survey, described, survey
from distributed_grid.protocol.jobs import Cause, JobLimits, exit_status
from distributed_grid.protocol.resources import MIB, Grant
from tests.agent.conftest import Bench, removed

ROOT = Path(__file__).parents[3]
OURS = os.environ.get("GRID_TEST_KERNEL") == "ours"
"""Set inside of the kernel that the last test here starts."""
PYTHON = sys.executable
FIRST, SECOND = sorted(os.sched_getaffinity(0))[0], sorted(os.sched_getaffinity(0))[-1]

confines = pytest.mark.asyncio(loop_scope="module")
"""That of the supervisor which all those tests have."""


def settled(setting: str) -> Survey:
    """What a supervisor would find."""
    if OURS:
        return survey(setting)
    code = "import json, sys; from distributed_grid.agent.cgroups.hierarchies import survey"
    code += "; print(json.dumps(survey(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, setting], capture_output=True, text=True, check=True)
    places, missing, _ = json.loads(done.stdout)
    return Survey(places, missing)


class Confined:
    """A bench whose supervisor makes groups below `setting`, and where those are."""

    def __init__(self, bench: Bench, setting: str, places: dict[str, Place]) -> None:
        self.bench = bench
        self.setting = setting
        self.places = places

    def needs(self, controller: str) -> str:
        """Where its groups go; skips the test where it cannot be used."""
        if controller not in self.places:
            pytest.skip(f"no cgroup of {controller} can be made here: {self.bench.launcher.limits}")
        return str(self.places[controller][1])

    def groups(self) -> list[str]:
        """Those of jobs: slots have others."""
        found = [path for _, base in self.places.values() for path in Path(base).iterdir() if path.is_dir()]
        return [str(path) for path in found if not path.name.startswith("slot-")]


def hidden_memory() -> str:
    """The memory hierarchy of version 1, where we are in somebody's group of it: not ours to divide, nor to leave."""
    own = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ":/")
    return "" if own.endswith(":/") else "/sys/fs/cgroup/memory"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def supervised(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Confined]:
    """One for all tests here: to start a supervisor takes longest, and in a kernel of our own seconds."""
    setting, folder = f"/grid-test-{secrets.token_hex(4)}", tmp_path_factory.mktemp("confined")
    with pytest.MonkeyPatch.context() as patched:
        if (hide := hidden_memory()) and os.geteuid() == 0:
            python = folder / "python"
            python.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'umount -l {hide}; exec {PYTHON} "$@"\' sh "$@"\n')
            python.chmod(0o755)
            patched.setattr(sys, "executable", str(python))
        found = settled(setting)
        if not found.places:
            pytest.skip(f"no cgroup can be made here: {sorted(set(found.missing.values()))}")
        made = Bench(folder / "node", cgroup=setting, nice=1)
        made.dir.mkdir(mode=0o700)
        await made.start()
        try:
            yield Confined(made, setting, found.places)
        finally:
            await made.close()
            bases = [Path(mount + setting) for mount in {*hierarchies.mounted().values()}]
            await made.until(lambda: all(removed(base) for base in bases))


@pytest_asyncio.fixture(loop_scope="module")
async def confined(supervised: Confined) -> AsyncIterator[Confined]:
    """The next test finds it as this one does, without jobs or groups."""
    yield supervised
    bench = supervised.bench
    for id in [*bench.launcher.pids]:
        bench.stop(id, grace=0)
    await bench.until(lambda: not bench.launcher.pids and supervised.groups() == [])


# --- what is there ---------------------------------------------------------------------------------------------------


def test_without_cgroups_it_is_said_who_keeps_each_limit_and_why() -> None:
    found = survey("none")
    assert described(found) == {"memory": "polling", "pids": "polling", "cpuset": "polling", "cpu": "none"}
    assert set(found.missing.values()) == {"switched off (agent.cgroup: none)"}


@pytest.mark.root
def test_mounts_are_read_whatever_others_are_called(tmp_path: Path) -> None:
    code = """
import os, sys
from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.walls import accounts, syscalls
before = hierarchies.mounted()
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
for number, name in enumerate([b"\\xff", b"a\\rb", b"a\\x0cb", b"a\\xc2\\x85b", b"a - b"]):
    path = os.fsdecode(os.path.join(os.fsencode(sys.argv[1]), name))
    os.mkdir(path)
    syscalls.mount("tmpfs", path, "tmpfs")
assert hierarchies.mounted() == before, hierarchies.mounted()
copy = os.path.join(sys.argv[1], "passwd")
open(copy, "w").close()
os.chown(copy, 12345, 12345)
syscalls.mount(copy, "/etc/passwd", flags=syscalls.MS_BIND)
os.seteuid(12345)
assert "is not of the unit" in accounts.why_no_copy("/etc/passwd")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@confines
async def test_all_groups_together_stand_back_for_the_rest_of_the_machine(confined: Confined) -> None:
    base = Path(confined.needs("cpu"))
    await confined.bench.run("true", grant=Grant(memory=50 * MIB))  # one with a limit is in its groups from its start
    files = {base / "cpu.weight.nice": "1", base / "cpu.shares": "819"}
    assert [file.read_text().strip() == told for file, told in files.items() if file.exists()] == [True]


@confines
async def test_the_agent_is_told_who_keeps_each_limit(confined: Confined) -> None:
    for name, how in confined.bench.launcher.limits.items():
        place = confined.places.get(name)
        assert how == (f"cgroup v{place[0]}" if place else "none" if name == "cpu" else "polling")


# --- what bites ------------------------------------------------------------------------------------------------------


@confines
async def test_memory_that_only_the_kernel_sees_counts_too(confined: Confined) -> None:
    confined.needs("memory")
    other = confined.bench.launch("sleep", "1000", grant=Grant(memory=300 * MIB))
    await confined.bench.started(other)
    write = "dd if=/dev/zero of=/dev/shm/grid-test-$$ bs=1M count=200; rm /dev/shm/grid-test-$$"
    outcome = await confined.bench.run("sh", "-c", write, grant=Grant(memory=100 * MIB))
    for left in Path("/dev/shm").glob("grid-test-*"):
        left.unlink(missing_ok=True)
    assert (outcome.cause, exit_status(outcome)) == (Cause.OUT_OF_MEMORY, 137)
    assert "used more memory than its limit of 100M (peak 1" in outcome.text
    assert len(confined.bench.alive(other)) == 1


@confines
async def test_processes_over_the_limit_are_not_made_and_the_job_is_told_why(
    confined: Confined, tmp_path: Path
) -> None:
    confined.needs("pids")
    code = """
import os, pathlib, time
while not pathlib.Path('go').exists(): time.sleep(0.01)
for _ in range(50):
    if os.fork() == 0: time.sleep(1000)
"""
    id = confined.bench.launch(PYTHON, "-c", code, limits=JobLimits(pids=10), directory=tmp_path)
    group = Path(confined.needs("pids"), id, "cgroup.procs")
    await confined.bench.until(lambda: group.exists() and group.read_text().strip())
    (tmp_path / "go").touch()
    outcome = await confined.bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.TOO_MANY_PROCESSES, 1)
    assert re.match(r"its limit of 10 processes and threads kept it \d+ times from making another", outcome.text)


@confines
async def test_a_job_cannot_leave_its_cores(confined: Confined, tmp_path: Path) -> None:
    confined.needs("cpuset")
    code = f"""
import os, pathlib, time
while not pathlib.Path('go').exists(): time.sleep(0.01)
try: os.sched_setaffinity(0, [{SECOND}])
except OSError as error: print('refused', flush=True)
print(os.sched_getaffinity(0), flush=True)
"""
    id = confined.bench.launch(PYTHON, "-c", code, grant=Grant(cores=(FIRST,)), directory=tmp_path)
    group = Path(confined.needs("cpuset"), id, "cgroup.procs")
    await confined.bench.until(lambda: group.exists() and group.read_text().strip())
    (tmp_path / "go").touch()
    lines = await confined.bench.wrote(id, lines=1 if FIRST == SECOND else 2)
    assert lines == ([str({FIRST})] if FIRST == SECOND else ["refused", str({FIRST})])


@confines
async def test_a_choice_among_its_cores_outlives_the_entry_into_a_group(confined: Confined) -> None:
    confined.needs("cpuset")
    if FIRST == SECOND:
        pytest.skip("needs two cores")
    code = f"import os, time; os.sched_setaffinity(0, [{SECOND}]); print('chose', flush=True); time.sleep(1000)"
    id = confined.bench.launch(PYTHON, "-c", code, grant=Grant(cores=(FIRST, SECOND)))
    pid = await confined.bench.started(id)
    await confined.bench.wrote(id)
    group = Path(confined.needs("cpuset"), id, "cgroup.procs")
    await confined.bench.until(lambda: group.exists() and group.read_text().strip() == str(pid))
    await confined.bench.until(lambda: os.sched_getaffinity(pid) == {SECOND})


@confines
async def test_a_cpu_limit_holds_also_where_more_is_idle(confined: Confined) -> None:
    confined.needs("cpu")
    code = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"
    share = Grant(shared_core=FIRST, shared_milli=250)
    outcome = await confined.bench.run(PYTHON, "-c", code, grant=share, limits=JobLimits(cpu=True))
    # Without the limit it were all of its two seconds. Some may pass before it is in its group.
    assert outcome.cpu_seconds < 0.25 * outcome.seconds + 0.5


# --- groups come and go ----------------------------------------------------------------------------------------------


@confines
async def test_a_group_goes_with_its_job_and_outlives_a_killed_supervisor(confined: Confined) -> None:
    bench = confined.bench
    id = bench.launch("sh", "-c", "sleep 1000 & wait", grant=Grant(memory=50 * MIB), limits=JobLimits(pids=20))
    short = bench.launch("sleep", "0.5", grant=Grant(memory=50 * MIB), limits=JobLimits(pids=20))
    await bench.started(id)
    await bench.ended(short)
    await bench.until(lambda: confined.groups() and {Path(one).name for one in confined.groups()} == {id})
    await bench.kill_supervisor()
    assert {Path(one).name for one in confined.groups()} == {id}
    bench.stop(id, grace=0)
    await bench.ended(id)
    await bench.until(lambda: confined.groups() == [])


@confines
async def test_a_group_whose_last_process_is_slow_to_go_is_removed_without_another_job(confined: Confined) -> None:
    bench = confined.bench
    id = bench.launch("sleep", "1000", limits=JobLimits(pids=20))
    await bench.started(id)
    await bench.until(confined.groups)
    stays = subprocess.Popen(["sleep", "1000"])  # no process of the job: as one that the kernel is not done with
    (Path(confined.groups()[0]) / "cgroup.procs").write_text(str(stays.pid))
    bench.stop(id)  # without a kill, which would end all that is in there
    await bench.ended(id)
    held = confined.groups()
    stays.kill()
    stays.wait()
    await bench.until(lambda: confined.groups() == [])
    assert [Path(one).name for one in held] == [id]


# --- a kernel of our own ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not OURS, reason="its kernel must kill: see the last test")
@confines
async def test_a_job_that_falls_to_a_node_without_memory_is_told_so(confined: Confined) -> None:
    bench = confined.bench
    id = bench.launch("sh", "-c", "echo 1000 > /proc/self/oom_score_adj; echo up; exec sleep 1000")
    await bench.wrote(id)
    # Its OOM killer chooses at once, as it does by itself once nothing is left: that may take minutes of reclaim.
    Path("/proc/sysrq-trigger").write_text("f")
    outcome = await bench.ended(id)
    assert (outcome.cause, exit_status(outcome)) == (Cause.NODE_OUT_OF_MEMORY, 137), outcome
    assert "the node ran out of memory, and the kernel killed it; it has no limit of its own" in outcome.text
    assert (await confined.bench.run("true")).code == 0  # the supervisor was spared


GROUPS = "tests/agent/cgroups/test_cgroupfs.py"
ALWAYS = 24  # of those tests, with version 2
TOO_NEW = "userspace - ptrace set fp regs failed"
"""What User-Mode Linux says, before its first process dies, where the state of a process is larger than it knows, as
with AMX."""
INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
cd {root}
export GRID_TEST_KERNEL=ours PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run PATH=/usr/local/bin:/usr/bin:/bin HOME=/run
{python} -m pytest -q -p no:cacheprovider --basetemp=/run/t {test} \\
    {groups} -k "kernel_sees or not_made or cpu_limit or falls_to or v2" 2>&1
echo "pytest has ended with $?."
/sbin/halt -f
"""


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(460)
@pytest.mark.skipif(OURS, reason="one is enough")
def test_the_kernel_keeps_limits_by_version_2_too(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.write_text(
        INIT.format(
            root=shlex.quote(str(ROOT)),
            python=shlex.quote(PYTHON),
            test=Path(__file__).relative_to(ROOT),
            groups=GROUPS,
        )
    )
    init.chmod(0o755)
    machine = ["linux.uml", "mem=320M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "con=null", "quiet"]
    with subprocess.Popen(
        [*machine, "con0=fd:0,fd:1", f"uml_dir={tmp_path}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as kernel:
        try:
            said, _ = kernel.communicate(timeout=400)  # it takes 20 s; many times that on a machine at work
        except BaseException as error:
            os.killpg(kernel.pid, signal.SIGKILL)  # not reaped yet: the number is its own
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said = kernel.communicate()[0] + "\nIt was not done in time, and is killed."
    if TOO_NEW in said:
        pytest.skip("the kernel that this test starts cannot run on this processor, which has more registers")
    assert "pytest has ended with 0." in said, said[-6000:]
    assert f"{4 + ALWAYS} passed" in said, said[-3000:]
