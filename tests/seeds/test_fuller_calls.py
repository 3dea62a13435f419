"""The calls behind the seeds' names, on the real grid: submit, wait, stream, cancel, list, files."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
from pathlib import Path

import pytest

from distributed_grid.config.settings import load
from distributed_grid.coordinator.client.compat import orchestrator as client_orchestrator
from distributed_grid.core import GridClient, GridOrchestrator, RequestRefused
from distributed_grid.protocol.jobs import State
from tests.seeds.conftest import PATIENCE, Grid


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


async def runs(client: GridClient, job: str) -> None:
    """Wait until the coordinator has heard that it runs: its output may be there before."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(RequestRefused):  # it has not been heard of at all
                if (await client.show(job)).state is State.RUNNING:
                    return
            await asyncio.sleep(0.02)


async def test_exit_codes_signals_and_missing_programs_are_told_apart(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    async with GridClient(grid.url) as client:
        bundle = await client.ship(tmp_path)
        results = await asyncio.gather(
            client.run(shell("exit 7")),
            client.run(shell("kill -9 $$")),
            client.run("no-such-program"),
            client.run("./data", bundle=bundle),
            client.run("sleep 30", time_limit=0.3, grace=0.5),
        )
        assert [result.exit_code for result in results] == [7, 137, 127, 126, 124]
        assert results[1].signal == signal.SIGKILL
        assert not any(result.success for result in results)


async def test_output_is_streamed_byte_for_byte_while_the_job_runs(grid: Grid, tmp_path: Path) -> None:
    script = (
        "import os, random, sys, time\n"
        "sys.stdout.buffer.write(b'begun\\r'); sys.stdout.flush()\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "sys.stdout.buffer.write(random.Random(1).randbytes(3_000_000)); sys.stderr.write('apart')"
    )
    async with GridClient(grid.url) as client:
        job = await client.submit(["python3", "-c", script])
        seen = {"stdout": b"", "stderr": b""}
        while_running = False
        async for stream, piece in client.stream(job):
            seen[stream] += piece
            if seen["stdout"] == b"begun\r" and not while_running:  # what it writes to stderr may come before the rest
                await runs(client, job)
                while_running = True
                (tmp_path / "go").touch()
        assert seen == {"stdout": b"begun\r" + random.Random(1).randbytes(3_000_000), "stderr": b"apart"}
        assert while_running
        assert (await client.result(job)).stdout_bytes == seen["stdout"]


async def test_a_directory_goes_out_and_results_come_back(grid: Grid, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "bin").mkdir(parents=True)
    (project / "input").write_bytes(os.urandom(700_000))
    (project / "bin" / "work.sh").write_text("mkdir out && sha256sum < input > out/sum && cp input 'out/a copy'\n")
    (project / "bin" / "work.sh").chmod(0o755)
    (project / "alias").symlink_to("bin/work.sh")
    async with GridClient(grid.url) as client:
        job = await client.submit(["sh", "./alias"], bundle=await client.ship(project))
        assert (await client.result(job)).success
        paths = await client.fetch(job, "out/*", into=tmp_path / "back")
        assert sorted(path.name for path in paths) == ["a copy", "sum"]
        content = (project / "input").read_bytes()
        assert (tmp_path / "back/out/a copy").read_bytes() == content
        assert (tmp_path / "back/out/sum").read_text().split()[0] == hashlib.sha256(content).hexdigest()


async def test_a_running_job_is_listed_cancelled_and_gone(grid: Grid) -> None:
    async with GridClient(grid.url) as client:
        job = await client.submit(shell("echo $$; exec sleep 60"), name="sleeper")
        async for _, piece in client.stream(job):
            pid = int(piece)
            break
        await runs(client, job)
        assert "sleeper" in [view.spec.name for view in await client.jobs(states=[State.RUNNING])]
        await client.cancel(job)
        view = await client.wait(job)
        assert view.outcome is not None and view.outcome.signal == signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert job in [view.id for view in await client.jobs(ended=True)]


async def test_a_caller_who_gives_up_leaves_nothing_running(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_orchestrator, "CANCEL_SECONDS", PATIENCE)  # on a busy machine
    config = load(None, environment={}, here=Path("/none"), flags={"coordinator.url": grid.url})
    async with GridOrchestrator(config) as orchestrator:
        asking = asyncio.create_task(
            orchestrator.run_with_shared_resources("sleep 60", "cpu", 1, job_id="given-up", ship=False)
        )
        await runs(orchestrator.client, "given-up")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        view = await orchestrator.client.wait("given-up")
        assert view.outcome is not None and view.outcome.cause == "cancelled"
