"""What a null job writes to the store: bytes of its write-ahead log by table and index, and the time of its snapshots
and commits (synced). The ledger and the commit pipeline are the real ones, the store is real and has a history.

Jobs are submitted in one call. Then each commit has the ends of `together` jobs, the grants of as many others, and the
starts of those that were granted before.
"""

import os
import statistics
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from bench._common import no_options, report
from bench.decisions.ledger import facts, offer
from bench.services._store import fill
from distributed_grid.coordinator.api.submissions import new_ids
from distributed_grid.coordinator.client import describe_job
from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived, NodeUp, Send
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.pipeline import Pipeline
from distributed_grid.coordinator.store.evidence import FRAME, HEADER
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started

JOBS = int(os.environ.get("GRID_BENCH_JOBS", "5000"))
HISTORY = 50_000
RUNS = 3
TOGETHER = (1, 4, 16)
DONE = Outcome(Cause.EXITED)


class Played:
    """A coordinator without its wire: the ledger, the pipeline and a store, whose log is not checkpointed."""

    def __init__(self, path: Path, slots: int) -> None:
        self.store = Store(path)
        self.wal = path.with_name(f"{path.name}-wal")
        self.store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.store._writer.execute("PRAGMA wal_autocheckpoint = 0")
        self.page: int = self.store._writer.execute("PRAGMA page_size").fetchone()[0]
        ledger = Ledger(self.store.epoch, watched=())
        self._pipeline = Pipeline(ledger)
        self._clock = self.store.clock + 60.0
        self.snapshot = self.commit = 0.0
        self.launched: deque[str] = deque()
        self.node = facts(0, slots, 1 << 40, 0)
        self.turn(NodeUp(self.node, "s"), MessageReceived(self.node.name, Inventory(known=())))
        self.turn(MessageReceived(self.node.name, offer(self.node, slots, 1 << 40, 0)))

    def turn(self, *events: Any) -> None:
        """Hand these to the ledger, commit what it records, and take what it launches."""
        pipeline = self._pipeline
        self._clock += 0.001
        for event in events:
            pipeline.put(event)
        while pipeline.queue:
            pipeline.turn(self._clock)
        if pipeline.write_due(self._clock):
            records = pipeline.begin_write(self._clock)
            began = time.perf_counter()
            snapshot = self.store.snapshot(records, self._clock)
            encoded = time.perf_counter()
            self.store.commit(snapshot)
            self.snapshot += encoded - began
            self.commit += time.perf_counter() - encoded
            pipeline.written()
        for command in pipeline.performable(self._clock):
            if isinstance(command, Send) and isinstance(command.message, Launch):
                self.launched.append(command.message.allocation)

    def submit(self, count: int) -> None:
        """Submit as many, as a client does."""
        made = [describe_job(["/bin/true"]) for _ in range(count)]
        ids = sorted(new_ids(count))
        jobs = (
            Job(id=name, key=one.key, user="bench", spec=one.spec, request=one.request, submitted=self._clock)
            for name, one in zip(ids, made, strict=True)
        )
        self.turn(JobsSubmitted(1, tuple(jobs)))

    def run(self, together: int) -> None:
        """Run all of them: a job starts one commit after its grant and ends one commit later."""
        name = self.node.name
        started: list[str] = []
        while self.launched or started:
            ends = [
                MessageReceived(name, Exited(allocation=one, outcome=DONE, returned=True)) for one in started[:together]
            ]
            del started[:together]
            starting = [self.launched.popleft() for _ in range(min(together, len(self.launched)))]
            started += starting
            self.turn(*(MessageReceived(name, Started(allocation=one)) for one in starting), *ends)

    def written(self) -> int:
        """Bytes of the log."""
        return self.wal.stat().st_size

    def owners(self) -> dict[int, str]:
        """The table or index of each page."""
        return dict(self.store._writer.execute("SELECT pageno, name FROM dbstat"))

    def pages(self, since: int, owners: dict[int, str]) -> Counter[str]:
        """Frames of the log from that offset on, by the table or index."""
        data = self.wal.read_bytes()
        offsets = range(max(since, HEADER), len(data), FRAME + self.page)
        return Counter(owners.get(int.from_bytes(data[at : at + 4], "big"), "free") for at in offsets)


def measure(folder: Path, history: Path, together: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return bytes and microseconds of one job, and the pages of its run by table and index."""
    path = folder / f"{together}.db"
    path.write_bytes(history.read_bytes())
    played = Played(path, 2 * together)
    begun = played.written()
    played.submit(JOBS)
    submitted, owners = played.written(), played.owners()
    taken = {"snapshot_us": played.snapshot / JOBS * 1e6, "commit_us": played.commit / JOBS * 1e6}
    played.snapshot = played.commit = 0.0
    played.run(together)
    ended = played.written()
    pages = {name: count / JOBS for name, count in played.pages(submitted, played.owners() | owners).most_common()}
    figures = {
        "submit_bytes": (submitted - begun) / JOBS,
        "run_bytes": (ended - submitted) / JOBS,
        **{f"submit_{name}": value for name, value in taken.items()},
        "run_snapshot_us": played.snapshot / JOBS * 1e6,
        "run_commit_us": played.commit / JOBS * 1e6,
    }
    played.store.close()
    path.unlink()
    return figures, pages


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    with tempfile.TemporaryDirectory(prefix="grid-bench-", dir=os.environ.get("GRID_BENCH_DIR")) as name:
        folder = Path(name)
        fill(folder / "history.db", HISTORY, until=time.time())
        for together in TOGETHER:
            rows = [measure(folder, folder / "history.db", together) for _ in range(RUNS)]
            figures = {key: statistics.median(row[key] for row, _ in rows) for key in rows[0][0]}
            pages = {owner: round(count, 2) for owner, count in rows[0][1].items()}
            report("commits", {"jobs": JOBS, "history": HISTORY, "together": together, **figures, "pages": pages})


if __name__ == "__main__":
    main()
