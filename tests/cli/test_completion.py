"""What a shell is given: our script, and words for jobs and nodes where the coordinator answers at once."""

import asyncio
from pathlib import Path

import pytest

from distributed_grid.cli import completion
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client import GridClient
from tests.coordinator.client.test_connection import free_port
from tests.coordinator.ends import agent, coordinator


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_our_variable(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["completion", shell], standalone_mode=False)
    assert "_GRID_COMPLETE" in capsys.readouterr().out


async def test_jobs_and_nodes_are_offered_by_their_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "TIMEOUT", 30.0)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url)
        job = await client.submit("true", name="train")
        monkeypatch.setenv("GRID_COORDINATOR", grid.url)
        assert await asyncio.to_thread(completion.complete_jobs, None, None, "") == [job, "train", "last"]
        assert await asyncio.to_thread(completion.complete_jobs, None, None, "tr") == ["train"]
        assert await asyncio.to_thread(completion.complete_nodes, None, None, "n") == ["n1"]
        await worker.close()


def test_without_a_coordinator_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_COORDINATOR", f"ws://127.0.0.1:{free_port()}")
    assert completion.complete_nodes(None, None, "") == []
