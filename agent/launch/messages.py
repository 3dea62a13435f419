"""The messages between the launcher and its supervisor about an allocation: orders, reports, and the messages for the
coordinator that follow from reports."""

import os
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.agent.core.entry import Kept
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.isolation import Account
from distributed_grid.agent.supervisor.job import OWNER, READER
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import TAIL_BYTES, TEXT_CHARS, Outcome, OutputFull, State
from distributed_grid.protocol.messages import AwaitsReader, Launch, Suspended
from distributed_grid.protocol.nodes import Known
from distributed_grid.runtime import beneath

LEAST = 19
"""The niceness of jobs on slack."""

# --- orders -----------------------------------------------------------------------------------------------------------


def launch_order(launch: Launch, directory: str, env: dict[str, str], lease_from: float, kept: Kept) -> dict[str, Any]:
    """The order to start a job in this working directory (empty: one of its own) with this environment. A lease counts
    from `lease_from` (seconds since boot); `kept` is for the journal. The fields of `slot_order` belong to it, too."""
    spec = launch.spec
    return {
        "op": "launch",
        "id": launch.allocation,
        "argv": spec.argv,
        "env": env,
        "cwd": directory,
        "cores": launch.grant.affinity,
        "limit": spec.time_limit,
        "grace": spec.grace,
        "lease": launch.lease,
        "lease_from": lease_from,
        "stdin": spec.stdin,
        "kept": kept,
    }


def slot_order(launch: Launch, account: Account | None, trusted: bool, pids_limit: int, nice: int) -> dict[str, Any]:
    """The fields that decide which slots fit a launch: who submitted it, the user that it runs as, and its limits.
    `trusted`: the submitter is an owner of the node. `pids_limit` is the node's maximum number of processes and threads
    of a job (0: none), `nice` the niceness of jobs."""
    spec = launch.spec
    return {
        "submitter": launch.user,
        "trusted": trusted,
        "gpus": bool(launch.grant.gpus),
        "idle": bool(launch.grant.slack),
        "user": account and {"uid": account.uid, "gid": account.gid, "groups": account.groups},
        "limits": {
            "memory": launch.grant.memory,
            "pids": min(filter(None, (spec.limits.pids, pids_limit)), default=0),
            "cpu": _cpu_limit(launch),
            "signal": spec.limits.warn_signal,
            "before": spec.limits.warn_before,
            "nice": LEAST if launch.grant.slack else nice,
            "idle": bool(launch.grant.slack),
            "attached": spec.attached and spec.output_full is OutputFull.WAIT,
            **(_of_raylet(spec.boost, nice) if spec.boost is not None else {}),
        },
    }


def _cpu_limit(launch: Launch) -> int:
    """Maximum CPU of a job in thousandths of a core; 0: no limit. A job on slack always has one, and so it has a
    control group of its own where there are any, with the weight of an idle job."""
    grant = launch.grant
    if grant.slack:
        return grant.slack_milli
    return grant.resources.cpu if launch.spec.limits.cpu else 0


def _of_raylet(boost: Boost, nice: int) -> dict[str, Any]:
    """The orders for a raylet: it ends by SIGTERM, and gets its niceness once Ray shows it, since one that is nice from
    its start may not get that far on a busy node."""
    return {"gently": True, "nice": 0, "nice_later": nice, "nice_after": boost.join_within}


# --- reports ----------------------------------------------------------------------------------------------------------


class SupervisorReport(msgspec.Struct):
    """A report about an allocation: started; exited with `outcome`; or (`op` is `frozen`) frozen for this `cause` and
    the reason `why`, or that cause is over if `why` is empty. Other values of `op`: `proven`: nothing of loss `id` is
    alive. `nameless`: new jobs have no user name any more. `warning`: `why` is for the operator. `unended`: it was
    killed and something of it is alive, see `text`; `noted`: `text` is an additional remark."""

    id: str
    op: str = ""
    pid: int = 0
    outcome: dict[str, Any] | None = None
    cause: str = OWNER
    why: str = ""
    lasted: float = 0.0
    in_all: float = 0.0
    slot: str = ""
    walls: str = ""
    text: str = ""


REPORTS = msgspec.json.Decoder(SupervisorReport)


def outcome_of(said: dict[str, Any]) -> Outcome:
    """An outcome as a supervisor reports it; the text of one from an old journal may be longer than messages allow."""
    if len(said.get("text", "")) > TEXT_CHARS:
        said = said | {"text": said["text"][:TEXT_CHARS]}
    return msgspec.convert(said, Outcome)


def frozen(said: SupervisorReport) -> Suspended | AwaitsReader:
    """Convert a report into the coordinator's message."""
    if said.cause == READER:
        return AwaitsReader(allocation=said.id, why=said.why, lasted=said.lasted)
    return Suspended(allocation=said.id, why=said.why, lasted=said.lasted, in_all=said.in_all)


def known_of(state_dir: Path, said: dict[str, Any], promise: str) -> Known:
    """An allocation that a supervisor knows when an agent connects. `promise`: the walls to report; empty: those that
    were built."""
    walls = promise or said.get("walls", "")
    if said["outcome"] is not None:
        outcome = with_output(state_dir, said["id"], outcome_of(said["outcome"]))
        return Known(said["id"], State.ENDED, outcome, walls=walls)
    state = State.STOPPING if said["stopping"] else State.RUNNING
    return Known(said["id"], state, started_for=said["for"], walls=walls)


def with_output(state_dir: Path, allocation: str, said: Outcome) -> Outcome:
    """The supervisor's outcome, with sizes and last bytes of the output."""
    if not said.started:
        return said
    out, out_tail = tail(state_dir, allocation, "stdout")
    err, err_tail = tail(state_dir, allocation, "stderr")
    if not out and not err:
        return said
    return msgspec.structs.replace(said, stdout_size=out, stdout_tail=out_tail, stderr_size=err, stderr_tail=err_tail)


def tail(state_dir: Path, allocation: str, stream: str) -> tuple[int, bytes]:
    """Size and last bytes of an output; (0, empty) if there is none."""
    folder = workdir.allocation_path(state_dir, allocation)
    try:
        if not os.lstat(f"{folder}/{stream}").st_size:
            return 0, b""
        with workdir.opened(folder) as above:
            fd = beneath.open_regular(above, stream)
    except OSError:
        return 0, b""
    try:
        size = os.fstat(fd).st_size
        return size, os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
    finally:
        os.close(fd)
