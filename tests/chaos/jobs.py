"""The jobs of a campaign: each writes a record on its node's disk of what truly happened to it."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from distributed_grid.coordinator.client import describe_job
from distributed_grid.protocol.jobs import RetryOn
from distributed_grid.protocol.messages import Submission
from tests.chaos.world import lines

RETRIES = 20
"""How often a job is run again whose node was lost."""
# A line is one write to a file that is only appended to, and on the disk before the job goes on. The lock is given back
# by the kernel when nothing of the job is alive any more: whoever finds it taken runs beside an earlier attempt.
SCRIPT = """
nap=$1 end=$2 half=$3 whole=$4
umask 0
note() {
    read -r up rest < /proc/uptime
    echo "$1 $GRID_ALLOCATION_ID $up $2" >> "$RECORDS/$GRID_NODE"
    sync -d "$RECORDS/$GRID_NODE"
}
note start $$
if [ -n "$ALONE" ]; then
    exec 9> "$RECORDS/lock/$GRID_JOB_ID"
    flock -n 9 || note beside $$
fi
if [ -n "$GANG" ]; then
    attempt="$GRID_GANG_ID.${GRID_ALLOCATION_ID##*.}"
    exec 9> "$RECORDS/lock/$attempt.$GRID_NODE_RANK"
    flock -n 9 || note beside $$
    for other in "$RECORDS/lock/$GRID_GANG_ID".*; do
        case "$other" in */"$attempt".*) ;; *) flock -n -s "$other" true || note beside $$ ;; esac
    done
fi
trap 'note end 99; exit 99' TERM
seq 1 "$half"
sleep "$nap" &
wait $!
seq $((half + 1)) "$whole"
[ -n "$SHIPPED" ] && cat shipped
echo "$half of $whole" >&2
note end "$end"
[ "$end" = killed ] && kill -9 $$
exit "$end"
"""


@dataclass(frozen=True)
class Shipment:
    """A directory that was shipped: its hash, and what is in its only file."""

    bundle: str = ""
    content: bytes = b""


@dataclass(frozen=True)
class Plan:
    """A job as it is to be: what a client asks for, and what has to come of it. `kind`: exits, killed, limited,
    missing (there is no such command), cancelled, retried, or gang. `watched`: followed to its end; `streamed`: its
    output is read as it comes; `cancel_after`: seconds until it is cancelled. It prints `lines` numbers, `half` of them
    first."""

    kind: str
    submission: Submission
    code: int
    lines: int
    half: int
    shipped: bytes
    watched: bool
    streamed: bool
    cancel_after: float

    @property
    def stdout(self) -> bytes:
        """Return everything that it prints if it is not stopped."""
        return b"".join(b"%d\n" % number for number in range(1, self.lines + 1)) + self.shipped

    @property
    def stderr(self) -> bytes:
        """Likewise."""
        return b"%d of %d\n" % (self.half, self.lines)


KINDS = {"exits": 75, "killed": 4, "limited": 3, "missing": 3, "cancelled": 7, "retried": 8}
"""All kinds of jobs, and how many of a hundred are of each."""


def draw(dice: random.Random, records: Path, shipment: Shipment) -> Plan:
    """The next job: most are short and some are long, most exit and some meet every other end."""
    kind = dice.choices([*KINDS], [*KINDS.values()])[0]
    short, middle, long = dice.uniform(0, 0.5), dice.uniform(0.5, 3), dice.uniform(3, 12)
    nap = dice.choices([0.0, short, middle, long], [30, 45, 20, 5])[0]
    if kind in ("limited", "cancelled"):
        nap = 60.0
    if kind == "retried":
        nap = dice.uniform(0.2, 8.0)
    code = dice.choice([0, 0, 0, 1, 2, 7, 42, 126, 127, 130, 137, 255])
    count = dice.choice([0, 1, 10, 100, 1000, dice.randrange(1, 40_000)])
    half = dice.randint(0, count)
    words = ["/no/such/command"] if kind == "missing" else ["sh", "-c", SCRIPT, "job"]
    words += [f"{nap:.3f}", "killed" if kind == "killed" else str(code), str(half), str(count)]
    submission = describe_job(
        words,
        key=f"{dice.getrandbits(96):024x}",
        env={
            "RECORDS": str(records),
            "SHIPPED": shipment.bundle,
            "ALONE": "1" if kind == "retried" else "",
            "GANG": "",
        },
        grace=2.0,
        time_limit=dice.uniform(0.3, 2.0) if kind == "limited" else None,
        bundle=shipment.bundle,
    )
    if kind == "retried":
        request = replace(submission.request, retry_on=(RetryOn.LOST,), retries=RETRIES)
        submission = replace(submission, request=request)
    return Plan(
        kind=kind,
        submission=submission,
        code=code,
        lines=count,
        half=half,
        shipped=shipment.content,
        watched=dice.random() < 0.25,
        streamed=dice.random() < 0.08,
        cancel_after=dice.choice([0.001, dice.uniform(0, 1), dice.uniform(1, 10)]) if kind == "cancelled" else 0.0,
    )


@dataclass
class RunRecord:
    """The record of one allocation: when it started, and with what it ended (a code, or `killed`)."""

    nodes: set[str] = field(default_factory=set)
    starts: list[float] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    """When it found an earlier attempt of its job alive."""

    def told(self) -> str:
        """Return all of it in a line."""
        text = [f"started at {at:.2f}" for at in self.starts]
        text += [f"ended with {how} at {at:.2f}" for at, how in self.ends]
        text += [f"found another alive at {at:.2f}" for at in self.beside]
        return f"on {', '.join(sorted(self.nodes))}: {', '.join(text)}"


def read_records(records: Path) -> dict[str, RunRecord]:
    """Return the records of all jobs, by allocation."""
    found: dict[str, RunRecord] = {}
    for node, line in lines(path for path in records.iterdir() if path.is_file()):
        what, allocation, at, how = line.split()
        record = found.setdefault(allocation, RunRecord())
        record.nodes.add(node)
        if what == "start":
            record.starts.append(float(at))
        elif what == "end":
            record.ends.append((float(at), how))
        else:
            record.beside.append(float(at))
    return found
