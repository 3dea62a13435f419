"""A cluster of Slurm on this machine for tests: Debian's own munged, slurmctld and slurmd, in a directory and with
ports of their own on loopback. They are ended by their pids; jobs that are left are cancelled before.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.grid_fixture import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONFIG = """
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
SlurmdParameters=config_overrides
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={home}/made
JobRequeue=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
KillWait=10
MinJobAge={age}
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
NodeName=n0 NodeHostName=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=2000 Port={slurmd} State=UNKNOWN
PartitionName=p1 Nodes=n0 Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n0 MaxTime=INFINITE State=UP PriorityTier=9
PartitionName=none Nodes=n0 MaxTime=INFINITE State=DOWN
"""


def missing() -> str:
    """Why there can be none here; empty: there can."""
    lacking = [one for one in PROGRAMS if shutil.which(one) is None and not Path("/usr/sbin", one).exists()]
    if lacking:
        return (
            f"needs {', '.join(lacking)} (Debian: slurmctld, slurmd, slurm-client, munge; scripts/system-packages.sh)"
        )
    return "" if os.geteuid() == 0 else "needs root: slurmd starts jobs as their users"


class Cluster:
    """One node of four cores and 2000 MB; the partition `urgent` preempts `p1`, and nothing runs in `none`."""

    def __init__(self, home: Path, age: int) -> None:
        self.home = home
        self.conf = home / "slurm.conf"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = _ports(2)
        self.conf.write_text(CONFIG.format(home=home, ctld=ports[0], slurmd=ports[1], age=age))
        for name in ("state", "spool"):
            (home / name).mkdir()
        (home / "munge.key").write_bytes(secrets.token_bytes(128))
        (home / "munge.key").chmod(0o600)

    def start(self) -> None:
        """Start all, and wait until the node takes jobs."""
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        words = [f"--{name}={self.home / file}" for name, file in {**files, "seed-file": "munged.seed"}.items()]
        self._start("munged", "--foreground", "--force", *words)
        until(lambda: (self.home / "munge.socket").exists(), f"munged is up{self.log()}")
        self.start_controller()
        self._start("slurmd", "-D", "-N", "n0", "-f", str(self.conf))
        until(
            lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T", check=False), f"a node is up{self.log()}"
        )

    def start_controller(self) -> None:
        self._start("slurmctld", "-D", "-f", str(self.conf))

    def _start(self, name: str, *words: str) -> None:
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        with (self.home / "output").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [name, *words], stdout=output, stderr=output, env=environment, stdin=subprocess.DEVNULL
            )

    def stop(self, name: str) -> None:
        """End one of the daemons by its pid."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()
        process.wait()

    def run(self, *words: str, check: bool = True, stdin: str = "") -> str:
        """What a program of Slurm says."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, input=stdin, timeout=60)
        assert not check or done.returncode == 0, done.stderr + self.log()
        return done.stdout

    def jobs(self, *states: str) -> list[list[str]]:
        """Id, name and state of the jobs that are in one of these states; without any: that are not over."""
        said = self.run(
            "squeue", "--noheader", "--format=%i %j %T", *([f"--states={','.join(states)}"] if states else [])
        )
        return [line.split() for line in said.splitlines()]

    def made(self) -> dict[str, set[str]]:
        """The ids of all jobs that there ever were, by name: Slurm writes down those that are over, and forgets."""
        found: dict[str, set[str]] = {}
        said = [(name, id) for id, name, _ in self.jobs("all")]
        if (file := self.home / "made").exists():
            said += [(one[2], one[1]) for one in re.finditer(r"^JobId=(\d+) .*?\bName=(\S+)", file.read_text(), re.M)]
        for name, id in said:
            found.setdefault(name, set()).add(id)
        return found

    def log(self) -> str:
        return "".join(f"\n--- {one.name}\n{one.read_text()[-2000:]}" for one in sorted(self.home.glob("*.log")))

    def end(self) -> None:
        """Cancel what is left, and end the daemons."""
        with suppress(subprocess.TimeoutExpired, AssertionError):
            left = [job[0] for job in self.jobs()]
            if left:
                self.run("scancel", *left, check=False)
                until(lambda: not self.jobs(), "no job is left", 30)
        for name in reversed([*self.processes]):
            self.stop(name)


@contextmanager
def slurm_cluster(age: int = 30) -> Iterator[Cluster]:
    """A cluster that is up. `age`: seconds for which it remembers jobs that are over."""
    home = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path: munged listens at a Unix socket
    cluster = Cluster(home, age)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
        time.sleep(0.2)
        shutil.rmtree(home, ignore_errors=True)


def _ports(count: int) -> list[int]:
    """Free ports below those that the kernel gives to connections."""
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
    return found
