"""A coordinator that was lost after its backup, for the tests of backup, restore and check."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from distributed_grid.coordinator.backup.archive import backup
from distributed_grid.coordinator.backup.state import STORE
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.jobs import Cause, JobView, Outcome, State
from distributed_grid.protocol.messages import Exited, JobUpdate, Launch, PutBlob, ShowJobs
from tests.coordinator.ends import agent, at_once, client, coordinator, job, node, runs_on

FILE = b"print('shipped')\n"
MANIFEST = encode_manifest(Manifest((Entry("main.py", size=len(FILE), blob=blob_hash(FILE)),)))
BUNDLE = blob_hash(MANIFEST)


class Lost:
    """A coordinator that had, when its backup was taken: `over` ended, `runs` running, `waits` waiting with shipped
    files. Then it went on for a while, and was lost."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / "state"
        self.backup = place / "backup"
        self.jobs: dict[str, str] = {}
        self.epoch = 0

    async def show(self, url: str) -> dict[str, JobView]:
        ann = await client(url)
        views = (await ann.ask(ShowJobs(1, tuple(self.jobs.values())))).jobs
        await ann.close()
        names = {job: name for name, job in self.jobs.items()}
        return {names[view.id]: view for view in views}


@asynccontextmanager
async def lost_coordinator(tmp_path: Path) -> AsyncIterator[Lost]:
    made = Lost(tmp_path)
    made.state.mkdir()
    async with coordinator(made.state) as running:
        made.epoch = running.store.epoch
        ann = await client(running.url)
        for content in (FILE, MANIFEST):
            await ann.say(PutBlob(0, blob_hash(content), 0, content, end=True))
        worker = await agent(running.url, node(cores=1))
        (over,) = await ann.submit(job("true"))
        await ann.ended(over)
        worker.runs = runs_on
        (runs,) = await ann.submit(job("sleep", "9"))
        await ann.until(
            lambda seen: isinstance(seen, JobUpdate) and (seen.job.id, seen.job.state) == (runs, State.RUNNING)
        )
        (waits,) = await ann.submit(job("python", "main.py", bundle=BUNDLE))
        made.jobs = {"over": over, "runs": runs, "waits": waits}
        await asyncio.to_thread(backup, made.state, made.backup, False)
        # What the backup does not know: `runs` ended, `waits` ran and ended, and `later` runs.
        worker.runs = at_once
        await worker.say(Exited(f"{runs}.1", Outcome(Cause.EXITED, code=5), returned=True))
        await ann.ended(waits)
        worker.runs = runs_on
        await ann.submit(job("sleep", "99", key="later"))
        await worker.until(lambda seen: isinstance(seen, Launch) and seen.job not in made.jobs.values())
        yield made
        with contextlib.suppress(Exception):
            await worker.close()
            await ann.close()


def a_store(folder: Path) -> Path:
    folder.mkdir()
    Store(folder / STORE).close()
    return folder
