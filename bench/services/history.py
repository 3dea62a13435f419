"""CPU of the coordinator for a bucket of a node, at 1,000 nodes: from its frame to the row of its minute that is handed
to the history's thread, and with what the thread does. Without the socket. And memory for a node's last hour."""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench._common import no_options
from distributed_grid.coordinator.history.history import TURNS, History
from distributed_grid.coordinator.history.series import Ring
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.history.buckets import SECONDS, Bucket, MeanMax
from distributed_grid.protocol.messages import Buckets

NODES, MINUTES, ROUNDS = 1000, 3, 5


def frame(number: int) -> bytes:
    """Return the message of a node without GPUs when a bucket has closed."""
    half = MeanMax(0.512345, 0.898765)
    memory = MeanMax(12_345_678_901.5, 12_445_678_901.0)
    bucket = Bucket(
        number=number,
        samples=5,
        cores=16,
        memory_total=64 << 30,
        own_cpu=half,
        foreign_cpu=half,
        own_memory=memory,
        foreign_memory=memory,
        disk=MeanMax(123_456.7, 1_234_567.8),
        net=MeanMax(123_456.7, 1_234_567.8),
        waiting={"cpu": half},
    )
    return encode(1, [Buckets(at=(number + 1.0) * SECONDS, buckets=(bucket,))])


async def measure(folder: Path) -> tuple[float, float]:
    """CPU seconds of the loop, and of the whole process, a bucket."""
    now = 1_800_000_000.0
    history = History(folder / "history.db", 1 << 30, lambda: now)
    names = [f"node{number}" for number in range(NODES)]
    loop = whole = 0.0
    count = 0
    for number in range(100, 100 + 6 * MINUTES):
        told = frame(number)
        now += SECONDS
        began, all_began = time.thread_time(), time.process_time()
        for name in names:
            _, (message,) = decode("FromAgent", told)
            history.store(name, "boot", message)
        for _ in range(TURNS // 6):
            history.tick()
        loop += time.thread_time() - began
        count += NODES
        if history._writing is not None:
            await history._writing
        whole += time.process_time() - all_began
    await history.close()
    return loop / count, whole / count


def main() -> None:
    """Print one JSON line; the goal is 20 µs a bucket."""
    no_options(__doc__)
    found = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(asyncio.run(measure(Path(folder))))
    ring = Ring(1)
    told = {
        "bench": "history",
        "bucket_us": round(1e6 * statistics.median(loop for loop, _ in found), 1),
        "with_thread_us": round(1e6 * statistics.median(whole for _, whole in found), 1),
        "goal_us": 20,
        "bytes_a_node": sys.getsizeof(ring) + sys.getsizeof(ring._codes),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
