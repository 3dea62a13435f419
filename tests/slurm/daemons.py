"""Slurm's own daemons on this machine, in namespaces of their own: jobs in, and when each began and ended.

`python -m tests.slurm.daemons FOLDER` is what runs inside. Nobody outside reaches the daemons, which therefore need no
authentication, and all of them end with their namespace. Each node of the cluster is a slurmd of its own with a port of
its own, and a job is a `sleep`. They are whole nodes, since Slurm's backfill reserves nodes and not parts of them.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ENTER = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# The first process of the namespace waits for those whose parent ended; a shell does that.
INIT = [*ENTER, "sh", "-c", '"$@"; exit $?', "init"]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue")
PORT = 17_000
"""Port of the first node."""
ANY_ADDRESS = "192.0.2.1/32"
"""Resolvers look for IPv4 addresses only where an interface has one that is not 127.0.0.1."""
READY = 120.0
POLL = 1.0
CONFIG = """
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/linear
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters={parameters}
CompleteWait=0
InactiveLimit=0
MinJobAge=100000
NodeName=n[0-{last}] NodeHostName=localhost NodeAddr=127.0.0.1 CPUs=1 Port=[{port}-{last_port}]
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PARAMETERS = (
    "bf_interval=1,bf_resolution=1,bf_window=43200,bf_continue,bf_max_job_test=10000,"
    "default_queue_depth=10000,sched_min_interval=0,batch_sched_delay=0"
)
"""Backfill looks every second, at all jobs; `bf_job_part_count_reserve` says how many of them get a reservation."""


class Asked(NamedTuple):
    """A job for Slurm: seconds from the first submission, nodes, seconds of sleep, and minutes as its limit."""

    submit: float
    nodes: int
    seconds: int
    minutes: int


class Ran(NamedTuple):
    """What Slurm tells of it: when it was submitted, began and ended, in whole seconds."""

    submitted: float
    began: float
    ended: float


def program(name: str) -> str | None:
    """Where a program of Slurm is. Debian's slurm-wlm-emulator puts its daemons, which start with front-end nodes only
    and refuse those in the configuration, in the place of the real ones: these keep their long names."""
    return shutil.which(f"{name}-wlm") or shutil.which(name)


def missing() -> str:
    """Why Slurm cannot run here; empty where it can."""
    lacking = [name for name in PROGRAMS if program(name) is None]
    return f"needs {', '.join(lacking)} (Debian: slurmctld, slurmd, slurm-client)" if lacking else ""


def run(jobs: Sequence[Asked], nodes: int, reserved: int, folder: Path, limit: float) -> list[Ran]:
    """Run the jobs on a cluster of so many nodes. `reserved`: for how many waiting jobs Slurm reserves, 0: for all.
    Raises AssertionError where they have not ended after `limit` seconds, or Slurm does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    task = {"jobs": jobs, "nodes": nodes, "reserved": reserved, "limit": limit}
    (folder / "task.json").write_text(json.dumps(task))
    command = [*INIT, sys.executable, "-m", "tests.slurm.daemons", str(folder)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=limit + 2 * READY)
    assert done.returncode == 0, done.stdout + done.stderr
    return [Ran(*one) for one in json.loads((folder / "ran.json").read_text())]


# --- inside -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Start the daemons, submit each job at its time, wait for all of them, and write `ran.json`."""
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    jobs = [Asked(*one) for one in task["jobs"]]
    for words in (["link", "set", "lo", "up"], ["addr", "add", ANY_ADDRESS, "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)
    nodes = task["nodes"]
    os.environ |= {"SLURM_CONF": str(_config(folder, nodes, task["reserved"])), "TZ": "UTC"}
    with (folder / "output").open("w") as output:
        for name, *words in (["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", f"n{at}"] for at in range(nodes))):
            subprocess.Popen([program(name) or name, *words], stdout=output, stderr=output)
        _wait_for_nodes(nodes)
        numbers = _submit(jobs)
        ran = _wait_for_jobs(numbers, task["limit"])
    (folder / "ran.json").write_text(json.dumps([ran[number] for number in numbers]))


def _config(folder: Path, nodes: int, reserved: int) -> Path:
    (folder / "state").mkdir()
    parameters = f"{PARAMETERS},bf_job_part_count_reserve={reserved}"
    user = pwd.getpwuid(os.getuid()).pw_name
    path = folder / "slurm.conf"
    told = {"last": nodes - 1, "port": PORT, "last_port": PORT + nodes - 1}
    path.write_text(CONFIG.format(folder=folder, user=user, parameters=parameters, **told))
    return path


def _wait_for_nodes(count: int) -> None:
    until, idle = time.monotonic() + READY, 0
    while idle < count:
        assert time.monotonic() < until, f"{idle} of {count} nodes are idle after {READY:g} s"
        time.sleep(POLL)
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], capture_output=True, text=True)
        idle = done.stdout.split().count("idle")


def _submit(jobs: Sequence[Asked]) -> list[int]:
    began, numbers = time.monotonic(), []
    for job in jobs:
        time.sleep(max(0.0, began + job.submit - time.monotonic()))
        asks = [f"--nodes={job.nodes}", f"--time={job.minutes}", "--output=/dev/null"]
        command = ["sbatch", "--parsable", *asks, f"--wrap=exec sleep {job.seconds}"]
        numbers.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return numbers


def _wait_for_jobs(numbers: Sequence[int], limit: float) -> dict[int, Ran]:
    until = time.monotonic() + limit
    while True:
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T %V %S %e"]
        rows = [line.split() for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
        ended = {int(row[0]): Ran(*map(_seconds, row[2:])) for row in rows if row[1] == "COMPLETED"}
        if len(ended) == len(numbers):
            return ended
        assert time.monotonic() < until, f"{len(numbers) - len(ended)} jobs have not ended: {rows}"
        time.sleep(POLL)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


if __name__ == "__main__":
    main()
